"""Intervals of forecasts: conformal over sibling runs, or from a shipped table of errors."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from toposcope.analysis.health.evaluations import is_past_best
from toposcope.forecasting.forecaster import Forecast, Forecaster, RefusedError
from toposcope.forecasting.forecasters.baseline_laws import present_slope, residual
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL, SLOPE_SHARE
from toposcope.forecasting.held_out import quantile
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.caching import cached
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Steps, Vector
from toposcope.wording import COVERAGE

# Intervals without siblings: docs/methods/forecasting.md
CUTS = (0.3, 0.55, 0.75)  # shares of what was seen from which the run is forecast to the last step seen
UNSEEN = 0.25
"""Half width over ln(T / t) for what nothing before shows: the 90% quantile of what errors were beyond all else, at the
worst fraction, over seven synthetic families and six kinds of small trainings, each counting the same."""
MIN_LANGUAGE_SIZE, MIN_FIRST_LOSS, MAX_FIRST_STEP = 1e7, 6.0, 100
"""Parameters of the language models of the table; the least first loss, in nats per token, of one that learns from
scratch, where its log begins by this step."""
MAX_RISE, NOISE_RANGE = 1.1, 4.0  # the last level over the lowest, and its noise, beyond which a loss has risen
MAX_SPEED_UP = 2  # of a validation loss that rises
FEW_ROWS_NOISE = 0.1  # share of the loss that the noise of fewer than five rows is taken to be

MIN_ERRORS = 8  # of siblings, for a conformal interval
MAX_PARTS, MIN_PART_ROWS, MIN_LEVEL_ROWS = 20, 5, 20
"""Parts of a log whose medians are its levels, their rows, and the rows of a log that has levels."""
MIN_CHANGE = 1e-6  # range of the losses over the first; a loss that changes by less is constant
TABLE = "errors.csv"
FALLBACK = "last"  # the forecaster of the widest intervals; used for those that the table lacks
LANGUAGE, SLOPE, HELD = "language", "slope", ", held"
"""Parts of the table: runs that fall as language models do, and all others; those whose rate is held to the end."""

END_SHARE, MIN_END_ROWS = 0.05, 3  # late share of the rows whose median these forecasts are compared with
NATS = {"nats": 1.0, "bits": 1.44, "bits per byte": 0.36, "nats per byte": 0.25, "bits per character": 0.36}
"""Units of a loss in a nat per token; a token is taken to have four bytes."""
NOISE_OF_MEDIAN = 1.25  # standard deviation of a median over that of a mean, of normal numbers

ErrorTable = dict[tuple[str, str], dict[float, float]]
"""Part and forecaster -> share of the run seen past its warm-up -> 90% quantile of the errors."""


class OwnError(NamedTuple):
    """Of a forecast from an earlier step to the last one seen: |ln(predicted / seen)|, ln(t / cut), `shipped_width`."""

    error: float
    horizon: float
    shipped: float


def with_interval(
    forecast: Forecast,
    log: Run,
    schedule: Schedule,
    *,
    own_errors: Sequence[OwnError] = (),
    spread: float = 0.0,
    jump: float = 0.0,
) -> Forecast:
    """Return a forecast with its 90% interval, symmetric in the logarithm of the loss, and a remark on its source.

    Conformal (Vovk et al. 2005), with siblings held out by size: the ceil((n + 1) 0.9)-th smallest of the absolute
    errors of n siblings of the family, at least 8, each predicted at the same fraction without the runs of its size.
    """
    relatives, strangers = np.abs(forecast.errors[forecast.relatives]), np.abs(forecast.errors[~forecast.relatives])
    if len(relatives) >= MIN_ERRORS:
        width, source = quantile(relatives), f"interval: errors on {len(relatives)} runs of the family"
        if np.ceil((len(relatives) + 1) * COVERAGE) > len(relatives):
            source += f", too few for {COVERAGE:.0%}: the largest of them"
    else:
        width, source = width_alone(forecast, log, schedule, own_errors, spread, jump)
        if len(strangers) >= MIN_ERRORS:
            width = max(width, quantile(strangers))
        if len(relatives):
            width = max(width, float(relatives.max()))
            source += f", of which {len(relatives)} count where they are wider"
    low, high = float(forecast.loss * np.exp(-width)), float(forecast.loss * np.exp(width))
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


def width_alone(
    forecast: Forecast, log: Run, schedule: Schedule, own_errors: Sequence[OwnError], spread: float, jump: float
) -> tuple[float, str]:
    """Return the half width without siblings, and its source; parameters as of `with_interval`."""
    shipped, share = shipped_width(forecast, log, schedule), share_past_warm_up(log, schedule)
    when = f"at {share:.0%} past their warm-up" if share > 0 else "within their warm-up"
    if not jump and is_like_table(log, schedule):
        ratio = max((1.0, *(own.error / own.shipped for own in own_errors)))
        times = f"{ratio:.2g} times the " if ratio > 1 else ""
        return shipped * ratio, f"interval: {times}errors of other families' runs {when}; siblings would narrow it"
    horizon = _horizon(log, schedule)
    own_error = max((own.error * horizon / own.horizon for own in own_errors), default=0.0)
    source = "interval: errors earlier in this run and between laws, and of few runs like it; siblings would narrow it"
    return float(np.linalg.norm([shipped, spread, own_error, jump, UNSEEN * horizon])), source


def own_errors(forecaster: Forecaster, log: Run, schedule: Schedule) -> list[OwnError]:
    """Return how far a forecaster was off from earlier steps of a run to the last one seen, where it did not refuse."""
    last = int(log.steps[-1])
    if not schedule.rates[: last + 1].any():
        return []
    short = cached(log, schedule, "until now", lambda: Schedule(schedule.rates[: last + 1]))
    end = float(np.median(log.loss[-max(MIN_END_ROWS, round(END_SHARE * len(log.loss))) :]))
    errors = []
    for cut in CUTS:
        seen = cached(log, schedule, ("until", cut), partial(log.until, cut * last))
        if seen is None or not 0 < seen.steps[-1] < last:
            continue
        try:
            forecast = forecaster.fit(seen, short, ())
        except RefusedError:
            continue
        error, width = abs(float(np.log(forecast.loss / end))), shipped_width(forecast, seen, short)
        errors.append(OwnError(error, _horizon(seen, short), width))
    return errors


def _horizon(log: Run, schedule: Schedule) -> float:
    """Return ln(T / t), of the last step planned and the last one with a loss."""
    return float(np.log(max(schedule.last_step / max(int(log.steps[-1]), 1), 1.0)))


def is_like_table(log: Run, schedule: Schedule) -> bool:
    """Return whether a run is like the language models of the table: it falls as they do, and begins or is as large."""
    if not error_part(log, schedule).startswith(LANGUAGE):
        return False
    if log.steps[0] > MAX_FIRST_STEP:
        return bool(log.parameters >= MIN_LANGUAGE_SIZE)
    return float(log.loss[:MIN_END_ROWS].max()) >= MIN_FIRST_LOSS * NATS[log.unit]


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


def shipped_width(forecast: Forecast, log: Run, schedule: Schedule) -> float:
    """Return the half width of a 90% interval without siblings, in the logarithm of the loss."""
    part, share = error_part(log, schedule), share_past_warm_up(log, schedule)
    width = width_of(_shipped(), forecast.forecaster, part, share)
    if part.startswith(LANGUAGE) or share <= 0:
        return width
    widest = width_of(_shipped(), forecast.forecaster, part, 0.0)
    return min(width * error_unit(log, schedule) / forecast.loss, widest)


def error_part(log: Run, schedule: Schedule) -> str:
    """Return the part of the table for a run: by its prior, and by whether its rate is held at the peak to the end.

    A rate that is held may be one whose cool-down is not known; errors are then larger.
    """
    try:
        part = SLOPE if S1_ANNEAL.prior(log, schedule, ()).by_slope else LANGUAGE
    except RefusedError:
        part = LANGUAGE  # with too few points for any law the errors of the last value are wide for all
    return part + (HELD if schedule.is_held else "")


def share_past_warm_up(log: Run, schedule: Schedule) -> float:
    """Return the share of the steps after the warm-up that was seen; 0 within the warm-up.

    Until twice the steps of the warm-up it counts for less, in proportion: what was seen is then mostly the warm-up.
    """
    past = float(log.steps[-1]) - schedule.warm_up
    if past <= 0:
        return 0.0
    return min(past / max(schedule.last_step - schedule.warm_up, 1), 1.0) * min(past / max(schedule.warm_up, 1), 1.0)


def error_unit(log: Run, schedule: Schedule) -> float:
    """Return the scale of the errors of a run whose prior is from its slope, in the unit of the loss.

    sqrt((s (ln S1(T)/S1(t) + 0.5 [eta_t - eta_T] / eta_pk))^2 + r^2): the fall that is to come by its present slope s,
    with a whole cool-down where the rate is held, and the residual r of the law of ``s1``.
    """
    ends = np.array([log.steps[-1], schedule.last_step])
    (begun, whole), (cooled, cold) = schedule.progress(ends), schedule.cooled(ends)
    to_cool = 1.0 if schedule.is_held else max(cold - cooled, 0.0)
    to_come = np.log(whole / begun) + SLOPE_SHARE * to_cool
    return float(np.hypot(present_slope(log, schedule) * to_come, residual(log, schedule)))


def width_of(table: ErrorTable, forecaster: str, part: str, share: float) -> float:
    """Return a quantile of a table of errors, interpolated in its logarithm; beyond its shares the nearest counts."""
    known = table.get((part, forecaster)) or table[part, FALLBACK]
    if share <= 0:
        return known[0.0]
    shares, widths = (np.log(column) for column in zip(*sorted(known.items())[1:], strict=True))
    return float(np.exp(np.interp(np.log(share), shares, widths)))


@lru_cache(maxsize=1)
def _shipped() -> ErrorTable:
    """Read the shipped table. ``benchmarks/forecast.py`` makes it."""
    table: ErrorTable = {}
    text = (files("toposcope.forecasting") / TABLE).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        table.setdefault((row["part"], row["forecaster"]), {})[float(row["share"])] = float(row["quantile"])
    return table
