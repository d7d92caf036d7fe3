"""How often the verdict on an association is wrong, and how often it is right, on runs whose truth is known.

    python benchmarks/verdicts.py [--studies 1] [--table NAME] [--out benchmarks/results/verdicts.csv]

Prints the tables of docs/methods/appendices/verdicts.md as percentages of series called "beyond trend", and those of
power. The runs are made by tests/support/synthetic_runs.py.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import polars as pl

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from synthetic_runs import UNINFORMED, Schedule, synthetic_study

from toposcope.analysis.table import association_table
from toposcope.analysis.verdict import BEYOND, NONE, TREND

Row = dict[str, Any]

N_FEATURES, SHARED = 10, "shared cause"
SHARED_STUDIES, SHARED_RUNS = (
    100,
    5,
)  # for one of the others, since a study with a shared cause passes or fails as a whole
CELLS: list[Row] = [
    {"schedule": schedule, "runs": n_runs, "checkpoints": n, "phi": phi}
    for (schedule, n_runs, n), phi in product(
        [*((schedule, 24, 51) for schedule in get_args(Schedule)), ("restarts", 5, 51), ("restarts", 5, 154)],
        (0.0, 0.7),
    )
]
"""22 designs, each with the nine kinds of features without information."""
HARD: list[Row] = [
    {"schedule": schedule, "runs": 5, "checkpoints": n, "phi": phi, "feature_noise": 0.003, "loss_delay": 2.0}
    for schedule, n, phi in product(get_args(Schedule)[1:], (20, 51), (0.0, 0.7))
]
"""Features that follow the covariates nearly exactly, and a loss that follows the rate two checkpoints late."""
POWER: list[Row] = [
    {"schedule": schedule, "runs": n_runs, "checkpoints": n}
    for schedule, n, n_runs in product(("shared cosine", "restarts", "dips", "cycles"), (20, 51, 154), (1, 5, 24))
]


def share(design: Row, truth: str, n_studies: int, **settings: Any) -> float:
    """Return the percentage of series called beyond the trend; of one informed feature of ten, of this alone."""
    design = {"noise": 0.01, "phi": 0.0} | design | settings
    n = {"n_runs": design.pop("runs"), "n": design.pop("checkpoints")}
    features = N_FEATURES
    if truth == SHARED:
        features, n_studies, n["n_runs"] = 1, n_studies * SHARED_STUDIES, SHARED_RUNS
    tables = [
        association_table(synthetic_study(truth=truth, n_features=features, seed=seed, **n, **design))  # type: ignore[arg-type]
        for seed in range(n_studies)
    ]
    if settings.get("n_informed"):
        tables = [table.filter(feature="rips f0") for table in tables]
    return float(100 * np.mean([verdict == BEYOND for table in tables for verdict in table["verdict"]]))


def cell(design: Row, studies: int) -> Row:
    """Return a row: the highest share of features without information, and shares of those with some that are found."""
    false = {truth: share(design, truth, studies) for truth in UNINFORMED}
    highest = max(false, key=lambda truth: false[truth])
    informed = partial(share, design, "clock and information", 2 * studies)
    one = share(design, "clock and information", 5 * studies, correlation=0.45, n_informed=1)
    return design | {
        f"highest of {len(UNINFORMED)} without information": f"{false[highest]:.1f}%",
        "of": highest if false[highest] else "all",
        "found at .6": f"{informed(correlation=0.6):.0f}%",
        "found at .45": f"{informed(correlation=0.45):.0f}%",
        "one of ten at .45": f"{one:.0f}%",
    }


def power(design: Row, studies: int) -> Row:
    """Return a row: shares found of features with a correlation of .45, and refused of those that follow the rate."""
    tables = [
        association_table(
            synthetic_study("clock and rate", design["runs"], N_FEATURES, 0.0, 0.01, seed, design["schedule"],
                            n=design["checkpoints"])
        )
        for seed in range(studies)
    ]  # fmt: skip
    table = pl.concat(tables)
    stated = table.filter(pl.col("power").is_finite()).select("power", "detectable").to_numpy()
    nothing = np.mean([verdict in (TREND, NONE) for verdict in table["verdict"]])
    detectable = np.where(np.isfinite(stated[:, 1]), stated[:, 1], np.inf)
    return design | {
        "found at .45": f"{share(design, 'clock and information', studies, correlation=0.45):.0f}%",
        "power": f"{100 * stated[:, 0].mean():.0f}%" if len(stated) else "",
        "detectable": f"{np.median(detectable):g}" if len(stated) else "",
        "called trend only or none": f"{100 * nothing:.0f}%",
    }


TABLES = {"cells": (cell, CELLS), "hard": (cell, HARD), "power": (power, POWER)}


@click.command()
@click.option(
    "--studies", default=1, show_default=True, help="Of each kind; of a shared cause 100 times as many, of five runs."
)
@click.option("--table", "tables", multiple=True, type=click.Choice(list(TABLES)))
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the tables as CSV.")
def main(studies: int, tables: tuple[str, ...], workers: int, out: Path | None) -> None:
    """Print each table as Markdown."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for name in tables or TABLES:
            make, designs = TABLES[name]
            rows: list[Row] = []
            for row in pool.map(partial(make, studies=studies), designs):
                if not rows:
                    print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
                print(f"| {' | '.join(map(str, row.values()))} |", flush=True)
                rows.append(row)
            print()
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                pl.DataFrame(rows).write_csv(out / f"verdicts-{name}.csv")


if __name__ == "__main__":
    main()
