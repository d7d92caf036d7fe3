"""The complete runs that a forecast may borrow from; whether two logs are of one run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import Forecast, LoggedRun
from toposcope.least_squares import NORMAL
from toposcope.logs import Logs, Run, read_logs
from toposcope.logs.finding import find_sources
from toposcope.logs.formats import trainer_state
from toposcope.logs.schedules.logged import DIGIT_ROUNDING
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope.logs.watched import FAILED, TRAINING
from toposcope.typing import Steps, Vector
from toposcope.wording import counted, joined

# Logs of one run: docs/forecast.md; 50 published runs and 6,000 pairs of different ones
MAX_CHANCE = 1e-6  # probability that two runs agree by chance in as many rows as two logs of one do
MIN_SEED_DIFFERENCE, MAX_SEED_DIFFERENCE = 2e-4, 2e-3  # share of the loss by which a seed alone changes it
MIN_AGREEING = 0.95  # share of the rows in which logs of one run agree; a row may be written twice, or damaged
SHARED_NOISE = 0.5  # share of its noise by which a run differs from one of the same batches in the same order

MIN_TOLERANCE = 5e-5
"""Share of the loss: logs of one run may differ so far by round-off, or by the unit they were converted from."""
MAX_TOLERANCE = 0.01  # share of the loss: logs that were rounded more coarsely show no difference between two runs
MAX_ROWS = 2000  # rows, evenly chosen, by which logs are compared
MIN_COMPLETE_SHARE = 0.85  # share of the planned steps that the log of a run must reach, for its end to be known
MAX_SIZE_DIFFERENCE = 0.05  # relative: sizes are logged with two digits, as in "0.14M parameters"
MAX_LOSS_DIFFERENCE = 0.25  # of ln(loss) in the median over the steps of both; runs of one configuration are far nearer
MAX_REMARKS = 3  # remarks of one kind that are written out


def is_same_run(one: Run, other: Run) -> bool:
    """Return whether two logs are of one run: they agree where both have rows or, without any, have one name.

    Steps that one log counts from 0 and the other from 1 are brought in line where that brings steps in common. Where
    the logs have hardly one in common as they are, the finer is interpolated at the steps of the coarser.
    """
    if one.steps[0] > other.steps[-1] or other.steps[0] > one.steps[-1]:
        return one.name == other.name
    shifts = dict.fromkeys((0, 1, -1, int(other.steps[0] - one.steps[0])))
    # of one name, to agree is enough
    max_chance = 1.0 if one.name == other.name else MAX_CHANCE
    return any(_agree(one, other, shift, max_chance) for shift in shifts)


def with_events(log: Run, path: Path) -> Run:
    """Return the log of a Trainer's folder with what it wrote after its last checkpoint, where TensorBoard has it."""
    if not path.is_dir() or not trainer_state.states(path):
        return log
    for source in find_sources(path).sources:
        if source.path == path or source.is_text or path not in source.path.parents:
            continue
        try:
            others = read_logs(source.path).logs
        except ToposcopeError as error:
            log = replace(log, remarks=(*log.remarks, f"not used: {error}"))
            continue
        for other in others:
            if other.last_seen > log.last_seen and is_same_run(log, replace(other, name=log.name)):
                remark = f"what follows the last checkpoint, at step {log.last_seen:,}, is read from {source.path}"
                log = replace(merged(log, other), source=log.source, remarks=(*log.remarks, remark))
    return log


def merged(log: Run, other: Run) -> Run:
    """Return what two logs say of one run: the longer one, and what only the other has."""
    longer, shorter = (log, other) if log.last_seen >= other.last_seen else (other, log)
    assert longer.table is not None
    assert shorter.table is not None
    plans = [step for step in (longer.last_step, shorter.last_step) if step is not None and step >= longer.last_seen]
    table = longer.table.filled_from(shorter.table)
    return replace(longer, name=log.name, last_step=plans[0] if plans else None, table=table)


def ends_alike(one: Run, other: Run) -> bool:
    """Return whether two logs end at one step, but for as many steps as lie between two of their rows."""
    last = [log.steps[-3:].tolist() for log in (one, other)]
    apart = max((b - a for steps in last for a, b in pairwise(steps)), default=0)
    return bool(abs(last[0][-1] - last[1][-1]) <= max(apart, 0))


def _agree(one: Run, other: Run, shift: int, max_chance: float) -> bool:
    """Return whether two logs agree, the steps of the second less `shift` being those of the first."""
    steps = other.steps - shift
    place = np.minimum(np.searchsorted(steps, one.steps), len(steps) - 1)
    i = np.flatnonzero(steps[place] == one.steps)  # rows of steps in common
    j = place[i]
    if len(i) >= 5 or len(i) in (len(one.steps), len(other.steps)):
        few = _evenly(len(i))
        agree = _same_losses(one.loss[i[few]], other.loss[j[few]], max_chance)
    elif shift:
        return False  # nothing says that steps are counted from another number
    else:
        agree = _interpolates(one, other, max_chance) or _interpolates(other, one, max_chance)
    return agree and _same_rates(one, other, shift)


def _interpolates(fine: Run, coarse: Run, max_chance: float) -> bool:
    """Return whether the rows of one log lie on the lines between those of another."""
    inside = np.flatnonzero((coarse.steps >= fine.steps[0]) & (coarse.steps <= fine.steps[-1]))
    rows = inside[_evenly(len(inside))]
    return _same_losses(np.interp(coarse.steps[rows], fine.steps, fine.loss), coarse.loss[rows], max_chance)


def _same_losses(one: Vector, other: Vector, max_chance: float) -> bool:
    """Return whether losses agree to the last digit, in more rows than those of two runs would by chance."""
    n = len(one)
    if not n:
        return False
    apart = np.abs(one - other)
    # most pairs differ so plainly that neither quantile nor median is needed
    if (apart > MAX_TOLERANCE * one.max()).sum() > (1 - MIN_AGREEING) * (n - 1) + 1:
        return False
    level = float(np.median(one))
    if np.quantile(apart, MIN_AGREEING) > MAX_TOLERANCE * level:
        return False
    digits = _last_digit(one.tobytes()), _last_digit(other.tobytes())
    # two numbers rounded alike are equal, or a whole digit apart
    digit = np.where(np.isclose(*digits, atol=0), digits[0], sum(digits))
    tolerance = np.maximum(digit / 2 * (1 + DIGIT_ROUNDING), MIN_TOLERANCE * one)
    agreeing = int((np.abs(one - other) <= tolerance).sum())
    if agreeing < MIN_AGREEING * n:
        return False
    noise = SHARED_NOISE * math.sqrt(2) * _noise(one)
    difference = float(np.clip(noise, MIN_SEED_DIFFERENCE * level, MAX_SEED_DIFFERENCE * level))
    # two identical numbers of many digits agree further than to the tolerance
    reach = np.median(np.maximum(digit / 2, np.abs(one - other)))
    chance = max(math.erf(float(reach) / (difference * math.sqrt(2))), 1e-300)
    ways = math.lgamma(n + 1) - math.lgamma(agreeing + 1) - math.lgamma(n - agreeing + 1)
    return ways + agreeing * math.log(chance) <= math.log(max_chance)


def _same_rates(one: Run, other: Run, shift: int) -> bool:
    """Return whether learning rates agree wherever both were logged: branches of one trunk part there."""
    known = [np.isfinite(log.learning_rate) for log in (one, other)]
    steps = one.steps[known[0]], other.steps[known[1]] - shift
    rates = one.learning_rate[known[0]], other.learning_rate[known[1]]
    if not len(rates[0]) or not len(rates[1]):
        return True
    peak = max(float(np.abs(each).max()) for each in rates)
    # a thinned log misses the corners of a schedule: its rows lie on the lines of the other, not the reverse
    return any(_on_lines(steps[i], rates[i], steps[1 - i], rates[1 - i], 0.02 * peak) for i in (0, 1))


def _on_lines(steps: Steps, values: Vector, line_steps: Steps, line_values: Vector, tolerance: float) -> bool:
    """Return whether values lie on the lines between others, all but one or a few, where these reach."""
    inside = (steps >= line_steps[0]) & (steps <= line_steps[-1])
    apart = np.abs(values[inside] - np.interp(steps[inside], line_steps, line_values)) > tolerance
    return int(apart.sum()) <= max(1, (1 - MIN_AGREEING) * len(apart))


def _noise(losses: Vector) -> float:
    """Return the standard deviation of the noise by second differences."""
    if len(losses) < 3:
        return 0.0
    return NORMAL * float(np.median(np.abs(np.diff(losses, 2)))) / math.sqrt(6)


@lru_cache(maxsize=1024)
def _last_digit(content: bytes) -> Vector:
    """Return the size of the last digit that losses were logged with, decimal or binary: the coarsest that fits.

    A log with more than eight decimals, significant digits, or 24 binary digits was not rounded.
    """
    losses = np.frombuffer(content)
    size = np.zeros(len(losses))
    ways = (
        (10.0, np.zeros(len(losses)), range(9)),
        (10.0, np.floor(np.log10(losses)), range(8)),
        (2.0, np.floor(np.log2(losses)), range(24)),
    )
    for base, places, digits in ways:
        for k in digits:
            scaled = losses * base ** (k - places)
            if np.abs(scaled - scaled.round()).max() <= DIGIT_ROUNDING:
                size = np.maximum(size, base ** (places - k))
                break
    return size


@lru_cache(maxsize=64)
def _evenly(n: int) -> Steps:
    if n <= MAX_ROWS:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, min(n, MAX_ROWS)).round().astype(np.int64))


class CompleteRuns(NamedTuple):
    """Runs whose end is known, and remarks on what was left out, a sentence each."""

    runs: tuple[LoggedRun, ...]
    remarks: tuple[str, ...]


def complete_runs(logs: Sequence[Run]) -> CompleteRuns:
    """Return the runs of complete logs; the plan of each ends where its log does."""
    runs: list[LoggedRun] = []
    remarks = []
    for log in logs:
        if log.diverged is not None:
            remarks.append(f"{log.name}: left out, {log.diverged}")
            continue
        if log.need_not_fall:
            remarks.append(f"{log.name}: left out, its loss need not fall: {log.need_not_fall}")
            continue
        status = FAILED if log.failed else "" if log.watched is None else log.watched.status
        if status == FAILED or (status == TRAINING and not log.is_complete):
            remarks.append(f"{log.name}: left out, it is {status} by its {'log' if log.failed else 'monitor'}")
            continue
        last = log.last_seen
        duplicate = next((run.log.name for run in runs if ends_alike(run.log, log) and is_same_run(run.log, log)), None)
        if duplicate is not None:
            remarks.append(f"{log.name}: left out, the same run as {duplicate}")
            continue
        if log.last_step is not None and last < MIN_COMPLETE_SHARE * log.last_step:
            remarks.append(f"{log.name}: left out, its log ends at step {last:,} of {log.last_step:,}")
            continue
        try:
            runs.append(LoggedRun(log, planned(log, last_step=last)))
        except ToposcopeError as error:
            remarks.append(f"left out: {error}")
    return CompleteRuns(tuple(runs), tuple(remarks))


def siblings_among(log: Run, logs: Logs, unit: str | None = None) -> CompleteRuns:
    """Return the complete runs that a forecast of a log may borrow from."""
    others = [replace(other, unit=unit) if unit and other.target == log.target else other for other in logs.logs]
    in_other_units = [other for other in others if other.unit != log.unit]
    complete = complete_runs([other for other in others if other.unit == log.unit])
    remarks = remarks_on_runs(logs, complete)
    if in_other_units:
        units = ", ".join(sorted({other.unit for other in in_other_units}))
        remarks.append(f"{counted(len(in_other_units), 'sibling')} left out: in {units}, the log in {log.unit}")
    if not complete.runs:
        raise ToposcopeError("; ".join(["no sibling can be used", *remarks]))
    return CompleteRuns(complete.runs, tuple(remarks))


def borrowed_parts(schedule: Schedule, forecast: Forecast | None, n_siblings: int) -> str:
    """Return what a forecast takes from siblings, and whether its end is estimated, a clause; empty if neither."""
    estimated = "its end is estimated from the learning rate" if schedule.end == "learning rate" else ""
    parts = {
        "end": schedule.end == "siblings",
        "learning rate": schedule.origin == "siblings",
        "coefficients": forecast is not None and len(forecast.errors) > 0,
    }
    taken = [part for part, is_taken in parts.items() if is_taken]
    if not taken:
        return estimated
    verb = "are" if len(taken) > 1 or parts["coefficients"] else "is"
    borrowed = f"its {joined(taken)} {verb} taken from {counted(n_siblings, 'sibling')}"
    return "; ".join(filter(None, (estimated, borrowed)))


def siblings_nearby(log: Run, logs: Sequence[Run]) -> CompleteRuns:
    """Return the runs of a log's folder that its forecast may borrow from.

    Nobody declared them siblings: they are those of `is_sibling`.
    """
    try:
        among = [other for other in logs if is_sibling(log, other)]
        return siblings_among(log, Logs(tuple(among), ()))
    except ToposcopeError:
        return CompleteRuns((), ())


def is_sibling(log: Run, other: Run, *, of_any_size: bool = False) -> bool:
    """Return whether a run of a log's folder is a sibling: it came to its end, and what both log of it is equal.

    That is sizes and configuration: parameters, tokens per step, family, the name and the peak of the learning rate.
    Where no size and no family is logged by both, the rates of both are the same at every step: a peak alone is often
    the default of a tool. Runs that log nothing comparable are strangers, and so are runs whose losses at the same
    steps are plainly others, as of another text or tokenizer.
    """
    if not other.is_complete or other.diverged is not None:
        return False
    if (log.unit, log.is_validation) != (other.unit, other.is_validation):
        return False
    pairs = [(log.tokens_per_step, other.tokens_per_step)]
    pairs += [] if of_any_size else [(log.parameters, other.parameters)]
    sizes = [(one, two) for one, two in pairs if one > 0 and two > 0]
    peaks = [(one, two) for one, two in [(_peak(log), _peak(other))] if one > 0 and two > 0]
    names = [(one, two) for one, two in [(log.family, other.family), (log.schedule, other.schedule)] if one and two]
    if any(abs(one - two) > MAX_SIZE_DIFFERENCE * max(one, two) for one, two in (*sizes, *peaks)):
        return False
    if any(one.lower() != two.lower() for one, two in names):
        return False
    if not sizes and not (log.family and other.family) and not (peaks and _same_rates(log, other, 0)):
        return False
    return of_any_size or _alike(log, other)


def _peak(log: Run) -> float:
    """Return the largest learning rate; NaN if none was logged, or it still rises."""
    rates = log.learning_rate[np.isfinite(log.learning_rate)]
    return float(rates.max()) if len(rates) and not log.is_warming_up else np.nan


def _alike(log: Run, other: Run) -> bool:
    """Return whether the losses of two runs are alike in the median, where both logged some."""
    inside = (log.steps >= other.steps[0]) & (log.steps <= other.steps[-1])
    if not inside.any():
        return True
    apart = np.log(log.loss[inside] / np.interp(log.steps[inside], other.steps, other.loss))
    return bool(abs(np.median(apart)) <= MAX_LOSS_DIFFERENCE)


def without_itself(log: Run, siblings: CompleteRuns) -> CompleteRuns:
    """Leave the run of the log out of its siblings."""
    same = [run for run in siblings.runs if is_same_run(log, run.log)]
    remarks = [f"{run.log.name}: left out of the siblings, it is the run itself" for run in same]
    return CompleteRuns(tuple(run for run in siblings.runs if run not in same), (*siblings.remarks, *remarks))


def with_family(log: Run, runs: Sequence[LoggedRun]) -> tuple[Run, list[str]]:
    """Give a log the siblings' family where its own or theirs is unknown; return it and remarks on that."""
    families = sorted({run.log.family for run in runs})
    if not families or (log.family in families and log.family):
        return log, []
    if families == [""]:
        return replace(log, family=""), ["the family of the siblings is unknown: they are taken to be of the log's"]
    if log.family:
        names = ", ".join(filter(None, families))
        return log, [f"no sibling is of the log's family, {log.family}; they are of {names}"]
    if len(families) == 1:
        return replace(log, family=families[0]), [f"the log is taken to be of the siblings' family, {families[0]}"]
    return log, [
        f"the family of the log is unknown, the siblings are of {len(families)}: they count as runs of other families; "
        "give siblings of one family"
    ]


def usable_siblings(log: Run, siblings: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return the siblings whose losses are in the log's unit: those of its family if there are at least 4, else all."""
    same_unit = [run for run in siblings if run.log.unit == log.unit]
    relatives = [run for run in same_unit if run.log.family == log.family]
    return relatives if len(relatives) >= 4 else same_unit


def remarks_on_runs(logs: Logs, complete: CompleteRuns) -> list[str]:
    """Return the remarks of reading, the first few on runs that are ignored, and one on runs of unknown size."""
    ignored = list(complete.remarks)
    if len(ignored) > MAX_REMARKS + 1:
        ignored = [*ignored[:MAX_REMARKS], f"and {len(ignored) - MAX_REMARKS} more like this"]
    n = sum(not np.isfinite(run.log.parameters) for run in complete.runs)
    sizeless = (
        f"{counted(n, 'run')} without known parameters: each counts as a size of its own; if they are alike, errors, "
        "intervals and p-values are too good"
    )
    return [*logs.remarks, *ignored, *([sizeless] if n else [])]
