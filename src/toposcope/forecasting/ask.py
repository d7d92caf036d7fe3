"""A forecast as it is asked for: a log, what is planned of it, runs to borrow from, and what has to be told of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.backtest import Collected, agree, complete_runs
from toposcope.forecasting.decision.reasons import short
from toposcope.forecasting.forecast import Forecast, Run
from toposcope.forecasting.forecasters.last import Last
from toposcope.forecasting.forecasters.power_law import PowerLaw
from toposcope.forecasting.intervals import LEVEL
from toposcope.forecasting.line_up import LineUp, line_up
from toposcope.forecasting.schedules.planned import planned
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log, Logs
from toposcope.logs.log import FINAL_SHARE

FIRST = 3
"""Remarks of one kind that are told in full."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What can be said of the end of a run.

    Attributes
    ----------
    log : Log
        What was seen, under the family that it is taken to belong to.
    schedule : Schedule
    siblings : tuple of Run
        That were asked; the run itself is none of them.
    found : LineUp or None
        None if the run is complete: its final loss is known.
    remarks : tuple of str
        Warnings and what was guessed, each once: of the default forecast, the schedule, the log and the siblings.
    """

    log: Log
    schedule: Schedule
    siblings: tuple[Run, ...]
    found: LineUp | None
    remarks: tuple[str, ...]

    @property
    def chosen(self) -> str:
        """Name of the forecaster that is believed; empty if the run is complete."""
        return "" if self.found is None else self.found.chosen

    @property
    def believed(self) -> Forecast | None:
        """Its forecast."""
        return None if self.found is None else self.found.forecasts[self.chosen]

    @property
    def digits(self) -> int:
        """Decimals that losses are written with: two of them within the interval."""
        if self.believed is None or not self.believed.high > self.believed.low:
            return 4
        half = (self.believed.high - self.believed.low) / 2
        return int(np.clip(1 - np.floor(np.log10(half)), 2, 6))


def siblings_of(log: Log, logs: Logs, unit: str | None = None) -> Collected:
    """Return the complete runs that a forecast of a log may borrow from, and what was left out.

    Parameters
    ----------
    log : Log
        Of the run to forecast.
    logs : Logs
        Of the others.
    unit : str, optional
        That was declared of the log; it counts for logs whose losses are in a column of the same name.

    Raises
    ------
    ToposcopeError
        If none is complete and in the unit of the log.
    """
    each = [replace(other, unit=unit) if unit and other.target == log.target else other for other in logs.logs]
    strange = [other for other in each if other.unit != log.unit]
    collected = complete_runs([other for other in each if other.unit == log.unit])
    remarks = [*logs.remarks, *_few(collected.remarks), *_unsized(collected)]
    if strange:
        units = ", ".join(sorted({other.unit for other in strange}))
        remarks.append(f"{_counted(len(strange), 'sibling')} left out: in {units}, the log in {log.unit}")
    if not collected.runs:
        raise ToposcopeError("; ".join(["no sibling can be used", *remarks]))
    return Collected(collected.runs, tuple(remarks))


def ask(log: Log, declared: str = "", last_step: int | None = None, siblings: Collected | None = None) -> Answer:
    """Forecast a run, or tell its final loss if it is complete.

    Parameters
    ----------
    log : Log
    declared, last_step
        As for `planned`.
    siblings : Collected, optional
        From `siblings_of`; if the run itself is among them it is left out.

    Raises
    ------
    ToposcopeError
        If the schedule is none, or nothing tells where the run ends; if no forecaster can say anything.
    """
    schedule = planned(log, declared, last_step)
    runs: tuple[Run, ...] = ()
    told: list[str] = []
    if siblings is not None:
        told += siblings.remarks
        itself = [run for run in siblings.runs if is_itself(log, run.log)]
        runs = tuple(run for run in siblings.runs if run not in itself)
        told += [f"{run.log.name}: left out of the siblings, it is the run itself" for run in itself]
        log, words = _in_family(log, runs)
        told += words
    if is_complete(log, schedule):
        return Answer(log, schedule, runs, None, tuple(dict.fromkeys((*log.remarks, *told))))
    found = line_up(log, schedule, runs)
    answer = Answer(log, schedule, runs, found, ())
    believed = () if answer.believed is None else answer.believed.remarks
    first = [remark for remark in log.remarks if "diverged" in remark]
    if answer.chosen == Last.name and PowerLaw.name in found.refused:
        first.append(f"no law could be fitted: {found.refused[PowerLaw.name]}")
    return replace(answer, remarks=tuple(dict.fromkeys((*first, *believed, *schedule.remarks, *log.remarks, *told))))


def of_one_unit(logs: Logs) -> Collected:
    """Return the complete runs of a collection that is to be scored.

    Raises
    ------
    ToposcopeError
        If their units differ, or fewer than two are complete.
    """
    units = sorted({log.unit for log in logs.logs})
    if len(units) > 1:
        parts = ", ".join(f"{unit} in {sum(log.unit == unit for log in logs.logs)} runs" for unit in units)
        raise ToposcopeError(
            f"units differ ({parts}): errors in different units have no mean; give the runs of one unit"
        )
    collected = complete_runs(logs.logs)
    remarks = (*logs.remarks, *_few(collected.remarks), *_unsized(collected))
    if len(collected.runs) < 2:
        raise ToposcopeError(
            "; ".join([f"a backtest needs at least two complete runs, not {len(collected.runs)}", *remarks])
        )
    return Collected(collected.runs, remarks)


def is_itself(log: Log, other: Log) -> bool:
    """Tell whether two logs are of one run: they agree wherever both have a row, or, if nowhere, in their names."""
    return agree(log, other) if np.intersect1d(log.steps, other.steps).size else log.name == other.name


def is_complete(log: Log, schedule: Schedule) -> bool:
    """Tell whether a log goes to the end of the plan, but for the steps between two rows.

    Steps that are counted from 0 end one row before the plan.
    """
    left = schedule.last_step - int(log.steps[-1])
    usual = float(np.median(np.diff(log.steps))) if len(log.steps) > 1 else 0.0
    between = left < usual or (left == usual and log.steps[0] == 0)
    return left <= 1 or (between and left <= FINAL_SHARE * schedule.last_step)


def headline(answer: Answer) -> str:
    """Say the final loss, in the log's unit."""
    log, believed, digits = answer.log, answer.believed, answer.digits
    if believed is None:
        loss, error = log.final_loss()
        spread = f" ± {error:.{digits}f}" if np.isfinite(error) else ""
        return (
            f"the run is complete, at step {log.steps[-1]:,} of {answer.schedule.last_step:,}: "
            f"final loss {loss:.{digits}f}{spread} {log.unit}, the mean of the last {FINAL_SHARE:.0%} of its rows"
        )
    low, high = f"{believed.low:.{digits}f}", f"{believed.high:.{digits}f}"
    return f"final loss {believed.loss:.{digits}f} {log.unit} ({LEVEL:.0%}: {low} to {high}), default: {answer.chosen}"


def facts(answer: Answer) -> dict[str, str]:
    """Say what was read and what is planned, by what it is of."""
    log, schedule = answer.log, answer.schedule
    size = f", {short(log.parameters)} parameters" if np.isfinite(log.parameters) else ""
    told = {
        "read": f"{_counted(len(log.steps), 'loss', 'losses')} from {log.target!r} in {log.unit}, steps "
        f"{log.steps[0]:,} to {log.steps[-1]:,}{size}; {log.final_loss()[0]:.{answer.digits}f} now",
        "plan": f"{schedule.last_step:,} steps, {log.steps[-1] / schedule.last_step:.0%} seen; {_rate(log, schedule)}",
    }
    if answer.siblings:
        relatives = sum(run.log.family == log.family for run in answer.siblings)
        family = f" {log.family}" if log.family else ""
        told["siblings"] = f"{_counted(len(answer.siblings), 'complete run')}, {relatives} of the log's family{family}"
    return told


def _rate(log: Log, schedule: Schedule) -> str:
    """Say how the learning rate goes."""
    end = schedule.rates[-1] / schedule.peak
    if schedule.rates.min() == schedule.peak:
        return "learning rate constant"
    # without a rate in log or plan the peak is 1 and says nothing
    peak = "" if schedule.peak == 1 else f", {schedule.peak:.3g},"
    return (
        f"learning rate at its peak{peak} at step {schedule.warm_up:,}, {100 * end:.3g}% of that at the end, "
        f"{schedule.decay_seen(int(log.steps[-1])):.0%} of its fall seen"
    )


def _in_family(log: Log, runs: Sequence[Run]) -> tuple[Log, list[str]]:
    """Take a log to be of the siblings' family where one of them does not tell."""
    families = sorted({run.log.family for run in runs})
    if not families or (log.family in families and log.family):
        return log, []
    if families == [""]:
        return replace(log, family=""), [
            "nothing tells of which family the siblings are: they are taken to be the log's"
        ]
    if log.family:
        return log, [
            f"no sibling is of the log's family, {log.family}; they are of {', '.join(filter(None, families))}"
        ]
    if len(families) == 1:
        return replace(log, family=families[0]), [f"the log is taken to be of the siblings' family, {families[0]}"]
    return log, [
        f"nothing tells of which family the log is, the siblings are of {len(families)}: they count as those "
        "of other families; give siblings of one family"
    ]


def _unsized(collected: Collected) -> list[str]:
    """Tell of runs whose size is not known."""
    n = sum(not np.isfinite(run.log.parameters) for run in collected.runs)
    if not n:
        return []
    return [
        f"{_counted(n, 'run')} without known parameters: each counts as a size of its own; if they are alike, errors, "
        "intervals and p-values are too good"
    ]


def _few(remarks: Sequence[str]) -> list[str]:
    if len(remarks) <= FIRST + 1:
        return list(remarks)
    return [*remarks[:FIRST], f"and {len(remarks) - FIRST} more like this"]


def _counted(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
