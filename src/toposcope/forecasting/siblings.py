"""The complete runs that a forecast may borrow from, and those that a backtest scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import LoggedRun
from toposcope.forecasting.same_run import ends_alike, is_same_run
from toposcope.forecasting.schedules.planned import planned
from toposcope.forecasting.wording import counted
from toposcope.logs import Log, Logs

MIN_RELATIVES = 4
"""Runs of the family; with fewer of them those of other families are used too."""
MIN_COMPLETE_SHARE = 0.85
"""Share of the planned steps that the log of a run must reach, for its end to be known."""
MAX_REMARKS = 3
"""Remarks of one kind that are written out."""


class CompleteRuns(NamedTuple):
    """Runs whose end is known, and remarks on what was left out, a sentence each."""

    runs: tuple[LoggedRun, ...]
    remarks: tuple[str, ...]


def complete_runs(logs: Sequence[Log]) -> CompleteRuns:
    """Return the runs of complete logs; the plan of each ends where its log does."""
    runs: list[LoggedRun] = []
    remarks = []
    for log in logs:
        if log.diverged is not None:
            remarks.append(f"{log.name}: left out, {log.diverged}")
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


def runs_to_score(logs: Logs) -> CompleteRuns:
    """Return the complete runs of a collection for a backtest.

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
    complete = complete_runs(logs.logs)
    remarks = (*logs.remarks, *_shortened(complete.remarks), *_without_size(complete))
    if len(complete.runs) < 2:
        raise ToposcopeError(
            "; ".join([f"a backtest needs at least two complete runs, not {len(complete.runs)}", *remarks])
        )
    return CompleteRuns(complete.runs, remarks)


def siblings_among(log: Log, logs: Logs, unit: str | None = None) -> CompleteRuns:
    """Return the complete runs that a forecast of a log may borrow from.

    Parameters
    ----------
    log : Log
        Of the run to forecast.
    logs : Logs
        Of the others.
    unit : str, optional
        Declared for the log; it holds for logs whose losses are in a column of the same name, too.

    Raises
    ------
    ToposcopeError
        If none is complete and in the unit of the log.
    """
    others = [replace(other, unit=unit) if unit and other.target == log.target else other for other in logs.logs]
    in_other_units = [other for other in others if other.unit != log.unit]
    complete = complete_runs([other for other in others if other.unit == log.unit])
    remarks = [*logs.remarks, *_shortened(complete.remarks), *_without_size(complete)]
    if in_other_units:
        units = ", ".join(sorted({other.unit for other in in_other_units}))
        remarks.append(f"{counted(len(in_other_units), 'sibling')} left out: in {units}, the log in {log.unit}")
    if not complete.runs:
        raise ToposcopeError("; ".join(["no sibling can be used", *remarks]))
    return CompleteRuns(complete.runs, tuple(remarks))


def without_itself(log: Log, siblings: CompleteRuns) -> CompleteRuns:
    """Leave the run of the log out of its siblings."""
    same = [run for run in siblings.runs if is_same_run(log, run.log)]
    remarks = [f"{run.log.name}: left out of the siblings, it is the run itself" for run in same]
    return CompleteRuns(tuple(run for run in siblings.runs if run not in same), (*siblings.remarks, *remarks))


def with_family(log: Log, runs: Sequence[LoggedRun]) -> tuple[Log, list[str]]:
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


def usable_siblings(log: Log, siblings: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return the siblings whose losses are in the log's unit: those of its family if there are at least 4, else all."""
    same_unit = [run for run in siblings if run.log.unit == log.unit]
    relatives = [run for run in same_unit if run.log.family == log.family]
    return relatives if len(relatives) >= MIN_RELATIVES else same_unit


def of_other_sizes(size: tuple[str, float | str], siblings: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return the siblings that have another size, or belong to another family."""
    return [other for other in siblings if other.size != size]


def _without_size(complete: CompleteRuns) -> list[str]:
    """Return a remark on runs whose size is unknown."""
    n = sum(not np.isfinite(run.log.parameters) for run in complete.runs)
    if not n:
        return []
    return [
        f"{counted(n, 'run')} without known parameters: each counts as a size of its own; if they are alike, errors, "
        "intervals and p-values are too good"
    ]


def _shortened(remarks: Sequence[str]) -> list[str]:
    if len(remarks) <= MAX_REMARKS + 1:
        return list(remarks)
    return [*remarks[:MAX_REMARKS], f"and {len(remarks) - MAX_REMARKS} more like this"]
