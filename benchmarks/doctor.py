"""What the doctor finds in damaged series of real trainings, and what it says of undamaged ones.

    python benchmarks/doctor.py [--quick]

Thirty kinds of small models are trained here, each three times, and then damaged in every way of `doctor_damages`. The
thresholds of the doctor were chosen on the kinds of even number; those of odd number were left out.
"""

import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from rich.progress import track

from bench import RESULTS, Column, show, write
from doctor_damages import DAMAGES, Damaged, Runs
from doctor_practices import CHANGES, PRACTICES
from doctor_trainings import KINDS, Series, Weights
from toposcope.checkpoints import Checkpoint
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.integrity import CheckpointSummary, Finding, diagnose, doctor, summarise
from toposcope.integrity.finding import short_steps

FORK = 0.3
"""Share of a training after which its branch forks."""
HALVES = ("thresholds", "left out")
FLIPS = 2
"""Bits flipped in a file of each training, one at a time."""
DETECTIONS = (
    Column("group", "group"),
    Column("damage", "damage"),
    *(Column(f"found, {half}", half) for half in HALVES),
)
TABLES = {"innocent": PRACTICES, "change": CHANGES}
DONE_ON_PURPOSE = (
    *(Column("wanted", "wanted"), Column("what", "what"), Column("families as wanted", "as_wanted")),
    Column("found instead", "found"),
)
ALARMS = (Column("training", "training"), Column("half", "half"), Column("faults", "faults"))


class Examined(NamedTuple):
    """What was found in one kind of training.

    Attributes
    ----------
    alarms : list of str
        Faults of the undamaged series.
    found : dict of str to list of bool
        By damage, whether each was found.
    """

    alarms: list[str]
    found: dict[str, list[bool]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Show that it works: four kinds of training, each damage once.")
@click.option("--repeats", type=click.IntRange(min=1), default=2, show_default=True, help="Times of each damage.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, repeats: int, workers: int, out: Path) -> None:
    """Train, damage and examine; print how many damages were found and which undamaged series have faults."""
    kinds = range(0, 4) if quick else range(len(KINDS))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {kind: pool.submit(examine, kind, 1 if quick else repeats) for kind in kinds}
        examined = {kind: job.result() for kind, job in track(jobs.items(), description="trainings")}
        names = [(table, name) for table in TABLES for name in [*TABLES[table]][: 1 if quick else None]]
        practised = list(pool.map(practise, *zip(*names, strict=True)))
    alarms = [
        {"training": KINDS[kind].name, "half": HALVES[kind % 2], "faults": "; ".join(e.alarms) or "none"}
        for kind, e in examined.items()
    ]
    detections = [
        {"group": group, "damage": damage} | {half: _share(examined, damage, k) for k, half in enumerate(HALVES)}
        for damage, group in {
            **{name: group for name, (group, _) in DAMAGES.items()},
            "a bit of a .pt": "values",
        }.items()
    ]
    show(detections, DETECTIONS, "Damages")
    show(alarms, ALARMS, "Undamaged series")
    show(practised, DONE_ON_PURPOSE, "Done on purpose")
    facts = {
        "trainings": f"{len(examined)} kinds, each with a main run, one of another seed, and one forked at {FORK:.0%}",
        "found": "a fault that names a damaged step, and the tensor where one or two are damaged",
        "halves": "thresholds were chosen on the kinds of even number",
    }
    tables = {"Damages": (detections, DETECTIONS), "Undamaged series": (alarms, ALARMS)}
    tables["Done on purpose"] = practised, DONE_ON_PURPOSE
    write("doctor", out, facts, tables, ("toposcope", "numpy", "torch"))


def practise(table: str, name: str) -> dict[str, str]:
    """Train with what is done on purpose; innocent practices should have no fault, changes a finding for each step."""
    torch.set_num_threads(1)
    practice, instead = TABLES[table][name], []
    for family in practice.families:
        findings = diagnose([_summary(step, weights) for step, weights in practice.series(family).items()])
        if table == "innocent":
            wrong = [finding for finding in findings if finding.severity == "fault"]
        else:
            wrong = findings if sorted(f.steps[0] for f in findings) != list(practice.steps) else []
            instead += [] if findings else [f"{family}: nothing"]
        instead += [f"{family}: {finding.check} {short_steps(finding.steps)}" for finding in wrong]
    bad = {each.partition(":")[0] for each in instead}
    return {
        "wanted": "no fault" if table == "innocent" else f"a finding at {short_steps(practice.steps)}",
        "what": name,
        "as_wanted": f"{len(practice.families) - len(bad)} of {len(practice.families)}",
        "found": "; ".join(instead) or "none",
    }


def examine(number: int, repeats: int) -> Examined:
    """Train one kind, and examine it undamaged and with every damage."""
    torch.set_num_threads(1)
    kind = KINDS[number]
    runs = Runs(kind.train(number), kind.train(number + 500), kind.train(number, forked=FORK))
    known = {step: _summary(step, weights) for step, weights in runs.main.items()}
    alarms = _faults(list(known.values()))
    found: dict[str, list[bool]] = defaultdict(list)
    for name, (_, damage) in DAMAGES.items():
        for repeat in range(repeats):
            rng = np.random.default_rng([number, repeat, zlib.crc32(name.encode())])
            if (damaged := damage(runs, rng)) is not None:
                summaries = [
                    known[step] if weights is runs.main.get(step) else _summary(step, weights)
                    for step, weights in damaged.series.items()
                ]
                new = [finding for finding in _faults(summaries) if finding not in alarms]
                found[name].append(any(_names(finding, damaged) for finding in new))
    found["a bit of a .pt"] = list(_flipped_bits(runs.main, np.random.default_rng(number)))
    return Examined([f"{finding.check} {finding.message}" for finding in alarms], dict(found))


def _summary(step: int, weights: Weights) -> CheckpointSummary:
    checkpoint = Checkpoint(Path("memory") / f"step{step}", step)
    checkpoint.__dict__["files"] = {}
    checkpoint.__dict__["_listing"] = [in_memory(name, tensor) for name, tensor in weights.items()]
    summary = summarise(checkpoint, deep=True)
    if summary.error:
        raise click.ClickException(summary.error)
    return summary


def _faults(summaries: list[CheckpointSummary]) -> list[Finding]:
    return [finding for finding in diagnose(summaries) if finding.severity == "fault"]


def _names(finding: Finding, damaged: Damaged) -> bool:
    """Return whether a finding names a step of a damage, and its tensor if it is one or a tied pair."""
    named = len(damaged.tensors) > 2 or not damaged.tensors or any(n in finding.message for n in damaged.tensors)
    return named and not set(damaged.steps).isdisjoint(finding.steps)


def _flipped_bits(series: Series, rng: np.random.Generator) -> Iterator[bool]:
    """Flip bits of the records of a torch file, one at a time."""
    step = int(rng.choice(list(series)))
    with tempfile.TemporaryDirectory(prefix="toposcope-bench-") as folder:
        path = Path(folder) / f"step_{step}.pt"
        torch.save({"model_state_dict": series[step]}, path)
        content = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            records = [i for i in archive.infolist() if "/data/" in i.filename]
        for _ in range(FLIPS):
            info = records[int(rng.integers(len(records)))]
            lengths = (int.from_bytes(content[info.header_offset + k :][:2], "little") for k in (26, 28))
            at = info.header_offset + 30 + sum(lengths) + int(rng.integers(info.file_size))
            flipped = bytearray(content)
            flipped[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            yield doctor(str(path), deep=True).faults > 0


def _share(examined: dict[int, Examined], damage: str, half: int) -> str:
    """Return how many of a damage were found in a half of the kinds, as ``3 of 4``."""
    found = [hit for kind, e in examined.items() if kind % 2 == half for hit in e.found.get(damage, [])]
    return f"{sum(found)} of {len(found)}"


if __name__ == "__main__":
    main()
