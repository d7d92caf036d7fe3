"""Intervals of forecasts: conformal over sibling runs, or from a shipped table of errors."""

import csv
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

import numpy as np

from toposcope.forecasting.caching import cached
from toposcope.forecasting.forecaster import Forecast, Forecaster, RefusedError
from toposcope.forecasting.forecasters.baseline_laws import present_slope, residual
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL, SLOPE_SHARE
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Vector

LEVEL = 0.9
MIN_ERRORS = 8
"""Of siblings, for a conformal interval."""
MAX_PARTS, MIN_PART_ROWS = 20, 5
MAX_RISE = 1.1
"""The last loss over the lowest; noise does not rise by more."""
MAX_SPEED_UP = 2
"""Of a validation loss that rises."""
MIN_CHANGE = 1e-6
"""Range of the losses over the first; a loss that changes by less is constant."""
TABLE = "errors.csv"
FALLBACK = "last"
"""The forecaster of the widest intervals; used for those that the table lacks."""
LANGUAGE, SLOPE, HELD = "language", "slope", ", held"
"""Parts of the table: runs that fall as language models do, and all others; those whose rate is held to the end."""

CUTS = (0.3, 0.5, 0.75)
"""Shares of what was seen from which the run is forecast to the last step seen."""
LEVEL_SHARE, MIN_LEVEL_ROWS = 0.05, 3
"""Late share of the rows whose median these forecasts are compared with."""
OWN_ERRORS, UNLIKE_OWN_ERRORS, UNLIKE_FLOOR = 1.0, 2.0, 0.3
"""Half width over the largest of these errors at the horizon to come; for runs unlike those of the table; and the least
half width of these over ln(T / t), calibrated on made-up fine-tunes, toys and validation losses."""
MIN_LANGUAGE_STEPS, MIN_LANGUAGE_SIZE = 5000, 1e7
"""The language models of the table have so many steps or parameters at least."""
FROM_SCRATCH, EARLY = 1.3, 0.02
"""First over present loss of a run that learns from scratch, where its log begins within this share of its steps."""

ErrorTable = dict[tuple[str, str], dict[float, float]]
"""Part and forecaster -> share of the run seen past its warm-up -> 90% quantile of the errors."""


def with_interval(forecast: Forecast, log: Log, schedule: Schedule, own_error: float = 0.0) -> Forecast:
    """Return a forecast with its 90% interval, symmetric in the logarithm of the loss, and a remark on its source.

    Conformal (Vovk et al. 2005), with siblings held out by size: the ceil((n + 1) 0.9)-th smallest of the absolute
    errors of n siblings of the family, at least 8, each predicted at the same fraction without the runs of its
    size. Runs of one size are alike, so the guarantee is not exact; the coverage is measured. With fewer siblings the
    width is `shipped_width`; or the largest error of the few, or of siblings of other families, if these are wider; or
    by `own_error`, how far the same forecaster was off within this run (`error_in_run`), if that is.
    """
    relatives, strangers = np.abs(forecast.errors[forecast.relatives]), np.abs(forecast.errors[~forecast.relatives])
    if len(relatives) >= MIN_ERRORS:
        width, source = quantile(relatives), f"interval: errors on {len(relatives)} runs of the family"
        if np.ceil((len(relatives) + 1) * LEVEL) > len(relatives):
            source += ", too few for 90%: the largest of them"
    else:
        width, share = shipped_width(forecast, log, schedule), share_past_warm_up(log, schedule)
        when = f"at {share:.0%} past their warm-up" if share > 0 else "within their warm-up"
        source = f"interval: errors of other families' runs {when}; siblings would narrow it"
        if len(strangers) >= MIN_ERRORS:
            width = max(width, quantile(strangers))
        if len(relatives):
            width = max(width, float(relatives.max()))
            source += f", of which {len(relatives)} count where they are wider"
        unlike = is_unlike_table(log, schedule)
        own = own_error * (UNLIKE_OWN_ERRORS if unlike else OWN_ERRORS)
        if unlike:
            own = max(own, UNLIKE_FLOOR * _horizon(log, schedule))
        if own > width:
            width = own
            source = "interval: errors of the same forecaster at earlier steps of this run"
            source += ", twice as wide: few runs like it were measured" if unlike else "; siblings would narrow it"
    low, high = float(forecast.loss * np.exp(-width)), float(forecast.loss * np.exp(width))
    lowest, now = lowest_and_last(log)
    if now > MAX_RISE * lowest:
        high = max(high, now)
        source = f"the loss has risen from {lowest:.4g} to {now:.4g}: laws of learning runs do not apply; {source}"
    if log.is_validation and log.overfits:
        low, high = with_overfitting(log, schedule, low, high)
        source = f"the validation loss has risen since step {log.best[0]:,}: it may go on so, or fall back; {source}"
    return replace(forecast, low=low, high=high, remarks=(*forecast.remarks, source))


def error_in_run(forecaster: Forecaster, log: Log, schedule: Schedule) -> float:
    """Return the largest error of a forecaster from earlier steps of the run to the last one seen, in ln(loss).

    Each is scaled from its own horizon ln(t / cut) to the one to come, ln(T / t). It is 0 where none can be made.
    """
    horizon = _horizon(log, schedule)
    errors = [0.0]
    for seen, short in cached(log, schedule, "earlier steps", lambda: _earlier(log, schedule)):
        try:
            loss = forecaster.fit(seen, short, ()).loss
        except RefusedError:
            continue
        reached = float(np.median(log.loss[-max(MIN_LEVEL_ROWS, round(LEVEL_SHARE * len(log.loss))) :]))
        errors.append(abs(float(np.log(loss / reached))) * horizon / _horizon(seen, short))
    return max(errors)


def _earlier(log: Log, schedule: Schedule) -> list[tuple[Log, Schedule]]:
    """Return the beginnings of what was seen, and the schedule to its last step."""
    last = int(log.steps[-1])
    rates = schedule.rates[: last + 1]
    if last < 1 or not rates.max() > 0:
        return []
    short = Schedule(rates)
    seen = [log.until(cut * last) for cut in CUTS]
    return [(each, short) for each in seen if each is not None and each.steps[-1] > 0]


def _horizon(log: Log, schedule: Schedule) -> float:
    """Return ln(T / t), of the last step planned and the last one with a loss."""
    return float(np.log(max(schedule.last_step / max(int(log.steps[-1]), 1), 1.0)))


def is_unlike_table(log: Log, schedule: Schedule) -> bool:
    """Return whether a run is unlike the language models of the table: by its slope, its size, or where it begins."""
    if error_part(log, schedule).startswith(SLOPE):
        return True
    small = not log.parameters >= MIN_LANGUAGE_SIZE
    begins_early = log.steps[0] <= EARLY * schedule.last_step
    first, now = float(log.loss[:MIN_LEVEL_ROWS].max()), lowest_and_last(log)[1]
    return (small and schedule.last_step < MIN_LANGUAGE_STEPS) or (begins_early and first < FROM_SCRATCH * now)


def with_overfitting(log: Log, schedule: Schedule, low: float, high: float) -> tuple[float, float]:
    """Return an interval from the best validation loss at most to that of a rise that goes on twice as fast.

    Its pace is that since the best evaluation, or since the middle one after it, whichever is higher.
    """
    best, last, left = int(np.argmin(log.loss)), len(log.loss) - 1, schedule.last_step - int(log.steps[-1])
    paces = [
        (log.loss[last] - log.loss[begin]) / (log.steps[last] - log.steps[begin])
        for begin in (best, (best + last) // 2)
    ]
    high = max(high, float(log.loss[last] + MAX_SPEED_UP * max(*paces, 0) * max(left, 0)))
    return min(low, float(log.loss[best])), high


def lowest_and_last(log: Log) -> tuple[float, float]:
    """Return the lowest and the last of the medians over parts of the log, twenty at most, of five rows at least.

    The last is that of the last part or of the last quarter of its rows, whichever is lower: after a spike that the run
    has recovered from, few rows are low again.
    """
    medians, now = _levels(log)
    return min(*medians, now), now


def is_learning(log: Log) -> bool:
    """Return whether the loss changes at all, and has not risen: half of the way back, or while training overfits."""
    first, (lowest, last) = _levels(log)[0][0], lowest_and_last(log)
    diverges = last > MAX_RISE * lowest and last - lowest > (first - lowest) / 2
    constant = len(log.loss) >= MIN_PART_ROWS and float(np.ptp(log.loss)) <= MIN_CHANGE * first
    return not diverges and not constant and not (log.is_validation and log.overfits)


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
    low, high = np.log(forecast.low / forecast.loss), np.log(forecast.high / forecast.loss)
    steps = forecast.steps.astype(np.float64)
    growth = np.sqrt((steps - steps[0]) / max(steps[-1] - steps[0], 1.0))
    return forecast.curve * np.exp(low * growth), forecast.curve * np.exp(high * growth)


def shipped_width(forecast: Forecast, log: Log, schedule: Schedule) -> float:
    """Return the half width of a 90% interval without siblings, in the logarithm of the loss.

    It is the 90% quantile of the errors of the same forecaster on published and trained runs, by the share of the run
    that was seen past its warm-up. For runs that fall as language models do these are errors of language models; for
    others they are errors over `error_unit`, and the width is their quantile times this run's unit; at most as wide as
    within the warm-up.
    """
    part, share = error_part(log, schedule), share_past_warm_up(log, schedule)
    width = width_of(_shipped(), forecast.forecaster, part, share)
    if part.startswith(LANGUAGE) or share <= 0:
        return width
    widest = width_of(_shipped(), forecast.forecaster, part, 0.0)
    return min(width * error_unit(log, schedule) / forecast.loss, widest)


def error_part(log: Log, schedule: Schedule) -> str:
    """Return the part of the table for a run: by its prior, and by whether its rate is held at the peak to the end.

    A rate that is held may be one whose cool-down is not known; errors are then larger.
    """
    try:
        part = SLOPE if S1_ANNEAL.prior(log, schedule, ()).by_slope else LANGUAGE
    except RefusedError:
        part = LANGUAGE  # with too few points for any law the errors of the last value are wide for all
    return part + (HELD if _is_held(schedule) else "")


def _is_held(schedule: Schedule) -> bool:
    return bool(schedule.rates.min() == schedule.peak)


def share_past_warm_up(log: Log, schedule: Schedule) -> float:
    """Return the share of the steps after the warm-up that was seen; 0 within the warm-up.

    Until twice the steps of the warm-up it counts for less, in proportion: what was seen is then mostly the warm-up.
    """
    past = float(log.steps[-1]) - schedule.warm_up
    if past <= 0:
        return 0.0
    return min(past / max(schedule.last_step - schedule.warm_up, 1), 1.0) * min(past / max(schedule.warm_up, 1), 1.0)


def error_unit(log: Log, schedule: Schedule) -> float:
    """Return the scale of the errors of a run whose prior is from its slope, in the unit of the loss.

    sqrt((s (ln S1(T)/S1(t) + 0.5 [eta_t - eta_T] / eta_pk))^2 + r^2): the fall that is to come by its present slope s,
    with a whole cool-down where the rate is held, and the residual r of the law of ``s1``.

    Raises
    ------
    RefusedError
        If fewer than 5 points were seen.
    """
    ends = np.array([log.steps[-1], schedule.last_step])
    (begun, whole), (cooled, cold) = schedule.progress(ends), schedule.cooled(ends)
    to_cool = 1.0 if _is_held(schedule) else max(cold - cooled, 0.0)
    to_come = np.log(whole / begun) + SLOPE_SHARE * to_cool
    return float(np.hypot(present_slope(log, schedule) * to_come, residual(log, schedule)))


def width_of(table: ErrorTable, forecaster: str, part: str, share: float) -> float:
    """Return a quantile of a table of errors, interpolated in its logarithm; beyond its shares the nearest counts.

    Parameters
    ----------
    table : ErrorTable
    forecaster : str
        One that the table lacks is taken to err as `FALLBACK`.
    part : str
        As of `error_part`.
    share : float
        As of `share_past_warm_up`.
    """
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
