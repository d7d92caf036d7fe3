"""The whole population, trained or read from disk: one file of traces for each pack."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toposcope.engine import Workers, one_thread, processors, report
from toposcope.extend import Progress, ToposcopeError, silent, write_bytes
from toposcope.family import Corpus, prepare
from toposcope_experiments.early_warnings.design import Design, Pack
from toposcope_experiments.early_warnings.precursors import PRECURSORS
from toposcope_experiments.early_warnings.traces import TRACES, write_traces
from toposcope_experiments.early_warnings.training import PackTrainer
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all

DESIGN, COSTS, CORPUS, STATES = "design.json", "costs.json", "corpus.safetensors", "training"
UPDATE = "update"  # with what is measured at every step
TIMED_STEPS, TIMINGS = 4, 3  # updates before a measurement is timed, and how often; the median counts
Costs = Mapping[str, Mapping[str, float]]
"""CPU seconds of one measurement of one run, by shape and precursor; and of an update."""


def train_population(design: Design, folder: Path, workers: int | None = None, progress: Progress = silent) -> None:
    """Train all runs, or go on where it was interrupted, and write their traces.

    Values do not depend on the workers. The costs are measured once and kept, so that all files of a folder agree.
    """
    _declare(design, folder)
    corpus = folder / CORPUS
    prepare(Corpus(source=design.corpus), corpus)
    packs = design.packs()
    costs = _costs(packs, corpus, folder)
    tasks = [(pack, corpus, folder, costs[pack.shape.name]) for pack in packs if not _path(folder, pack).exists()]
    if not tasks:
        return
    with Workers(min(workers or processors(), len(tasks))) as engine:
        expected = {pack.name: _seconds(pack, cost) / engine.n_workers for pack, _, _, cost in tasks}
        left, total = dict(expected), round(1000 * sum(expected.values()))

        def advance(name: str, step: int, steps: int) -> None:
            left[name] = expected[name] * (1 - step / steps)
            progress("measure", total - round(1000 * sum(left.values())), total)  # a stage of milliseconds

        progress("measure", 0, total)
        run_all(engine, train_pack, tasks, lambda task: task[0].name, advance)


def train_pack(task: tuple[Pack, Path, Path, Mapping[str, float]]) -> None:
    """Train the runs of a pack and write their traces; the state to resume from is then no longer needed."""
    pack, corpus, folder, costs = task
    with one_thread():
        trainer = PackTrainer(pack, corpus, folder / STATES)
        trainer.train(report)
    write_traces(_path(folder, pack), trainer.traces(costs))
    trainer.path.unlink(missing_ok=True)


def measure_costs(pack: Pack, corpus: Path, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of one measurement of each precursor of one run, and of an update, in such a pack."""
    costs = {}
    with one_thread():
        trainer = PackTrainer(pack, corpus, folder)
        for step in range(1, TIMED_STEPS + 1):
            begin = time.process_time()
            trainer.update(step)
            costs[UPDATE] = (time.process_time() - begin) / len(pack.plans)
        for name, precursor in PRECURSORS.items():
            seconds = []
            for _ in range(TIMINGS):
                snapshot = replace(trainer.last)  # without what another precursor has left
                begin = time.process_time()
                precursor.measure(snapshot)
                seconds.append(time.process_time() - begin)
            costs[name] = sorted(seconds)[TIMINGS // 2] / len(pack.plans)
    return costs


def _seconds(pack: Pack, costs: Mapping[str, float]) -> float:
    """Return the CPU seconds that a pack is expected to take."""
    rare = sum(costs[name] / precursor.cadence for name, precursor in PRECURSORS.items() if precursor.cadence > 1)
    return pack.steps * len(pack.plans) * (costs[UPDATE] + rare)


def _costs(packs: list[Pack], corpus: Path, folder: Path) -> Costs:
    path = folder / COSTS
    largest = {pack.shape.name: pack for pack in sorted(packs, key=lambda pack: len(pack.plans))}
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            return {shape: {name: float(known[shape][name]) for name in (UPDATE, *PRECURSORS)} for shape in largest}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ToposcopeError(f"{path}: cannot be read ({error}); remove it to measure again") from error
    costs = {name: measure_costs(pack, corpus, folder / STATES) for name, pack in largest.items()}
    write_bytes(path, json.dumps(costs, indent=2).encode() + b"\n")
    return costs


def _path(folder: Path, pack: Pack) -> Path:
    return folder / f"{pack.name}{TRACES}"


def _declare(design: Design, folder: Path) -> None:
    """Write the design and the cadences, unless the folder belongs to others."""
    path = folder / DESIGN
    cadences = {name: precursor.cadence for name, precursor in PRECURSORS.items()}
    declared: dict[str, Any] = json.loads(json.dumps({**asdict(design), "cadences": cadences}, default=str))
    refuse_other_design(path, declared)
    write_bytes(path, json.dumps(declared, indent=2).encode() + b"\n")
