"""How far off forecasts of the final loss are, on collections of real curves, and how long they take.

The table of errors that intervals are made of without siblings is made here: ``--ship`` writes it. It needs the curves
of ``benchmarks/small_families.py`` beside the published ones.
"""

import csv
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
import polars as pl
from scipy.optimize import curve_fit

import toposcope.forecasting
from bench import RESULTS, Column, milliseconds, ratio, show, write
from result_files import Spread
from small_families import POWER_LAWS, TRAINED
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.forecasting.forecaster import LoggedRun, RefusedError
from toposcope.forecasting.forecaster_set import run_forecasters
from toposcope.forecasting.forecasters.baseline_laws import LATE_SHARE
from toposcope.forecasting.intervals import (
    LANGUAGE,
    SLOPE,
    TABLE,
    ErrorTable,
    error_part,
    error_unit,
    share_past_warm_up,
    width_of,
)
from toposcope.forecasting.siblings import complete_runs
from toposcope.logs import Run, read_logs
from toposcope.logs.schedules.schedule import planned
from toposcope_experiments.backtest.backtesting import DEFAULT_FRACTIONS, SPLITS, backtest, scores, skills

CURVES = Path(__file__).parents[1].parent / "shared" / "data" / "loss-curves" / "curves.parquet"
SHIPPED_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 0.9)
SHIPPED_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SHIPPED_LEVEL = 0.9
NEAR, MIN_ROWS = 1.5, 20
"""Shares within this factor of one of the table count for it, if there are so many forecasts."""
NAIVE = ("last", "power_law")
LONG, SEEN = 100_000, 0.4
"""Steps of the long log, and which share of its run they are."""
ALONE = "Without siblings, under the schedule that the beginning shows; intervals from the errors on other families"
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
ALONE_COLUMNS = [
    Column(title, key)
    for title, key in (
        ("family", "family"),
        ("seen", "fraction"),
        ("runs", "n"),
        ("default, median %", "default"),
        ("last, %", "last"),
        ("power_law, %", "power_law"),
        ("over the better of the two", "ratio"),
        ("coverage of 90%", "coverage"),
        ("half width, median %", "width"),
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
@click.option("--small", type=click.Path(exists=True, path_type=Path), help="Curves of benchmarks/small_families.py.")
@click.option(
    "--every", type=click.IntRange(min=1), default=1, show_default=True, help="Only every n-th run of CURVES."
)
@click.option("--ship", is_flag=True, help="Write the shipped table of errors; do nothing else but what it needs.")
def main(curves: Path, workers: int, out: Path, small: Path | None, every: int, ship: bool) -> None:
    """Backtest every forecaster, leaving sizes, kinds of schedule and families out.

    With --small also without any siblings, on language models and others.
    """
    runs = complete_runs(read_logs(curves).logs[::every])
    found_alone = None
    if small is not None:
        found_alone = alone((*runs.runs, *complete_runs(read_logs(small).logs).runs), workers)
        show(list(alone_errors(found_alone)), ALONE_COLUMNS, ALONE)
    if ship:
        if found_alone is None:
            raise click.UsageError("--ship needs --small: the table is also of runs that are no language models")
        write_table(calibrated(found_alone))
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
    if found_alone is not None:
        tables[ALONE] = (list(alone_errors(found_alone)), ALONE_COLUMNS)
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


def long_log() -> Run:
    """Return a log of 100,000 noisy steps of a cosine."""
    steps, whole = np.arange(1, LONG + 1), round(LONG / SEEN)
    rate = 3e-4 * np.minimum(steps / 2000, 0.55 + 0.45 * np.cos(np.pi * steps / whole))
    noise = 0.02 * np.random.default_rng(0).standard_normal(LONG)
    return Run("long", steps, 2.5 + 30 * (steps + 300.0) ** -0.5 + noise, rate, last_step=whole)


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


def forecast_alone(run: LoggedRun) -> list[Row]:
    """Forecast a run without siblings, under the schedule that its beginning shows, from each fraction."""
    rows: list[Row] = []
    for fraction in SHIPPED_FRACTIONS:
        seen = run.seen(fraction)
        if seen is None:
            continue
        schedule = planned(seen, last_step=run.schedule.last_step)
        part, share = error_part(seen, schedule), share_past_warm_up(seen, schedule)
        try:
            results = run_forecasters(seen, schedule, ())
        except RefusedError:
            continue
        for name, made in results.forecasts.items():
            unit = error_unit(seen, schedule) / made.loss if part.startswith(SLOPE) and share > 0 else 1.0
            rows.append({
                "family": run.log.family, "run": run.log.name, "fraction": fraction, "forecaster": name,
                "row": results.chosen if name == "default" else name,
                "predicted": made.loss, "low": made.low, "high": made.high, "final": run.final(), "part": part,
                "share": share, "unit": unit,
            })  # fmt: skip
    return rows


def alone(runs: Sequence[LoggedRun], workers: int) -> pl.DataFrame:
    """Forecast every run without siblings; the column ``error`` is |log(predicted / final)| over the unit."""
    parts: dict[LoggedRun, list[Row]] = {}
    with Workers(workers) as engine:
        for run, rows in engine.run(forecast_alone, runs):
            if isinstance(rows, TaskFailure):
                raise click.ClickException(rows.message)
            parts[run] = rows
    found = pl.DataFrame([row for run in runs for row in parts[run]])
    return found.with_columns(error=(pl.col("predicted") / pl.col("final")).log().abs() / pl.col("unit"))


def alone_errors(found: pl.DataFrame) -> Iterator[Row]:
    """Return the median errors of each family, and how often its intervals hold, made from the other families."""
    judged = found.filter(pl.col("fraction").is_in(DEFAULT_FRACTIONS), pl.col("forecaster").is_in(("default", *NAIVE)))
    judged = judged.join(judged.filter(forecaster="power_law"), on=["family", "run", "fraction"], how="semi")
    relative = (pl.col("predicted") / pl.col("final") - 1).abs() * 100
    for (family, fraction), part in sorted(judged.group_by("family", "fraction")):
        rows = part.filter(forecaster="default")
        table = calibrated(found.filter(pl.col("family") != family))
        width = np.array([half_width(table, row) for row in rows.iter_rows(named=True)])
        off = rows.select((pl.col("predicted") / pl.col("final")).log().abs()).to_series().to_numpy()
        median = {
            str(name): float(each.select(relative.median()).item()) for (name,), each in part.group_by("forecaster")
        }
        naive = min(median.get(name, np.inf) for name in NAIVE)
        yield {
            "family": family, "fraction": fraction, "n": len(rows),
            **{name: f"{median[name]:.2f}" if name in median else "" for name in ("default", *NAIVE)},
            "ratio": f"{median['default'] / naive:.2f}", "coverage": f"{(off <= width).mean():.2f}",
            "width": f"{100 * np.median(width):.1f}",
        }  # fmt: skip


def half_width(table: ErrorTable, row: Row) -> float:
    """Return the half width of an interval as `toposcope.forecasting.intervals.shipped_width` does."""
    key = str(row["row"]), str(row["part"])
    width = float(row["unit"]) * width_of(table, *key, float(row["share"]))  # type: ignore[arg-type]
    return width if key[1].startswith(LANGUAGE) else min(width, width_of(table, *key, 0.0))


def calibrated(found: pl.DataFrame) -> ErrorTable:
    """Return `quantiles`, each part and forecaster widened by what a family errs beyond the quantiles of the others.

    The factor is the 90% quantile, each family counting the same, of the errors over the width that the other families
    give: families differ by more than runs of one family do.
    """
    known = calibrating(found)
    table = quantiles(known)
    ratios = []
    for (family,), rows in sorted(known.filter(pl.col("share") > 0).group_by("family")):
        others = quantiles(known.filter(pl.col("family") != family))
        width = pl.Series([
            width_of(others, *key) if (key[1], key[0]) in others else np.nan
            for key in rows.select("forecaster", "part", "share").iter_rows()
        ])  # fmt: skip
        ratios.append(rows.with_columns(error=pl.col("error") / width).filter(pl.col("error").is_not_nan()))
    for key, rows in pl.concat(ratios).group_by("part", "forecaster"):
        factor = quantile_of(rows)
        cells = table[str(key[0]), str(key[1])]
        cells.update({share: width * factor for share, width in cells.items() if share > 0})
    return table


def calibrating(found: pl.DataFrame) -> pl.DataFrame:
    """Return the forecasts whose errors make the table.

    Errors of runs that fall as language models do are of the published ones, all others of the small networks; early,
    either may fall like the other. Made-up runs follow the laws, and teach nothing.
    """
    small, language = pl.col("family").is_in(list(TRAINED)), pl.col("part").str.starts_with(LANGUAGE)
    made_up = pl.col("family").is_in(list(POWER_LAWS))
    return found.filter(small != language, ~made_up, pl.col("forecaster") != "default")


def quantiles(known: pl.DataFrame) -> ErrorTable:
    """Return the 90% quantile of the errors by part, forecaster and share past the warm-up."""
    within = {name: errors for (name,), errors in known.filter(share=0).group_by("forecaster")}
    table: ErrorTable = {}
    for (part, forecaster), errors in sorted(known.group_by("part", "forecaster")):
        cells: dict[float, float] = {}
        widest = 0.0
        for share in reversed(SHIPPED_SHARES):
            there = errors.filter(pl.col("share").is_between(share / NEAR, share * NEAR))
            if len(there) >= MIN_ROWS:
                # less that is seen never makes an error smaller; over its unit it may
                widest = max(widest if str(part).startswith(LANGUAGE) else 0.0, quantile_of(there))
            if widest:
                cells[share] = widest
        there = errors.filter(share=0)
        cells[0.0] = quantile_of(there if len(there) >= MIN_ROWS else within[forecaster])
        if len(cells) > 1:
            table[str(part), str(forecaster)] = cells
    return table


def quantile_of(known: pl.DataFrame) -> float:
    """Return the 90% quantile of errors, each family counting the same."""
    ordered = known.with_columns(weight=1 / pl.len().over("family")).sort("error")
    share = ordered["weight"].cum_sum() / ordered["weight"].sum()
    return float(ordered["error"][min(int((share < SHIPPED_LEVEL).sum()), len(ordered) - 1)])


def write_table(table: ErrorTable) -> None:
    """Write the shipped table."""
    path = Path(next(iter(toposcope.forecasting.__path__))) / TABLE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "forecaster", "share", "quantile"])
        for (part, forecaster), cells in table.items():
            writer.writerows([part, forecaster, share, f"{cells[share]:.4g}"] for share in sorted(cells))
    print(path)


if __name__ == "__main__":
    main()
