"""How far off forecasts of the final loss are, on collections of real curves, and how long they take.

The table that widths without siblings are made of is made here: ``--ship`` writes it. It needs the curves of
``benchmarks/small_families.py`` beside the published ones, and is better with ``--logs``: a folder of logs of complete
runs, whose names begin with their family and two underscores.
"""

import csv
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np
import polars as pl
from scipy.optimize import curve_fit
from scipy.stats import beta
from sklearn.linear_model import QuantileRegressor

import toposcope.forecasting
from bench import RESULTS, Column, milliseconds, ratio, show, write
from result_files import Spread
from toposcope.engine.pool import TaskFailure, Workers
from toposcope.forecasting.forecaster import LoggedRun, RefusedError
from toposcope.forecasting.forecaster_set import run_forecasters
from toposcope.forecasting.forecasters.baseline_laws import LATE_SHARE
from toposcope.forecasting.held_out import NORMAL_WIDTH
from toposcope.forecasting.intervals import (
    COEFFICIENTS,
    HIGH,
    LOW,
    MAX_LOG_WIDTH,
    MIN_LOG_WIDTH,
    TABLE,
    WidthTable,
    evidence_of,
)
from toposcope.forecasting.siblings import complete_runs
from toposcope.logs import Run, read_log, read_logs
from toposcope.logs.schedules.schedule import planned
from toposcope.typing import Vector
from toposcope.wording import COVERAGE
from toposcope_experiments.backtest.backtesting import DEFAULT_FRACTIONS, SPLITS, backtest, scores, skills

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from odd_runs import HELD_OUT, LAWFUL
from odd_runs import logs as odd_logs

CURVES = Path(__file__).parents[1].parent / "shared" / "data" / "loss-curves" / "curves.parquet"
SEED, N_FOLDS, N_MADE_UP = 4000, 15, 16  # of the families left out together, and runs of a made-up one
MIN_ROWS, MIN_RUNS = 5, 20  # of a log, to be forecast; of a family, to be judged by itself
LEAST_ERROR, MIN_SIDE = 1e-3, 0.1  # in ln(loss), added to errors before their logarithm; factor of a side, at least
NAIVE = ("last", "power_law")
LONG, SEEN = 100_000, 0.4
"""Steps of the long log, and which share of its run they are."""
ALONE = "Without siblings: the pool, with the learning rates logged and without them; widths from families left out"
PACKAGES = ("numpy", "scipy", "polars", "scikit-learn")

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
        ("runs", "n"),
        ("forecasts", "forecasts"),
        ("pool, median %", "pool"),
        ("last, %", "last"),
        ("power_law, %", "power_law"),
        ("over the better of the two", "ratio"),
        ("coverage of 90%", "coverage"),
        ("its 95% interval", "interval"),
        ("half width, median %", "width"),
        ("over the median error", "over"),
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
@click.option("--logs", type=click.Path(exists=True, path_type=Path), help="Folder of logs named FAMILY__RUN.csv.")
@click.option("--alone", "only_alone", is_flag=True, help="Only forecasts without siblings.")
@click.option(
    "--every", type=click.IntRange(min=1), default=1, show_default=True, help="Only every n-th run of CURVES."
)
@click.option("--ship", is_flag=True, help="Write the shipped table of widths; do nothing else but what it needs.")
def main(
    curves: Path,
    workers: int,
    out: Path,
    small: Path | None,
    logs: Path | None,
    only_alone: bool,
    every: int,
    ship: bool,
) -> None:
    """Backtest every forecaster, leaving sizes, kinds of schedule and families out.

    With --small also without any siblings, on language models and others.
    """
    runs = complete_runs(read_logs(curves).logs[::every])
    found_alone = None
    if small is not None:
        found_alone = alone(runs_alone(runs.runs, small, logs, N_MADE_UP), workers)
        show(list(alone_errors(found_alone)), ALONE_COLUMNS, ALONE)
    if ship:
        if found_alone is None:
            raise click.UsageError("--ship needs --small: the table is also of runs that are no language models")
        made = found_alone.filter(pl.col("pool").is_not_null() & (pl.col("chosen") == "pool"))
        write_table(calibrated(made.with_columns(error=(pl.col("final") / pl.col("pool")).log())))
        return
    facts: dict[str, object] = {
        "runs": len(runs.runs),
        "left out": "; ".join(runs.remarks) or "none",
        "workers": workers,
    }
    tables = {}
    for split in () if only_alone else SPLITS:
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


def runs_alone(published: Sequence[LoggedRun], small: Path, logs: Path | None, n: int) -> list[LoggedRun]:
    """Return complete runs of many families: published, trained here, made up, and of a folder of logs."""
    made = [log for kind in (*LAWFUL, *HELD_OUT) for log in odd_logs(kind, n, SEED)]
    named = [replace(log, name=f"{log.name} {i}", family=f"made up: {log.name}") for i, log in enumerate(made)]
    found = [read_log(path) for path in sorted(logs.glob("*__*.csv"))] if logs is not None else []
    named += [replace(log, family=log.name.split("__")[0]) for log in found]
    runs = [*published, *complete_runs(read_logs(small).logs).runs]
    return [*runs, *(LoggedRun(log, planned(log, last_step=log.last_step or int(log.steps[-1]))) for log in named)]


def forecast_alone(run: LoggedRun) -> list[Row]:
    """Forecast a run without siblings from each fraction, with its learning rates and without them."""
    rows: list[Row] = []
    end = run.schedule.last_step
    whole = replace(run.log, table=None, finished=False, watched=None)
    blind = replace(whole, learning_rate=np.full(len(whole.steps), np.nan))
    for log in (whole, blind) if np.isfinite(whole.learning_rate).any() else (blind,):
        for fraction in DEFAULT_FRACTIONS:
            seen = log.until(fraction * end)
            if seen is None or len(seen.steps) < MIN_ROWS:
                continue
            schedule = planned(seen, last_step=end)
            try:
                results = run_forecasters(seen, schedule, ())
            except RefusedError as error:
                refused: Row = {"family": run.log.family, "run": run.log.name, "fraction": fraction}
                rows.append({**refused, "rate": log is whole, "refused": str(error), "final": whole.final_loss()[0]})
                continue
            found = results.forecasts
            known = evidence_of(seen, schedule)
            rows.append({
                "family": run.log.family, "run": run.log.name, "fraction": fraction, "rate": log is whole,
                "final": whole.final_loss()[0], "predicted": found["default"].loss, "chosen": results.chosen,
                **{name: found[name].loss for name in (*NAIVE, "pool") if name in found},
                "low": found["default"].low, "high": found["default"].high, "part": known.part,
                "noise": known.noise, **{f"x_{name}": value for name, value in known.values.items()},
            })  # fmt: skip
    return rows


def alone(runs: Sequence[LoggedRun], workers: int) -> pl.DataFrame:
    """Forecast every run without siblings."""
    parts: dict[LoggedRun, list[Row]] = {}
    with Workers(workers) as engine:
        for run, rows in engine.run(forecast_alone, runs):
            if isinstance(rows, TaskFailure):
                raise click.ClickException(rows.message)
            parts[run] = rows
    return pl.DataFrame([row for run in runs for row in parts[run]], infer_schema_length=None)


def held_out_widths(found: pl.DataFrame) -> pl.DataFrame:
    """Return the forecasts of the pool with ``down`` and ``up``, widths by the runs of other folds of families."""
    made = found.filter(pl.col("pool").is_not_null() & (pl.col("chosen") == "pool"))
    families = sorted(made["family"].unique())
    order = np.random.default_rng(SEED).permutation(len(families))
    fold_of = {families[j]: int(i) % N_FOLDS for i, j in enumerate(order)}
    made = made.with_columns(
        fold=pl.col("family").replace_strict(fold_of), error=(pl.col("final") / pl.col("pool")).log()
    )
    parts = []
    for (fold,), part in sorted(made.group_by("fold")):
        parts.append(with_widths(part, calibrated(made.filter(pl.col("fold") != fold))))
    return pl.concat(parts)


def with_widths(made: pl.DataFrame, table: WidthTable) -> pl.DataFrame:
    """Return forecasts with ``down`` and ``up`` by a table, as `toposcope.forecasting.intervals` makes them."""
    parts = []
    for (part,), rows in sorted(made.group_by("part")):
        width, noise = np.exp(logarithms(rows, table, str(part))), NORMAL_WIDTH * rows["noise"].to_numpy()
        down, up = (np.hypot(width * table[str(part)][side], noise) for side in (LOW, HIGH))
        parts.append(rows.with_columns(down=pl.Series(down), up=pl.Series(up)))
    return pl.concat(parts)


def logarithms(rows: pl.DataFrame, table: WidthTable, part: str) -> Vector:
    """Return the logarithm of the width of rows of one part."""
    log_width = sum(table[part][name] * rows[f"x_{name}"].to_numpy() for name in COEFFICIENTS[part])
    return np.clip(np.asarray(log_width, dtype=np.float64), MIN_LOG_WIDTH, MAX_LOG_WIDTH)


def calibrated(made: pl.DataFrame) -> WidthTable:
    """Return the table: a quantile regression of the logarithm of the errors on the evidence, for either part.

    A family of n forecasts counts as the root of n. The factors of the two sides leave 5%
    of the errors beyond each.
    """
    weight = 1 / pl.len().over("family").sqrt()
    table: WidthTable = {}
    for (part,), rows in sorted(made.with_columns(weight=weight).group_by("part")):
        names = COEFFICIENTS[str(part)]
        errors, weights = rows["error"].to_numpy(), rows["weight"].to_numpy()
        fit = QuantileRegressor(quantile=COVERAGE, alpha=0, fit_intercept=False)
        fit.fit(
            rows.select(f"x_{name}" for name in names).to_numpy(), np.log(np.abs(errors) + LEAST_ERROR),
            sample_weight=weights / weights.mean(),
        )  # fmt: skip
        table[str(part)] = {name: float(value) for name, value in zip(names, fit.coef_, strict=True)}
        ratio = errors / np.exp(logarithms(rows, table, str(part)))
        order = np.argsort(ratio)
        shares = np.cumsum(weights[order]) / weights.sum()
        ends = [
            float(ratio[order][np.searchsorted(shares, share)]) for share in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
        ]
        table[str(part)] |= {LOW: max(-ends[0], MIN_SIDE), HIGH: max(ends[1], MIN_SIDE)}
    return table


def alone_errors(found: pl.DataFrame) -> Iterator[Row]:
    """Return errors, coverage and widths of each family, by the others; those of few runs also pooled."""
    made = held_out_widths(found)
    made = made.with_columns(
        held=(pl.col("error") >= -pl.col("down")) & (pl.col("error") <= pl.col("up")),
        width=(pl.col("down") + pl.col("up")) / 2,
        few=pl.col("run").n_unique().over("family") < MIN_RUNS,
    )
    groups = [("all", made), ("all but made up", made.filter(~pl.col("family").str.contains("^(made up|power law)")))]
    groups += [(f"all, at {fraction:.0%}", part) for (fraction,), part in sorted(made.group_by("fraction"))]
    few = made.filter("few").with_columns(kind=pl.col("family").str.extract(r"^(made up|[a-z]+)"))
    groups += [(f"{kind}: families of under {MIN_RUNS} runs", part) for (kind,), part in sorted(few.group_by("kind"))]
    groups += [(str(family), part) for (family,), part in sorted(made.filter(~pl.col("few")).group_by("family"))]
    refused = found.filter(pl.col("pool").is_null()) if "refused" in found.columns else found.clear()
    none: Row = dict.fromkeys(column.key for column in ALONE_COLUMNS)
    yield none | {"family": "refused", "forecasts": len(refused), "n": refused["run"].n_unique()}
    for name, part in groups:
        off = {
            each: float(part.select((pl.col("final") / pl.col(each)).log().abs().median()).item())
            for each in ("pool", *NAIVE)
        }
        n, held = part["run"].n_unique(), float(part.select(pl.col("held").mean()).item())
        low, high = binomial(held, n)
        width = float(part.select(pl.col("width").median()).item())
        yield {
            "family": name, "n": n, "forecasts": len(part),
            **{each: f"{100 * value:.2f}" for each, value in off.items()},
            "ratio": f"{off['pool'] / min(off[each] for each in NAIVE):.2f}", "coverage": f"{held:.2f}",
            "interval": f"{low:.2f} to {high:.2f}", "width": f"{100 * width:.1f}", "over": f"{width / off['pool']:.1f}",
        }  # fmt: skip


def binomial(held: float, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share by Clopper and Pearson, each run counting as one."""
    k = held * n
    return float(beta.ppf(0.025, max(k, 1e-9), n - k + 1)), float(beta.ppf(0.975, k + 1, max(n - k, 1e-9)))


def write_table(table: WidthTable) -> None:
    """Write the shipped table."""
    path = Path(next(iter(toposcope.forecasting.__path__))) / TABLE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "name", "value"])
        for part, cells in table.items():
            writer.writerows([part, name, f"{value:.4g}"] for name, value in cells.items())
    print(path)


if __name__ == "__main__":
    main()
