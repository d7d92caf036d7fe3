"""How far off forecasts of the final loss are, on collections of real curves, and how long they take.

The table of errors that intervals are made of without siblings is made here: ``--ship`` writes it.
"""

import csv
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import polars as pl
from scipy.optimize import curve_fit

import toposcope.forecasting
from bench import RESULTS, Column, Spread, milliseconds, ratio, show, write
from toposcope.forecasting.backtesting import DEFAULT_FRACTIONS, SPLITS, backtest
from toposcope.forecasting.forecaster_set import run_forecasters
from toposcope.forecasting.forecasters.window import LATE_SHARE
from toposcope.forecasting.intervals import TABLE
from toposcope.forecasting.schedules.planned import planned
from toposcope.forecasting.scores import scores, skills
from toposcope.forecasting.siblings import CompleteRuns, complete_runs
from toposcope.logs import Log, read_logs

CURVES = Path(__file__).parents[1].parent / "shared" / "data" / "loss-curves" / "curves.parquet"
SHIPPED_FRACTIONS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SHIPPED_LEVEL = 0.9
LONG, SEEN = 100_000, 0.4
"""Steps of the long log, and which share of its run they are."""
ALONE = "Without siblings: the default, its intervals made from the errors on the other families"
PACKAGES = ("numpy", "scipy", "polars")

Row = dict[str, object]
ERRORS = [
    Column(title, key)
    for title, key in (
        ("seen", "fraction"),
        ("forecaster", "forecaster"),
        ("family", "family"),
        ("runs", "n"),
        ("median, %", "median"),
        ("90th percentile, %", "p90"),
        ("worst, %", "worst"),
        ("bias, nats", "bias"),
        ("coverage of 90%", "coverage"),
        ("width, %", "width"),
        ("interval score, %", "score"),
    )
]
SKILL = [
    Column(title, key)
    for title, key in (
        ("seen", "fraction"),
        ("default beside", "baseline"),
        ("runs", "n"),
        ("sizes", "n_groups"),
        ("1 - MAE / MAE", "skill"),
        ("95% interval", "interval"),
        ("p over sizes, Holm", "p"),
    )
]
SPEED = [
    Column(title, key)
    for title, key in (
        ("log", "log"),
        ("line-up, ms", "ours"),
        ("SciPy's curve_fit of one power law, ms", "scipy"),
        ("ratio", "ratio"),
    )
]


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python benchmarks/forecast.py"
)
@click.argument("curves", type=click.Path(exists=True, path_type=Path), default=CURVES)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
@click.option("--ship", is_flag=True, help="Write the shipped table of errors, and nothing else.")
def main(curves: Path, workers: int, out: Path, ship: bool) -> None:
    """Backtest every forecaster, leaving sizes, kinds of schedule and families out."""
    runs = complete_runs(read_logs(curves).logs)
    if ship:
        write_table(runs, workers)
        return
    facts: dict[str, object] = {
        "runs": len(runs.runs),
        "left out": "; ".join(runs.remarks) or "none",
        "workers": workers,
    }
    tables = {}
    for split in SPLITS:
        began = time.perf_counter()
        found = backtest(runs.runs, split=split, fractions=DEFAULT_FRACTIONS, workers=workers)
        facts[f"seconds of the backtest that leaves each {split} out"] = round(time.perf_counter() - began)
        tables[f"Leaving each {split} out: all families"] = (list(errors(found, "all")), ERRORS)
        by_family = [
            row
            for (family,), part in sorted(found.filter(forecaster="default").group_by("family"))
            for row in errors(part, str(family))
        ]
        tables[f"Leaving each {split} out: the default by family"] = (by_family, ERRORS)
        tables[f"Leaving each {split} out: what the default gains"] = (list(gains(found)), SKILL)
    tables[ALONE] = (list(alone(runs, workers)), ERRORS)
    tables["Speed"] = ([speed()], SPEED)
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    write("forecast", out, facts, tables, PACKAGES)


def errors(found: pl.DataFrame, family: str) -> Iterator[Row]:
    """Return the scores, in percent."""
    for row in scores(found).iter_rows(named=True):
        yield {
            "fraction": row["fraction"],
            "forecaster": row["forecaster"],
            "family": family,
            "n": row["n"],
            "median": round(100 * row["relative_median"], 2),
            "p90": round(100 * row["relative_p90"], 2),
            "worst": round(100 * row["worst"], 1),
            "bias": round(row["bias"], 3),
            "coverage": round(row["coverage"], 3),
            "width": round(100 * row["width"], 1),
            "score": round(100 * row["interval_score"], 1),
        }


def gains(found: pl.DataFrame) -> Iterator[Row]:
    """Return the skill of the default beside simpler forecasters."""
    for row in skills(found).filter(forecaster="default").iter_rows(named=True):
        yield {
            "fraction": row["fraction"],
            "baseline": row["baseline"],
            "n": row["n"],
            "n_groups": row["n_groups"],
            "skill": round(row["skill"], 3),
            "interval": f"{row['skill_low']:.3f} to {row['skill_high']:.3f}",
            "p": f"{row['p_adjusted']:.2g}",
        }


def long_log() -> Log:
    """Return a log of 100,000 noisy steps of a cosine."""
    steps, whole = np.arange(1, LONG + 1), round(LONG / SEEN)
    rate = 3e-4 * np.minimum(steps / 2000, 0.55 + 0.45 * np.cos(np.pi * steps / whole))
    noise = 0.02 * np.random.default_rng(0).standard_normal(LONG)
    return Log("long", steps, 2.5 + 30 * (steps + 300.0) ** -0.5 + noise, rate, last_step=whole)


def speed() -> Row:
    """Time the whole line-up beside one fit of a library, both on a log of their own each time."""

    def ours() -> object:
        log = long_log()
        return run_forecasters(log, planned(log), ())

    def theirs() -> object:
        log = long_log()
        late = log.steps > (1 - LATE_SHARE) * log.steps[-1]
        x = log.steps[late] / log.steps[-1]
        return curve_fit(lambda x, E, A, a: E + A * x**-a, x, log.loss[late], p0=(2.0, 1.0, 0.5))

    times = milliseconds({"ours": partial(ours), "scipy": partial(theirs)}, 7)
    return {
        "log": f"{LONG:,} steps, {SEEN:.0%} of the run, no siblings",
        "ours": Spread.of(times["ours"]),
        "scipy": Spread.of(times["scipy"]),
        "ratio": ratio(times["ours"], times["scipy"]),
    }


def without_siblings(runs: CompleteRuns, workers: int, fractions: tuple[float, ...]) -> pl.DataFrame:
    """Backtest every family without any siblings."""
    families = sorted({run.log.family for run in runs.runs})
    each = [[run for run in runs.runs if run.log.family == family] for family in families]
    return pl.concat(backtest(runs, split="family", fractions=fractions, workers=workers) for runs in each)


def alone(runs: CompleteRuns, workers: int) -> Iterator[Row]:
    """Return the scores of the default without siblings, each family's intervals made from the other families."""
    found = without_siblings(runs, workers, DEFAULT_FRACTIONS).filter(forecaster="default")
    error = (pl.col("predicted") / pl.col("final")).log().abs()
    known = found.filter(pl.col("predicted").is_not_null()).with_columns(error=error)
    for (family,), part in sorted(known.group_by("family")):
        others = known.filter(pl.col("family") != family)
        for (fraction,), mine in sorted(part.group_by("fraction")):
            theirs = others.filter(fraction=fraction)
            width = quantile_of(theirs) if len(theirs) else np.nan
            low, high = pl.col("predicted") * np.exp(-width), pl.col("predicted") * np.exp(width)
            yield from errors(mine.with_columns(low=low, high=high), str(family))


def quantile_of(known: pl.DataFrame) -> float:
    """Return the 90% quantile of errors, each family counting the same."""
    ordered = known.with_columns(weight=1 / pl.len().over("family")).sort("error")
    share = ordered["weight"].cum_sum() / ordered["weight"].sum()
    return float(ordered["error"][min(int((share < SHIPPED_LEVEL).sum()), len(ordered) - 1)])


def write_table(runs: CompleteRuns, workers: int) -> None:
    """Write the quantile of each forecaster's errors without any siblings."""
    found = without_siblings(runs, workers, SHIPPED_FRACTIONS)
    known = found.filter(pl.col("predicted").is_not_null(), pl.col("forecaster") != "default").with_columns(
        error=(pl.col("predicted") / pl.col("final")).log().abs()
    )
    path = Path(next(iter(toposcope.forecasting.__path__))) / TABLE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["forecaster", "fraction", "quantile"])
        for (forecaster,), part in sorted(known.group_by("forecaster")):
            # fewer runs are seen early; less that is seen never makes an error smaller
            widest, rows = 0.0, []
            for (fraction,), there in sorted(part.group_by("fraction"), reverse=True):
                widest = max(widest, quantile_of(there))
                rows.append([forecaster, fraction, f"{widest:.4g}"])
            writer.writerows(reversed(rows))
    print(path)


if __name__ == "__main__":
    main()
