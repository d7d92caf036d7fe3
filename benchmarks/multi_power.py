"""The multi-power law on its authors' curves: fitted on three schedules, tried on six; and how fast it is.

    python benchmarks/multi_power.py [--quick]

Needs loss-curves/curves.parquet of the development data beside this repository.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench import Column, command, milliseconds, ratio, show, write
from result_files import Spread
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope_experiments.multi_power.law import MultiPowerLaw, fit_multi_power, summed_rate

Vector = NDArray[np.float64]
Row = dict[str, object]

CURVES = Path(__file__).parents[2] / "shared" / "data" / "loss-curves" / "curves.parquet"
FITTED = ("cosine_24000", "constant_24000", "wsdcon_9")
WARM_UP = 2160
"""Steps, as published; the curves begin after it."""
PUBLISHED = {"25M": 0.0038, "100M": 0.0044, "400M": 0.0057}
"""Mean absolute errors, nats."""

ACCURACY = (
    Column("size", "size"),
    Column("MAE, nats", "mae"),
    Column("published", "published"),
    Column("RMSE", "rmse"),
    Column("R²", "r2"),
    Column("worst, nats", "worst"),
    Column("in", "where"),
    Column("fit, ms", "fit"),
)
SPEED = (
    Column("schedule", "schedule"),
    Column("steps asked", "steps"),
    Column("every fall, ms", "all"),
    Column("grouped, ms", "grouped"),
    Column("ratio", "ratio"),
    Column("worst difference, nats", "difference"),
)


@command("multi_power", "one size, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure how exact and how fast the multi-power law is."""
    if not CURVES.exists():
        raise click.ClickException(f"{CURVES} is not there")
    repeats = 3 if quick else repeats
    curves = {size: dict(runs(size)) for size in (["25M"] if quick else PUBLISHED)}
    laws = {size: fit_multi_power([found[name] for name in FITTED]) for size, found in curves.items()}
    tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
        "Unseen schedules": ([accuracy(size, curves[size], laws[size], repeats) for size in curves], ACCURACY),
        "Sum over the falls": (list(speed(curves["25M"], laws["25M"], repeats)), SPEED),
    }
    for title, (found, columns) in tables.items():
        show(found, columns, title)
    facts = {
        "fitted on": ", ".join(FITTED),
        "unseen": "the six other schedules, errors at every logged step; MAE, RMSE and R² are means over schedules, the"
        " worst error is over all points",
        "warm-up": f"{WARM_UP} steps along a line, as published",
        "every fall": "the sum over all steps at which the rate changes, in NumPy; the schedule is new each time",
    }
    write("multi-power", out, facts, tables, ("toposcope", "numpy", "scipy"))


def runs(size: str) -> Iterator[tuple[str, LoggedRun]]:
    """Read the runs of a model size, by the name of their schedule."""
    frame = pl.read_parquet(CURVES).filter((pl.col("family") == "mpl") & pl.col("run").str.starts_with(f"{size}/"))
    for (name,), rows in frame.sort("step").group_by("run", maintain_order=True):
        steps = rows["step"].to_numpy().astype(np.int64)
        rates = rows["lr"].to_numpy()
        log = Run(str(name), steps, rows["loss"].to_numpy(), rates, last_step=int(steps[-1]))
        peak, last = rates.max(), f"{steps[-1]}:{rates[-1]}"
        yield str(name).split("/")[1], LoggedRun(log, planned(log, f"0:0,{WARM_UP}:{peak},{last}"))


def accuracy(size: str, found: dict[str, LoggedRun], law: MultiPowerLaw, repeats: int) -> Row:
    """Compare a law with the curves that it was not fitted to."""
    errors = {
        name: law.loss(run.schedule, run.log.steps) - run.log.loss for name, run in found.items() if name not in FITTED
    }
    worst = max(errors, key=lambda name: float(np.abs(errors[name]).max()))
    explained = [1 - (e**2).mean() / found[name].log.loss.var() for name, e in errors.items()]
    fit = milliseconds({"fit": partial(fit_multi_power, [found[name] for name in FITTED])}, repeats)["fit"]
    return {
        "size": size,
        "mae": round(float(np.mean([np.abs(e).mean() for e in errors.values()])), 5),
        "published": PUBLISHED[size],
        "rmse": round(float(np.mean([np.sqrt((e**2).mean()) for e in errors.values()])), 5),
        "r2": round(float(np.mean(explained)), 4),
        "worst": round(float(np.abs(errors[worst]).max()), 4),
        "where": worst,
        "fit": Spread.of(fit),
    }


def every_fall(law: MultiPowerLaw, rates: Vector, steps: NDArray[np.int64]) -> Vector:
    """Return what all falls have gained, each summed by itself."""
    falls = np.flatnonzero(np.diff(rates)) + 1
    drops, summed, found = rates[falls - 1] - rates[falls], np.concatenate([[0.0], np.cumsum(rates)]), []
    for t in steps:
        behind = falls[falls <= t]
        sums = summed[t + 1] - summed[behind]
        found.append(drops[: len(behind)] @ (1 - (1 + law.C * rates[behind] ** -law.g * sums) ** -law.b))
    return law.B * np.array(found)


def grouped(law: MultiPowerLaw, rates: Vector, steps: NDArray[np.int64]) -> Vector:
    """Return the losses of a schedule that was not seen before."""
    return law.loss(Schedule(rates), steps)


def speed(found: dict[str, LoggedRun], law: MultiPowerLaw, repeats: int) -> Iterator[Row]:
    """Time the law beside the sum over every fall."""
    for name in ("cosine_24000", "cosine_72000", "wsdld_20000_24000"):
        run = found[name]
        rates, steps = run.schedule.rates, run.log.steps
        start = law.L0 + law.A * (run.schedule.peak * summed_rate(run.schedule, steps)) ** -law.a
        exact = start - every_fall(law, rates, steps)
        times = milliseconds(
            {
                "all": partial(every_fall, law, rates, steps),
                "grouped": partial(grouped, law, rates, steps),
            },
            min(repeats, 3),
        )
        yield {
            "schedule": name,
            "steps": len(steps),
            "all": Spread.of(times["all"]),
            "grouped": Spread.of(times["grouped"]),
            "ratio": ratio(times["all"], times["grouped"]),
            "difference": f"{np.abs(exact - law.loss(run.schedule, steps)).max():.1e}",
        }


if __name__ == "__main__":
    main()
