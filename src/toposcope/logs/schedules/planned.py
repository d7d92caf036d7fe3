"""The schedule of a run: the logged learning rate, continued as declared, as in siblings, or as recognised."""

from collections.abc import Sequence

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.schedules.declared import DEFAULT_DECAY, Declared, multiples, read_declared
from toposcope.logs.schedules.logged import LoggedRates, known_rates, logged_rates
from toposcope.logs.schedules.recognised import CONSTANT, Plan, Recognised, recognise, warm_up_end
from toposcope.logs.schedules.schedule import WARMED_UP, Schedule, ScheduledRun
from toposcope.logs.schedules.sibling_schedules import Continuation, continued_by_siblings

MAX_STEPS = 2 * 10**7  # of a run: a schedule holds the rate of every step
MAX_DIFFERENCE = 0.01  # share of the peak by which a plan may differ from the log without a remark

ESTIMATED = "an end that is estimated"


def planned(
    log: Run, declared: str = "", last_step: int | None = None, siblings: Sequence[ScheduledRun] = ()
) -> Schedule:
    """Return the schedule of a run.

    Logged rates are interpolated linearly. They are continued as declared; if nothing is declared, as in the siblings
    whose rates agree with what was logged; if none does, by the shape that the rates follow so far. A complete log
    needs none of these. Assumptions are in the schedule's remarks.

    Parameters
    ----------
    log : Run
        Of the whole run or its beginning.
    declared : str
        For example ``cosine:steps=20000,warmup=500,final=0.1``; what is left out is taken from the log.
    last_step : int, optional
        Of the planned training; else as declared, else the log's.
    siblings : sequence of ScheduledRun, optional
        Complete runs; those of other families are ignored.

    Raises
    ------
    ToposcopeError
        If the declared schedule is invalid, or ends before the log does; if a rate is negative; if the last step is
        unknown.
    """
    logged = cached(log, None, "logged rates", lambda: logged_rates(log))
    slips = 0 if logged is None else len(known_rates(log).steps) - len(logged.steps)
    schedule = _planned(log, logged, declared, last_step, siblings)
    if not slips:
        return schedule
    schedule.remarks += (f"{slips} logged learning rate{'s'[: slips != 1]} above those around: a slip, ignored",)
    return schedule


def _planned(
    log: Run, logged: LoggedRates | None, declared: str, last_step: int | None, siblings: Sequence[ScheduledRun]
) -> Schedule:
    if declared:
        return _as_declared(log, logged, read_declared(declared), last_step)
    end = log.last_step if last_step is None else last_step
    if end is not None:
        _check_end(log, end)
    if logged is not None and end is not None and _complete(logged, end):
        return _joined(log, logged, end, _to_the_end(logged, end), [])
    schedule = _continued(log, logged, end, siblings)
    schedule.assumed = True
    return schedule


def _check_end(log: Run, end: int) -> None:
    if end < log.steps[-1]:
        raise ToposcopeError(
            f"{log.name}: the schedule ends at step {end:,}, before the log does at step {log.steps[-1]:,};"
            " give the last step that is planned"
        )
    if end > MAX_STEPS:
        raise ToposcopeError(
            f"{log.name}: {end:,} steps are more than {MAX_STEPS:,}; count steps of the optimiser, not tokens or "
            "samples"
        )


class UnknownEndError(ToposcopeError):
    """Neither the log nor the siblings say how many steps are planned."""


def _no_end(log: Run) -> UnknownEndError:
    return UnknownEndError(
        f"{log.name}: the number of planned steps is unknown; give it, as in --steps 20000, or declare"
        " the schedule, as in --schedule cosine:steps=20000"
    )


def _complete(logged: LoggedRates, end: int) -> bool:
    """Return whether no more than 2% of the run, or two of its rows, are missing from the log."""
    gap = float(np.median(np.diff(logged.steps))) if len(logged.steps) > 1 else 0.0
    return bool(end - logged.steps[-1] <= max(2 * gap, 0.02 * end))


def _to_the_end(logged: LoggedRates, end: int) -> Plan | None:
    """Return how the rates go on over the last steps of a run; None where all are logged, or none is on a line."""
    steps, rates = logged.steps[-3:], logged.rates[-3:]
    if steps[-1] >= end or len(steps) < 3:
        return None
    if (shape := recognise(*logged, end)) is not None:
        return shape.rates
    slope = (rates[2] - rates[0]) / (steps[2] - steps[0])
    if abs(rates[1] - np.interp(steps[1], steps[[0, 2]], rates[[0, 2]])) > MAX_DIFFERENCE * (rates[0] - rates[2]):
        return None
    return lambda t: np.maximum(rates[2] + slope * (t - steps[2]), 0)


def _estimated_end(shape: Recognised, logged: LoggedRates) -> int:
    """Return where a shape ends; tools that log a rate after the step it was used for seem to end a step later."""
    end = round(shape.last_step)
    gap = int(np.median(np.diff(logged.steps)))
    return end - 1 if any(end % whole == 1 for whole in (gap, 10) if whole > 1) else end


def _continued(log: Run, logged: LoggedRates | None, end: int | None, siblings: Sequence[ScheduledRun]) -> Schedule:
    """Continue what was logged as in siblings, else along the shape that it follows."""
    shape = _shape(log, logged, end)
    remarks: list[str] = []
    if end is None and (ahead := continued_by_siblings(log, logged, siblings, None)) is not None:
        end = ahead.last_step
        remarks = [f"the last step, {end:,}, is taken from the siblings: give --steps if another is planned"]
        shape = _shape(log, logged, end)
    if end is None:
        if logged is None or shape is None or not np.isfinite(shape.last_step):
            raise _no_end(log)
        end = max(_estimated_end(shape, logged), log.last_seen)
        shape = shape._replace(words=f"{shape.words}, {ESTIMATED}: declare the steps planned if you know them")
    ahead = continued_by_siblings(log, logged, siblings, end)
    if ahead is not None and (shape is None or _differ(shape, ahead, int(log.steps[-1]))):
        if logged is None:
            none = "no learning rate was logged: over its peak it is taken to be that of the siblings"
            return Schedule(ahead.rates(np.arange(end + 1)), [*remarks, none, ahead.words])
        return _joined(log, logged, end, ahead.rates, [*remarks, ahead.words])
    if logged is None:
        none = "no learning rate was logged: a constant one is assumed, without a decay; declare the schedule"
        return Schedule(np.ones(end + 1), [*remarks, none])
    if shape is None:
        return _joined(log, logged, end, None, [*remarks, _held(logged)])
    beyond = end - shape.last_step > MAX_DIFFERENCE * end
    words = f"{shape.words}; held from there to step {end:,}: declare what follows" if beyond else shape.words
    return _joined(log, logged, end, shape.rates, [*remarks, words])


def _shape(log: Run, logged: LoggedRates | None, end: int | None) -> Recognised | None:
    """Return the shape that the logged rates follow."""
    return None if logged is None else cached(log, None, ("shape", end), lambda: recognise(*logged, end))


def _differ(shape: Recognised, ahead: Continuation, last_seen: int) -> bool:
    """Return whether the schedule of the siblings goes on otherwise than a recognised shape."""
    steps = np.linspace(last_seen, ahead.last_step, 100)[1:]
    rates = ahead.rates(steps)
    return bool(np.abs(shape.rates(steps) - rates).max() > MAX_DIFFERENCE * max(rates.max(), shape.rates(steps).max()))


def _held(logged: LoggedRates) -> str:
    """Return a remark on a rate that is held at its last value."""
    rates = logged.rates
    if len(rates) > 1 and np.argmax(rates >= WARMED_UP * logged.peak) == len(rates) - 1:
        return "learning rate still rises: its peak and what follows are not known, it is held; declare the schedule"
    if rates[-1] >= logged.peak * (1 - CONSTANT):
        return "learning rate is constant so far; a cool-down is not known: declare it"
    return (
        f"learning rate follows no known shape: it is held at its last value, {rates[-1]:.3g},"
        f" from step {int(logged.steps[-1]):,} on; declare the schedule"
    )


def _joined(
    log: Run, logged: LoggedRates, end: int, plan: Plan | None, remarks: list[str], before: bool = False
) -> Schedule:
    """Return the schedule of the logged rates and the plan after them, and before them where that is declared."""
    first, last = int(logged.steps[0]), min(int(logged.steps[-1]), end)
    rates = np.full(end + 1, logged.rates[-1])
    rates[: last + 1] = np.interp(np.arange(last + 1), logged.steps, logged.rates)
    if plan is not None:
        rates[last + 1 :] = plan(np.arange(last + 1, end + 1))
    if plan is not None and before:
        rates[:first] = plan(np.arange(first))
    elif first > 0.05 * end:
        remarks = [*remarks, f"no learning rate was logged before step {first:,}: that of step {first:,} is assumed"]
    return Schedule(rates, remarks)


def _as_declared(log: Run, logged: LoggedRates | None, declared: Declared, last_step: int | None) -> Schedule:
    """Continue what was logged as declared."""
    length = declared.steps
    if length is None:
        length = log.last_step if last_step is None else last_step
    remarks: list[str] = []
    if length is None:
        shape = None if logged is None else recognise(logged.steps, logged.rates, None)
        if logged is None or shape is None or shape.kind != declared.kind or declared.numbers.get("cycles", 1) > 1:
            raise _no_end(log)
        length = max(_estimated_end(shape, logged), log.last_seen)
        remarks.append(f"{shape.words}, {ESTIMATED}")
    end = length if last_step is None else last_step
    _check_end(log, end)
    if declared.knots:
        steps, rates = (np.array(column, dtype=np.float64) for column in zip(*declared.knots, strict=True))
        plan: Plan = lambda t: np.interp(t.astype(np.float64), steps, rates)  # noqa: E731
    else:
        plan = _recognised(logged, declared, length, remarks) or _plan(logged, declared, length, remarks)
    if logged is None:
        return Schedule(plan(np.arange(end + 1)), remarks)
    remarks += _apart(logged, plan)
    return _joined(log, logged, end, plan, remarks, before=True)


def _recognised(logged: LoggedRates | None, declared: Declared, length: int, remarks: list[str]) -> Plan | None:
    """Return the cool-down that is logged already, of one of which nothing more is declared."""
    if logged is None or declared.kind != "wsd" or set(declared.numbers) > {"steps"}:
        return None
    shape = recognise(logged.steps, logged.rates, length)
    if shape is None or shape.kind != "wsd":
        return None
    remarks.append(shape.words)
    return shape.rates


def _plan(logged: LoggedRates | None, declared: Declared, length: int, remarks: list[str]) -> Plan:
    """Complete a declaration from the log; remarks are added of what was assumed."""
    numbers = declared.numbers
    peak = numbers.get("peak", logged.peak if logged is not None else 1.0)
    warm_up = numbers.get("warmup")
    if warm_up is None:
        warm_up = warm_up_end(*logged) if logged is not None else 0
        if logged is not None and len(logged.rates) > 1 and np.argmax(logged.rates) == len(logged.rates) - 1:
            remarks.append("learning rate still rises: its peak is taken to be reached; declare peak and warmup")
    elif warm_up < 1:
        warm_up *= length
    final = numbers.get("final")
    if final is None:
        final = _final(logged, declared, length, peak, warm_up, remarks)
    if declared.kind == "wsd" and "decay" not in numbers:
        remarks.append(f"the cool-down is taken to be the last {DEFAULT_DECAY:.0%} of {length:,} steps")
    return lambda t: peak * multiples(declared, np.asarray(t), length, round(warm_up), final)


def _final(
    logged: LoggedRates | None, declared: Declared, length: int, peak: float, warm_up: float, remarks: list[str]
) -> float:
    """Return the final rate as a share of the peak, from the logged decay; 0 if the log does not determine it."""
    if declared.kind not in ("cosine", "linear", "wsd"):
        return 0.0
    if logged is not None:
        fallen = 1 - multiples(declared, logged.steps.astype(np.int64), length, round(warm_up), 0.0)
        after = logged.steps > warm_up
        fallen, seen = fallen[after], 1 - logged.rates[after] / peak
        if len(fallen) and fallen.max() > MAX_DIFFERENCE:
            share = float(fallen @ seen / (fallen @ fallen))
            if (
                -MAX_DIFFERENCE < 1 - share < 1
                and np.abs(fallen * share - seen).max() <= MAX_DIFFERENCE * share * fallen.max()
            ):
                return float(np.clip(1 - share, 0, 1))
    remarks.append("the learning rate is taken to end at 0; declare final")
    return 0.0


def _apart(logged: LoggedRates, plan: Plan) -> list[str]:
    """Remark on a plan that differs from what was logged last."""
    step, rate = int(logged.steps[-1]), float(logged.rates[-1])
    there = float(plan(np.array([step]))[0])
    if abs(there - rate) <= MAX_DIFFERENCE * logged.peak:
        return []
    return [f"at step {step:,} the declared schedule has a learning rate of {there:.3g}, the log {rate:.3g}"]
