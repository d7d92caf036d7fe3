"""All packs, trained or read from disk, and the table of what was seen and of what came of it."""

import json
from dataclasses import asdict
from pathlib import Path

import polars as pl

from toposcope.engine import Workers, processors
from toposcope.extend import Progress, silent, to_csv, write_bytes
from toposcope.family import prepare
from toposcope_experiments.scaling_decision.design import (
    CORPORA,
    Design,
    Pack,
    corpus_of,
    flops_of_step,
)
from toposcope_experiments.scaling_decision.training import Trained, train_pack
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all

DESIGN, ENDS, LOOKS, TRAINING = "design.json", "ends.csv", "looks.csv", "training"


def run_experiment(design: Design, folder: Path, *, workers: int | None = None, progress: Progress = silent) -> None:
    """Train all runs, or go on where it was interrupted; write the design and both tables.

    Values do not depend on the number of workers.
    """
    declared = json.loads(json.dumps(asdict(design)))
    refuse_other_design(folder / DESIGN, declared)
    write_bytes(folder / DESIGN, json.dumps(declared, indent=2).encode() + b"\n")
    for name in CORPORA:
        prepare(corpus_of(name), corpus_path(folder, name))
    packs = design.packs()
    tasks = [(pack, corpus_path(folder, pack.corpus), folder / TRAINING) for pack in packs]
    expected = {pack.name: pack.flops / 1e9 for pack in packs}
    left = dict(expected)

    def advance(name: str, step: int, steps: int) -> None:
        left[name] = expected[name] * (1 - step / steps)
        progress("train", round(sum(expected.values()) - sum(left.values())), round(sum(expected.values())))

    progress("train", 0, round(sum(expected.values())))
    with Workers(min(workers or processors(), len(tasks))) as engine:
        trained = run_all(engine, train_pack, tasks, lambda task: task[0].name, advance)
    for name, table in {ENDS: end_table, LOOKS: look_table}.items():
        rows = pl.concat([table(pack, found) for pack, found in zip(packs, trained, strict=True)])
        write_bytes(folder / name, to_csv(rows.sort("width", "condition", "seed", "step")))


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
    """Return a row for each run and step at which it is looked at: what a log would hold; no row of the largest."""
    places = [(place, step) for place, step in enumerate(trained.steps) if step in pack.looks]
    rows = [
        _row(pack, i, step)
        | {
            "loss": trained.trunk[place, i],
            "training_loss": trained.training_loss[place, i],
            "gradient_norm": trained.gradient_norm[place, i],
        }
        for place, step in places
        for i in range(len(pack.members))
    ]
    names = ("loss", "training_loss", "gradient_norm")
    numbers = {"width": pl.Int64, "seed": pl.Int64, "step": pl.Int64, **dict.fromkeys(("compute", *names), pl.Float64)}
    return pl.DataFrame(rows, schema={"condition": pl.String, **numbers})


def _row(pack: Pack, run: int, step: int) -> dict[str, object]:
    condition, seed = pack.members[run]
    compute = step * flops_of_step(pack.width, pack.batch)
    return {"condition": condition.name, "width": pack.width, "seed": seed, "step": step, "compute": compute}
