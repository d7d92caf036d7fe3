"""Intervals of forecasts: conformal over sibling runs, or from a shipped table of errors."""

import csv
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

import numpy as np

from toposcope.forecasting.forecaster import Forecast, fraction_seen
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

LEVEL = 0.9
MIN_ERRORS = 8
"""Of siblings, for a conformal interval."""
MAX_PARTS, MIN_PART_ROWS = 20, 5
MAX_RISE = 1.1
"""The last loss over the lowest; noise does not rise by more."""
MIN_CHANGE = 1e-6
"""Range of the losses over the first; a loss that changes by less is constant."""
TABLE = "errors.csv"
FALLBACK = "last"
"""The forecaster of the widest intervals; used for those that the table lacks."""


def with_interval(forecast: Forecast, log: Log, schedule: Schedule) -> Forecast:
    """Return a forecast with its 90% interval, symmetric in the logarithm of the loss, and a remark on its source.

    Conformal (Vovk et al. 2005), with siblings held out by size: the ceil((n + 1) 0.9)-th smallest of the absolute
    errors of n siblings of the family, at least 8, each predicted at the same fraction without the runs of its
    size. Runs of one size are alike, so the guarantee is not exact; the coverage is measured. With fewer siblings the
    width is from the shipped table, by fraction; or the largest error of the few, or of siblings of other families, if
    these are wider.
    """
    relatives, strangers = np.abs(forecast.errors[forecast.relatives]), np.abs(forecast.errors[~forecast.relatives])
    fraction = fraction_seen(log, schedule)
    if len(relatives) >= MIN_ERRORS:
        width, source = quantile(relatives), f"interval: errors on {len(relatives)} runs of the family"
        if np.ceil((len(relatives) + 1) * LEVEL) > len(relatives):
            source += ", too few for 90%: the largest of them"
    else:
        width = shipped(forecast.forecaster, fraction)
        source = f"interval: errors at {fraction:.0%} of other families' runs; siblings would narrow it"
        if len(strangers) >= MIN_ERRORS:
            width = max(width, quantile(strangers))
        if len(relatives):
            width = max(width, float(relatives.max()))
            source += f", of which {len(relatives)} count where they are wider"
    low, high = float(forecast.loss * np.exp(-width)), float(forecast.loss * np.exp(width))
    lowest, now = lowest_and_last(log)
    if now > MAX_RISE * lowest:
        high = max(high, now)
        source = f"the loss has risen from {lowest:.4g} to {now:.4g}: laws of learning runs do not apply; {source}"
    return replace(forecast, low=low, high=high, remarks=(*forecast.remarks, source))


def lowest_and_last(log: Log) -> tuple[float, float]:
    """Return the lowest and the last of the medians over parts of the log, twenty at most, of five rows at least.

    The last is that of the last part or of the last quarter of its rows, whichever is lower: after a spike that the run
    has recovered from, few rows are low again.
    """
    medians, now = _levels(log)
    return min(*medians, now), now


def is_learning(log: Log) -> bool:
    """Return whether the loss changes at all, and has not risen half of the way back from its lowest."""
    first, (lowest, last) = _levels(log)[0][0], lowest_and_last(log)
    diverges = last > MAX_RISE * lowest and last - lowest > (first - lowest) / 2
    constant = len(log.loss) >= MIN_PART_ROWS and float(np.ptp(log.loss)) <= MIN_CHANGE * first
    return not diverges and not constant


def _levels(log: Log) -> tuple[list[float], float]:
    """Return the median of each part of the log, and the level that the last part ends at."""
    parts = np.array_split(log.loss, min(MAX_PARTS, max(1, len(log.loss) // MIN_PART_ROWS)))
    medians = [float(np.median(part)) for part in parts]
    return medians, min(medians[-1], float(np.median(parts[-1][-max(1, len(parts[-1]) // 4) :])))


def quantile(errors: Vector, level: float = LEVEL) -> float:
    """Return the ceil((n + 1) level)-th smallest of n absolute errors, or the largest."""
    k = min(int(np.ceil((len(errors) + 1) * level)), len(errors))
    return float(np.sort(errors)[k - 1])


def band(forecast: Forecast) -> tuple[Vector, Vector]:
    """Return the ends of the interval along the curve, shape (m,) each.

    Calibrated at the end alone. Before it the width is taken to grow with the square root of the steps predicted.
    """
    width = np.log(forecast.high / forecast.loss)
    steps = forecast.steps.astype(np.float64)
    growth = np.sqrt((steps - steps[0]) / max(steps[-1] - steps[0], 1.0))
    return forecast.curve * np.exp(-width * growth), forecast.curve * np.exp(width * growth)


def shipped(forecaster: str, fraction: float) -> float:
    """Return the 90% quantile of |log(predicted / final)| over three published families, interpolated in its logarithm.

    Beyond the fractions of the table the nearest counts.
    """
    table = _table()
    known = table.get(forecaster, table[FALLBACK])
    fractions, widths = (np.log(column) for column in zip(*sorted(known.items()), strict=True))
    return float(np.exp(np.interp(np.log(fraction), fractions, widths)))


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[float, float]]:
    """Read the shipped table: forecaster -> fraction -> quantile. It is made by ``benchmarks/forecast.py``."""
    quantiles: dict[str, dict[float, float]] = {}
    text = (files("toposcope.forecasting") / TABLE).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        quantiles.setdefault(row["forecaster"], {})[float(row["fraction"])] = float(row["quantile"])
    return quantiles
