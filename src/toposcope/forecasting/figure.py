"""The chart of a forecast report."""

import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.forecast import binned_medians, forecast_chart
from toposcope.forecasting.forecast_report import ForecastReport
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.forecasting.intervals import band
from toposcope.logs import Log
from toposcope.typing import Vector

MAX_SIBLINGS = 12
N_RATES = 300


def forecast_figure(report: ForecastReport) -> Chart:
    """Draw the loss seen, the predicted curve with its band, siblings, and the end of each forecaster."""
    log, schedule, default = report.log, report.schedule, report.default
    headline = report.headline()
    curve = ends = None
    if report.results is not None and default is not None:
        low, high = band(default)
        curve = pl.DataFrame({"step": default.steps, "loss": default.curve, "low": low, "high": high})
        final = {name: each.loss for name, each in report.results.forecasts.items() if name != DEFAULT}
        ends = pl.DataFrame({"forecaster": list(final), "loss": list(final.values())})
    return forecast_chart(
        pl.DataFrame({"step": log.steps, "loss": log.loss}),
        f"{headline[:1].upper()}{headline[1:]}",
        last_step=schedule.last_step,
        unit=log.unit,
        forecaster=report.chosen,
        curve=curve,
        ends=ends,
        siblings=_siblings(report),
        rates=_rates(report),
    )


def _siblings(report: ForecastReport) -> pl.DataFrame:
    """Return the nearest siblings; at equal shares of their steps runs are compared."""
    frames = [pl.DataFrame(schema={"run": pl.String, "step": pl.Float64, "loss": pl.Float64})]
    for run in _nearest(report):
        steps, losses = _smooth(run.log)
        stretched = steps * (report.schedule.last_step / run.schedule.last_step)
        frames.append(pl.DataFrame({"run": run.log.name, "step": stretched, "loss": losses}))
    return pl.concat(frames)


def _nearest(report: ForecastReport) -> list[LoggedRun]:
    """Return the siblings in the log's unit whose loss is nearest where it ends, those of its family first."""
    log = report.log
    now = log.final_loss()[0]

    def distance(run: LoggedRun) -> tuple[bool, float]:
        at = log.steps[-1] / report.schedule.last_step * run.schedule.last_step
        there = np.interp(at, *_smooth(run.log))
        return run.log.family != log.family, abs(float(np.log(there / now)))

    alike = [run for run in report.siblings if run.log.unit == log.unit]
    return sorted(alike, key=distance)[:MAX_SIBLINGS]


def _smooth(log: Log) -> tuple[Vector, Vector]:
    return binned_medians(log.steps.astype(np.float64), log.loss)


def _rates(report: ForecastReport) -> pl.DataFrame:
    """Return the learning rate, warm-up left out; the last step seen belongs to what is past and what is planned."""
    schedule, last = report.schedule, int(report.log.steps[-1])
    steps = np.linspace(schedule.warm_up, schedule.last_step, N_RATES).round().astype(np.int64)
    steps = np.unique(np.append(steps, np.clip(last, schedule.warm_up, schedule.last_step)))
    frame = pl.DataFrame({"step": steps, "rate": schedule.rates[steps] / schedule.peak})
    past, planned = frame.filter(pl.col("step") <= last), frame.filter(pl.col("step") >= last)
    return pl.concat([past.with_columns(planned=False), planned.with_columns(planned=True)])
