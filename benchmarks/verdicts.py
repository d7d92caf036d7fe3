"""How often the verdict on an association is wrong, and how often it is right, on runs whose truth is known.

    python benchmarks/verdicts.py [--series 1000] [--table NAME]

Prints the tables of docs/methods/association.md as percentages of series called "beyond trend", and that of power. The
runs are made by tests/support/synthetic_runs.py.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from synthetic_runs import INFORMED, OWN_SCHEDULES, UNINFORMED, synthetic_study

from toposcope.analysis.table import association_table
from toposcope.analysis.verdict import BEYOND, UNDETERMINED

N_RUNS, N_FEATURES = 5, 10
TABLES = ("step", "schedules", "autocorrelated", "adversaries", "power")
POWER_SCHEDULES = ("shared cosine", "restarts", "dips", "bursts", "cycles", "constant")
NOISES = (0.002, 0.005, 0.01, 0.02)
ALL = (*UNINFORMED, *INFORMED)
FALSE = f"highest of {len(UNINFORMED)} without information"
STEP_TRUTHS = ("clock", "nothing", "random walk", "shared cause", "clock and information", "information")
ADVERSARIES: dict[str, dict[str, float]] = {
    "feature noise 0.003": {"feature_noise": 0.003},
    "loss 2 checkpoints late": {"loss_delay": 2},
    "both": {"feature_noise": 0.003, "loss_delay": 2},
    "20 checkpoints": {"n": 20},
    "154 checkpoints": {"n": 154},
}

Row = dict[str, Any]


def share(settings: Row, n_studies: int) -> float:
    """Return the percentage called beyond the trend; of a shared cause, which whole studies share, in 5 times more."""
    n_studies *= 5 if settings["truth"] == "shared cause" else 1
    tables = [
        association_table(synthetic_study(n_runs=N_RUNS, n_features=N_FEATURES, seed=seed, **settings))
        for seed in range(n_studies)
    ]
    verdicts = [verdict for table in tables for verdict in table.get_column("verdict")]
    return 100 * verdicts.count(BEYOND) / len(verdicts)


def shown(shares: dict[str, float]) -> Row:
    """Return the cells of a row: of more truths without information than a page has room for, the highest share."""
    false = {truth: value for truth, value in shares.items() if truth in UNINFORMED}
    highest = max(false, key=lambda truth: false[truth])
    alone = len(false) < len(UNINFORMED)
    cells: Row = {t: f"{v:.1f}%" for t, v in false.items()} if alone else {FALSE: f"{false[highest]:.1f}%"}
    if not alone:
        cells["of"] = highest if false[highest] else "all"
    return cells | {truth: f"{value:.1f}%" for truth, value in shares.items() if truth in INFORMED}


def power(design: Row, series: int) -> Row:
    """Return a row of the table of power: of a feature with information and of one without, and what is said."""
    row, tables = dict(design), []
    for truth, name in (("clock and information", "found"), ("clock and rate", "false")):
        settings: Row = {"truth": truth, "n_features": N_FEATURES, "phi": 0.0, "noise": 0.01, **design}
        studies = range(max(1, series // (design["n_runs"] * N_FEATURES)))
        tables = [association_table(synthetic_study(seed=seed, **settings)) for seed in studies]
        verdicts = [verdict for table in tables for verdict in table["verdict"]]
        row[name] = f"{100 * verdicts.count(BEYOND) / len(verdicts):.1f}%"
        row[f"{name}: {UNDETERMINED}"] = f"{100 * verdicts.count(UNDETERMINED) / len(verdicts):.1f}%"
    said, smallest = (np.concatenate([table[column] for table in tables]) for column in ("power", "detectable"))
    smallest = np.where(np.isfinite(smallest), smallest, np.inf)[np.isfinite(said)]
    row["power"] = f"{100 * np.nanmean(said):.0f}%"
    row["detectable"] = f"{np.median(smallest):g}"
    return row


def settings_of(table: str) -> Iterator[tuple[Row, Row]]:
    """Yield the columns that name a row, and the settings of its cells by truth."""
    if table == "step":
        for phi, noise in product((0.0, 0.7), (0.02, 0.1, 0.3)):
            cells = {truth: {"truth": truth, "phi": phi, "noise": noise} for truth in STEP_TRUTHS}
            yield {"phi": phi, "noise": noise}, cells
    elif table == "schedules":
        for schedule, noise in product(OWN_SCHEDULES, NOISES):
            yield {"schedule": schedule, "noise": noise}, _cells(schedule, noise, 0.0)
    elif table == "autocorrelated":
        for schedule, noise in product(OWN_SCHEDULES, NOISES):
            yield {"schedule": schedule, "noise": noise}, _cells(schedule, noise, 0.7)
    else:
        for name, schedule, noise in product(ADVERSARIES, OWN_SCHEDULES, (0.002, 0.01)):
            cells = {truth: c | ADVERSARIES[name] for truth, c in _cells(schedule, noise, 0.0).items()}
            yield {"runs": name, "schedule": schedule, "noise": noise}, cells


def _cells(schedule: str, noise: float, phi: float) -> dict[str, Row]:
    return {truth: {"truth": truth, "phi": phi, "noise": noise, "schedule": schedule} for truth in ALL}


def show(row: Row, *, head: bool) -> None:
    """Print a row as Markdown, and before the first one the names of the columns."""
    if head:
        print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
    print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


@click.command()
@click.option("--series", default=1000, show_default=True, help="Series of each kind.")
@click.option("--table", "tables", multiple=True, type=click.Choice(TABLES))
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="Processes.")
def main(series: int, tables: tuple[str, ...], workers: int) -> None:
    """Print each table as Markdown."""
    n_studies = max(1, series // (N_RUNS * N_FEATURES))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for table in tables or TABLES:
            if table == "power":
                designs = [
                    {"schedule": schedule, "n": n, "n_runs": n_runs}
                    for schedule, n, n_runs in product(POWER_SCHEDULES, (51, 154), (1, 5, 8, 24))
                ]
                for i, row in enumerate(pool.map(partial(power, series=series), designs)):
                    show(row, head=not i)
                print()
                continue
            rows = list(settings_of(table))
            cells = [cell for _, by_truth in rows for cell in by_truth.values()]
            values = iter(pool.map(partial(share, n_studies=n_studies), cells))
            for i, (names, by_truth) in enumerate(rows):
                show(names | shown({truth: next(values) for truth in by_truth}), head=not i)
            print()


if __name__ == "__main__":
    main()
