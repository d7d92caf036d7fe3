"""The runs of the experiment, trained and measured, and its tables."""

import json
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from toposcope.engine import Workers, processors
from toposcope.extend import Progress, adjusted, sign_flip, silent, write_bytes
from toposcope_experiments.induction.prediction import gain_of_topology, leads
from toposcope_experiments.induction.training import (
    CONTROLS,
    GLOBAL,
    IN_CONTEXT,
    TOPOLOGY,
    Design,
    Task,
    train_and_measure,
)
from toposcope_experiments.small_networks.commands import refuse_other_design, run_all

PRIMARY = "H0 and H1 given all controls"
FOUND = 2.8  # standard errors: a gain found in 4 of 5 studies, at the level .05


def run_experiment(
    design: Design, folder: Path, *, workers: int | None = None, progress: Progress = silent
) -> dict[str, pl.DataFrame]:
    """Train all runs, or go on where it was interrupted, and write the tables."""
    declared = json.loads(msgspec.json.encode(design))
    refuse_other_design(folder / "design.json", declared, may_differ=("seeds",))
    write_bytes(folder / "design.json", msgspec.json.encode(design))
    counts = {IN_CONTEXT: design.seeds, GLOBAL: max(1, design.seeds // 3)}
    tasks = [Task(design, name, seed, folder / "runs") for name, n in counts.items() for seed in range(n)]
    with Workers(min(workers or processors(), len(tasks))) as engine:
        heads = pl.concat(run_all(engine, train_and_measure, tasks, lambda task: task.name, progress))
    tables = {"heads": heads, "gains": gain_table(heads), "leads": lead_table(heads), "ends": end_table(heads)}
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")
    return tables


def gain_table(heads: pl.DataFrame) -> pl.DataFrame:
    """Return what topology adds to the controls, and to less than all of them."""
    cases: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {PRIMARY: (TOPOLOGY, CONTROLS)}
    cases |= {f"{name} given all controls": ((name,), CONTROLS) for name in TOPOLOGY}
    cases |= {"H0 and H1 given layer and step": (TOPOLOGY, ())}
    cases |= {f"{name} given H0 and H1": ((name,), TOPOLOGY) for name in CONTROLS}
    rows = []
    for case, (names, given) in cases.items():
        gain = gain_of_topology(heads, names, given)
        rows.append(
            (
                case,
                float(gain.error.mean()),
                float(gain.gain.mean()),
                gain.standard_error,
                gain.p,
                float(gain.twins.max()),
                gain.verdict,
            )
        )
    return pl.DataFrame(rows, ["case", "error", "gain", "standard_error", "p", "best_twin", "verdict"], orient="row")


def lead_table(heads: pl.DataFrame) -> pl.DataFrame:
    """Return how far each quantity moves before prefix matching does, adjusted for their number (Holm)."""
    found = {name: leads(heads, name) for name in (*TOPOLOGY, *CONTROLS)}
    p = adjusted(np.array([sign_flip(steps) for steps in found.values()]), "holm")
    rows = [(name, float(np.median(steps)), float(steps.min()), float(steps.max())) for name, steps in found.items()]
    return pl.DataFrame(rows, ["quantity", "median", "least", "most"], orient="row").with_columns(p_adjusted=p)


def end_table(heads: pl.DataFrame) -> pl.DataFrame:
    """Return what heads of each layer end at, by condition."""
    quantities = ("loss", "prefix_matching", *TOPOLOGY, *CONTROLS)
    last = heads.filter(pl.col("step") == pl.col("step").max())
    return last.group_by("condition", "layer", maintain_order=True).agg(pl.col(quantities).mean())


def conclusion(gains: pl.DataFrame) -> str:
    """Answer the question in one sentence."""
    _, error, gain, standard_error, p, _, verdict = gains.row(0)
    return (
        f"Topology of attention maps given entropy, distance, first token, diagonal and peak: {verdict}. Of a mean "
        f"error of {error:.3f} in prefix matching it takes off {gain:.4f} (p {p:.3f}); {FOUND * standard_error:.4f} "
        "would have been found in 4 of 5 such studies."
    )
