"""Intervals of forecasts: conformal over sibling runs, or by what is known of the run alone."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from toposcope.analysis.health.evaluations import is_past_best
from toposcope.forecasting.forecaster import Forecast, RefusedError
from toposcope.forecasting.forecasters.baseline_laws import residual
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL
from toposcope.forecasting.forecasters.pool import fit_pool, horizon_of, scatter
from toposcope.forecasting.held_out import NORMAL_WIDTH, quantile
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.run import FINAL_SHARE
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector
from toposcope.wording import COVERAGE

# Intervals without siblings: docs/methods/forecasting.md
MIN_LANGUAGE_SIZE, MIN_FIRST_LOSS, MAX_FIRST_STEP = 1e7, 6.0, 100
"""Parameters of a language model that learns from scratch; the least first loss of one, in nats per token, where its
log begins by this step."""
MAX_RISE, NOISE_RANGE = 1.1, 4.0  # the last level over the lowest, and its noise, beyond which a loss has risen
MAX_SPEED_UP = 2  # of a validation loss that rises
FEW_ROWS_NOISE = 0.1  # share of the loss that the noise of fewer than five rows is taken to be

MIN_ERRORS = 8  # of siblings, for a conformal interval
MAX_PARTS, MIN_PART_ROWS, MIN_LEVEL_ROWS = 20, 5, 20
"""Parts of a log whose medians are its levels, their rows, and the rows of a log that has levels."""
MIN_CHANGE = 1e-6  # range of the losses over the first; a loss that changes by less is constant
TABLE = "widths.csv"
LANGUAGE, OTHER = "language", "other"
"""Parts of the table: language models that learn from scratch, and all other runs."""
LOW, HIGH = "below", "above"  # rows of the table: factors on the width, to either side
LEAST = 0.003  # in ln(loss): evidence is not told apart below
MIN_LOG_WIDTH, MAX_LOG_WIDTH = -7.0, 2.5
UNFITTED_WIDTH = 1.0  # in ln(loss), before the factors of the sides, at most where no law can be fitted yet

NATS = {"nats": 1.0, "bits": 1.44, "bits per byte": 0.36, "nats per byte": 0.25, "bits per character": 0.36}
"""Units of a loss in a nat per token; a token is taken to have four bytes."""
NOISE_OF_MEDIAN = 1.25  # standard deviation of a median over that of a mean, of normal numbers

WidthTable = dict[str, dict[str, float]]
"""Part -> kind of evidence, or side -> coefficient, or factor."""


class Evidence(NamedTuple):
    """What is known of how well one run can be forecast.

    Attributes
    ----------
    part : str
        Of the table.
    values : dict of float
        By the name that the table has for it; sizes of errors are logarithms of shares of the loss.
    own : float
        Root mean square of the errors, in ln(loss), that the pool made from earlier steps; NaN if there are none.
    loss : float
        What the pool forecasts; NaN if it refuses.
    noise : float
        Standard deviation of what is forecast, in ln(loss): of one evaluation, or of the mean of the last rows.
    """

    part: str
    values: Mapping[str, float]
    own: float
    loss: float
    noise: float


def with_interval(forecast: Forecast, log: Run, schedule: Schedule, *, jump: float = 0.0) -> Forecast:
    """Return a forecast with its 90% interval, and a remark on its source.

    With at least 8 siblings of the family it is conformal (Vovk et al. 2005), with siblings held out by size: the
    ceil((n + 1) 0.9)-th smallest of the absolute errors of n siblings, each predicted at the same fraction without the
    runs of its size. Else its widths are those of `widths_alone`; `jump` is that of ln(loss) where a new stage began.
    """
    relatives, strangers = np.abs(forecast.errors[forecast.relatives]), np.abs(forecast.errors[~forecast.relatives])
    if len(relatives) >= MIN_ERRORS:
        down = up = quantile(relatives)
        source = f"interval: errors on {len(relatives)} runs of the family"
        if np.ceil((len(relatives) + 1) * COVERAGE) > len(relatives):
            source += f", too few for {COVERAGE:.0%}: the largest of them"
    else:
        known = evidence_of(log, schedule)
        down, up = (float(np.hypot(width, jump)) for width in widths_alone(forecast, known))
        source = _source(known)
        counted = [quantile(strangers)] if len(strangers) >= MIN_ERRORS else []
        if len(relatives):
            counted.append(float(relatives.max()))
            source += f", of which {len(relatives)} count where they are wider"
        down, up = max([down, *counted]), max([up, *counted])
    low, high = float(forecast.loss * np.exp(-down)), float(forecast.loss * np.exp(up))
    remarks = (*forecast.remarks, source)
    if (rise := risen(log)) is not None:
        steps, levels = log.steps, log.loss
        if len(levels) >= MIN_LEVEL_ROWS:
            levels = np.array(_levels(log)[0])
            steps = np.array([part[-1] for part in np.array_split(log.steps, len(levels))])
        low, high = with_rise(steps, levels, schedule.last_step, min(low, rise[0]), max(high, rise[1]))
        words = (
            f"the loss has risen from {rise[0]:.4g} to {rise[1]:.4g}: it may go on so, or fall back, which no law says"
        )
        remarks = (words, *remarks)
    if log.is_validation and is_past_best(log):
        low, high = with_rise(log.steps, log.loss, schedule.last_step, low, high)
        words = f"the validation loss has risen since step {log.best[0]:,}: it may go on so, or fall back"
        remarks = (words, *remarks)
    return replace(forecast, low=low, high=high, remarks=remarks)


def widths_alone(forecast: Forecast, known: Evidence) -> tuple[float, float]:
    """Return how far an interval without siblings reaches down and up, in ln(loss).

    w = exp(b_0 + sum of b_k x_k over the evidence x), times the factor of either side. To it are added, as independent,
    the noise of what is forecast and how far the forecaster is from the pool, whose errors the table is of.
    """
    table = _shipped()[known.part]
    log_width = sum(table[name] * value for name, value in known.values.items())
    width = float(np.exp(np.clip(log_width, MIN_LOG_WIDTH, MAX_LOG_WIDTH)))
    apart = 0.0
    if np.isnan(known.loss):
        width = min(width, UNFITTED_WIDTH)
    else:
        apart = float(np.log(forecast.loss / known.loss))
    noise = NORMAL_WIDTH * known.noise
    down, up = (float(np.linalg.norm([width * table[side], noise, apart])) for side in (LOW, HIGH))
    return down, up


def evidence_of(log: Run, schedule: Schedule) -> Evidence:
    """Return what is known of how well a run can be forecast without siblings."""
    horizon = horizon_of(log, schedule)
    noise = scatter(log) if len(log.loss) >= MIN_PART_ROWS else FEW_ROWS_NOISE
    try:
        pool = fit_pool(log, schedule, ())
        own, spread, loss = pool.own, pool.spread, pool.final
        misfit = residual(log, schedule) / float(log.loss[-1])
    except RefusedError:
        own, spread, loss, misfit = np.nan, 0.0, np.nan, noise
    sizes = {
        "own": own if np.isfinite(own) else horizon,
        "spread": spread,
        "residual": misfit,
        "horizon": horizon,
    }
    values = {
        "one": 1.0,
        **{name: float(np.log(size + LEAST)) for name, size in sizes.items()},
        "rows": float(np.log(max(len(log.steps), MIN_LEVEL_ROWS))),
        "validation": float(log.is_validation),
        "held": float(schedule.is_held and schedule.origin != "unknown"),
        "unknown": float(schedule.origin == "unknown"),
    }
    rows_at_end = max(FINAL_SHARE * schedule.last_step * len(log.steps) / max(int(log.steps[-1]), 1), 1.0)
    of_end = noise if log.is_validation else noise / np.sqrt(rows_at_end)
    part = LANGUAGE if is_language_model(log, schedule) else OTHER
    names = COEFFICIENTS[part]
    return Evidence(part, {name: values[name] for name in names}, own, loss, float(of_end))


COEFFICIENTS = {
    LANGUAGE: ("one", "own", "residual", "horizon", "held", "unknown"),
    OTHER: ("one", "spread", "residual", "horizon", "rows", "validation"),
}
"""The evidence that widths of either part depend on; others were tried and told families that were left out no more."""


def _source(known: Evidence) -> str:
    """Return where the width of an interval without siblings comes from."""
    kind = "other language models" if known.part == LANGUAGE else "runs of other kinds"
    own = "" if np.isnan(known.own) else f", which missed its own later rows by {known.own:.1%} from earlier ones"
    return f"interval: from errors on {kind} as predictable as this one{own}; siblings would narrow it"


def is_language_model(log: Run, schedule: Schedule) -> bool:
    """Return whether a run is a language model that learns from scratch: it falls as they do, from as high or as large.

    Where no law can be fitted yet, from as high or as large.
    """
    try:
        if S1_ANNEAL.prior(log, schedule, ()).by_slope:
            return False
    except RefusedError:
        pass  # fewer rows than a law needs say nothing of how it falls
    if log.steps[0] > MAX_FIRST_STEP:
        return bool(log.parameters >= MIN_LANGUAGE_SIZE)
    return float(log.loss[:3].max()) >= MIN_FIRST_LOSS * NATS[log.unit]


def risen(log: Run) -> tuple[float, float] | None:
    """Return the lowest and the present level of a loss that has risen by a tenth and by more than its noise.

    Levels are those of `lowest_and_last`; of a short log they are the lowest row, and the lower of the last two. Of
    fewer than 5 rows the noise is not known, and taken to be a tenth.
    """
    lowest, now = lowest_and_last(log)
    n, noise = len(log.loss), row_noise(log.loss)
    if n < MIN_LEVEL_ROWS:
        lowest, now = float(log.loss.min()), float(log.loss[-2:].min())
    if n < MIN_PART_ROWS:
        now, noise = float(log.loss[-1]), FEW_ROWS_NOISE * lowest
    elif n >= MIN_LEVEL_ROWS:
        noise *= NOISE_OF_MEDIAN / np.sqrt(MIN_PART_ROWS)
    return (lowest, now) if now > max(MAX_RISE * lowest, lowest + NOISE_RANGE * noise) else None


def with_rise(steps: Steps, losses: Vector, last_step: int, low: float, high: float) -> tuple[float, float]:
    """Return an interval from the lowest loss at most to that of a rise that goes on to the last step twice as fast.

    Its pace is that since the lowest loss, or since the middle one after it, whichever is higher.
    """
    lowest, last = int(np.argmin(losses)), len(losses) - 1
    paces = [(losses[-1] - losses[i]) / (steps[-1] - steps[i]) for i in (lowest, (lowest + last) // 2) if i < last]
    high = max(high, float(losses[last] + MAX_SPEED_UP * max([*paces, 0.0]) * max(last_step - steps[last], 0)))
    return min(low, float(losses[lowest])), high


def lowest_and_last(log: Run) -> tuple[float, float]:
    """Return the lowest and the last of the medians over parts of the log, twenty at most, of five rows at least.

    The last is that of the last part or of the last quarter of its rows, whichever is lower: after a spike that the run
    has recovered from, few rows are low again.
    """
    medians, now = _levels(log)
    return min(*medians, now), now


def is_learning(log: Run) -> bool:
    """Return whether the loss changes at all, and has not risen: half of the way back, or while training overfits."""
    first, rise = _levels(log)[0][0], risen(log)
    first = first if len(log.loss) >= MIN_LEVEL_ROWS else float(log.loss[0])
    diverges = rise is not None and rise[1] - rise[0] > (first - rise[0]) / 2
    constant = len(log.loss) >= MIN_PART_ROWS and float(np.ptp(log.loss)) <= MIN_CHANGE * first
    return not diverges and not constant and not (log.is_validation and is_past_best(log))


def _levels(log: Run) -> tuple[list[float], float]:
    """Return the median of each part of the log, and the level that the last part ends at."""
    parts = np.array_split(log.loss, min(MAX_PARTS, max(1, len(log.loss) // MIN_PART_ROWS)))
    medians = [float(np.median(part)) for part in parts]
    return medians, min(medians[-1], float(np.median(parts[-1][-max(1, len(parts[-1]) // 4) :])))


def band(forecast: Forecast) -> tuple[Vector, Vector]:
    """Return the ends of the interval along the curve, shape (m,) each.

    Calibrated at the end alone. Before it the width is taken to grow with the square root of the steps predicted.
    """
    low, high = np.log(forecast.low / forecast.loss), np.log(forecast.high / forecast.loss)
    steps = forecast.steps.astype(np.float64)
    growth = np.sqrt((steps - steps[0]) / max(steps[-1] - steps[0], 1.0))
    return forecast.curve * np.exp(low * growth), forecast.curve * np.exp(high * growth)


@lru_cache(maxsize=1)
def _shipped() -> WidthTable:
    """Read the shipped table. ``benchmarks/forecast.py`` makes it."""
    table: WidthTable = {}
    text = (files("toposcope.forecasting") / TABLE).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        table.setdefault(row["part"], {})[row["name"]] = float(row["value"])
    return table
