"""All packs, trained or read from disk, and the table of what was seen and of what came of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from toposcope.engine import Workers, processors
from toposcope.extend import Progress, silent, to_csv, write_bytes
from toposcope.family import prepare
from toposcope_experiments.scaling_decision.decisions import decision_table
from toposcope_experiments.scaling_decision.design import (
    CORPORA,
    Design,
    Pack,
    corpus_of,
    flops_of_step,
)
from toposcope_experiments.scaling_decision.features import known_at, measure_pack
from toposcope_experiments.scaling_decision.training import Trained, train_pack
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all

DESIGN, DECISIONS, TRAINING = "design.json", "decisions.csv", "training"


def run_experiment(
    design: Design, folder: Path, *, workers: int | None = None, progress: Progress = silent
) -> pl.DataFrame:
    """Train all runs, or go on where it was interrupted; write the design, and after each pair its decisions.

    Values do not depend on the number of workers.
    """
    declared = json.loads(json.dumps(asdict(design)))
    refuse_other_design(folder / DESIGN, declared)
    write_bytes(folder / DESIGN, json.dumps(declared, indent=2).encode() + b"\n")
    for name in CORPORA:
        prepare(corpus_of(name), corpus_path(folder, name))
    ends: list[pl.DataFrame] = []
    known: list[pl.DataFrame] = []
    with Workers(workers or processors()) as engine:
        for pair in design.pairs:
            packs = design.packs(pair)
            tasks = [(pack, corpus_path(folder, pack.corpus), folder / TRAINING) for pack in packs]
            trained = run_all(engine, train_pack, tasks, lambda task: task[0].name, _progress_of(packs, progress))
            ends += map(end_table, packs, trained)
            seen = [(pack, found) for pack, found in zip(packs, trained, strict=True) if pack.looks]
            looked = [(pack, folder / TRAINING) for pack, _ in seen]
            weights = run_all(engine, measure_pack, looked, lambda task: task[0].name)
            known.append(known_at(pl.concat([look_table(*each) for each in seen]), pl.concat(weights)))
            decisions = decision_table(design, pl.concat(ends), pl.concat(known))
            write_bytes(folder / DECISIONS, to_csv(decisions))
    return decisions


def _progress_of(packs: Sequence[Pack], progress: Progress) -> Progress:
    """Return what adds up the progress of packs, in billions of FLOP."""
    expected = {pack.name: pack.flops / 1e9 for pack in packs}
    left, total = dict(expected), round(sum(expected.values()))

    def advance(name: str, step: int, steps: int) -> None:
        left[name] = expected[name] * (1 - step / steps)
        progress(f"train {packs[0].pair.name}", total - round(sum(left.values())), total)

    return advance


def corpus_path(folder: Path, name: str) -> Path:
    """Return where the tokens of a corpus are."""
    return folder / f"corpus-{name}.safetensors"


def end_table(pack: Pack, trained: Trained) -> pl.DataFrame:
    """Return a row for each run and end: its loss after the cool-down, in nats."""
    rows = [
        _row(pack, i, end) | {"loss": losses[i]}
        for end, losses in trained.cooled.items()
        for i in range(len(pack.members))
    ]
    return pl.DataFrame(rows)


def look_table(pack: Pack, trained: Trained) -> pl.DataFrame:
    """Return a row for each run and step at which it is looked at: what a log would hold."""
    places = [(place, step) for place, step in enumerate(trained.steps) if step in pack.looks]
    rows = [
        _row(pack, i, step)
        | {
            "loss": trained.trunk[place, i],
            "gradient_norm": trained.gradient_norm[place, i],
        }
        for place, step in places
        for i in range(len(pack.members))
    ]
    return pl.DataFrame(rows)


def _row(pack: Pack, run: int, step: int) -> dict[str, object]:
    condition, seed = pack.members[run]
    compute = step * flops_of_step(pack.width, pack.batch)
    return {
        "condition": condition.name,
        "pair": pack.pair.name,
        "width": pack.width,
        "seed": seed,
        "step": step,
        "compute": compute,
    }
