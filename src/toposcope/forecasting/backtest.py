"""How well the forecasters would have done on runs whose end is known (METHODS 9)."""

import os
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from toposcope.engine.pool import TaskFailure, Workers, shared
from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecast import RefusedError, Run
from toposcope.forecasting.line_up import DEFAULT, FORECASTERS, line_up
from toposcope.forecasting.schedules.planned import planned
from toposcope.logs import Log
from toposcope.progress import Progress, silent

Split = Literal["size", "group", "family"]
SPLITS: tuple[Split, ...] = get_args(Split)
FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7)
COMPLETE = 0.85
"""Share of the planned steps that the log of a run must reach, for its end to be known."""
SCHEMA = {
    "run": pl.String,
    "family": pl.String,
    "size": pl.String,
    "group": pl.String,
    "fraction": pl.Float64,
    "forecaster": pl.String,
    "foretold": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "final": pl.Float64,
    "final_error": pl.Float64,
    "refused": pl.String,
}


class Collected(NamedTuple):
    """Runs whose end is known, and what was left out, a sentence each."""

    runs: tuple[Run, ...]
    remarks: tuple[str, ...]


def complete_runs(logs: Sequence[Log]) -> Collected:
    """Return the runs of complete logs; the plan of each ends where its log does."""
    runs: list[Run] = []
    remarks = []
    for log in logs:
        last = int(log.steps[-1])
        twin = next((run.log.name for run in runs if _same(run.log, log)), None)
        if twin is not None:
            remarks.append(f"{log.name}: left out, it is {twin} again")
            continue
        if log.last_step is not None and last < COMPLETE * log.last_step:
            remarks.append(f"{log.name}: left out, its log ends at step {last:,} of {log.last_step:,}")
            continue
        try:
            runs.append(Run(log, planned(log, last_step=last)))
        except ToposcopeError as error:
            remarks.append(f"left out: {error}")
    return Collected(tuple(runs), tuple(remarks))


def _same(one: Log, other: Log) -> bool:
    """Tell whether two logs are of one run: they end alike, and agree."""
    return bool(one.steps[-1] == other.steps[-1] and one.loss[-1] == other.loss[-1]) and agree(one, other)


def agree(one: Log, other: Log) -> bool:
    """Tell whether two logs have the same losses and learning rates wherever both have a row."""
    _, mine, theirs = np.intersect1d(one.steps, other.steps, assume_unique=True, return_indices=True)
    rates = np.stack([one.learning_rate[mine], other.learning_rate[theirs]])
    rates = rates[:, np.isfinite(rates).all(axis=0)]
    return np.array_equal(one.loss[mine], other.loss[theirs]) and np.array_equal(rates[0], rates[1])


def siblings_of(run: Run, runs: Sequence[Run], split: Split) -> tuple[Run, ...]:
    """Return the runs that a forecast of `run` may borrow from: none of its size, its group or its family."""
    return tuple(other for other in runs if _key(other, split) != _key(run, split))


def backtest(
    runs: Sequence[Run],
    *,
    split: Split = "size",
    fractions: Sequence[float] = FRACTIONS,
    workers: int | None = None,
    progress: Progress = silent,
) -> pl.DataFrame:
    """Forecast every run from its first part.

    Parameters
    ----------
    runs : list of Run
        Complete.
    split : "size", "group" or "family"
        What is left out of the siblings with a run: the runs of the same family and size, of the same family and kind
        of schedule, or of the same family.
    fractions : sequence of float
        In (0, 1).
    workers : int, optional
        Processes; as many as there are processors, if left out. The result does not depend on it.
    progress : callable
        Told of ``backtest``, in forecasts.

    Returns
    -------
    polars.DataFrame
        ``run, family, size, group, fraction, forecaster, foretold, low, high, final, final_error, refused``, a row for
        each run, fraction and forecaster. Where a forecaster refused, ``foretold`` is null and ``refused`` says why.
        ``size`` and ``group`` name what is left out together with the run, by size and by kind of schedule.

    Raises
    ------
    ToposcopeError
        If there are fewer than two runs, or a fraction is not between 0 and 1.
    """
    if len(runs) < 2:
        raise ToposcopeError("a backtest needs at least two complete runs")
    if any(not 0 < fraction < 1 for fraction in fractions):
        raise ToposcopeError(f"fractions {', '.join(map(str, fractions))}: each must be between 0 and 1")
    families = list(dict.fromkeys(run.log.family for run in runs))
    tasks = [(fraction, family) for fraction in fractions for family in families]
    each = {family: sum(run.log.family == family for run in runs) for family in families}
    total, done = sum(each[family] for _, family in tasks), 0
    progress("backtest", done, total)
    parts: dict[tuple[float, str], list[tuple[object, ...]]] = {}
    largest_first = sorted(tasks, key=lambda task: -each[task[1]])
    with Workers(min(workers or os.cpu_count() or 1, len(tasks)), shared=(tuple(runs), split)) as engine:
        for task, rows in engine.run(_forecast_family, largest_first):
            if isinstance(rows, TaskFailure):
                raise ToposcopeError(f"backtest of {task[1] or 'the runs'} at {task[0]:.0%}: {rows.message}")
            parts[task] = rows
            progress("backtest", done := done + each[task[1]], total)
    return pl.DataFrame([row for task in tasks for row in parts[task]], schema=SCHEMA, orient="row")


def _key(run: Run, split: Split) -> Hashable:
    if split == "family":
        return run.log.family
    return run.size if split == "size" else (run.log.family, run.log.schedule)


def _forecast_family(task: tuple[float, str]) -> list[tuple[object, ...]]:
    """Forecast the runs of a family from a fraction."""
    fraction, family = task
    runs, split = shared()
    siblings: dict[Hashable, tuple[Run, ...]] = {}
    rows: list[tuple[object, ...]] = []
    for run in runs:
        if run.log.family != family:
            continue
        key = _key(run, split)
        siblings.setdefault(key, siblings_of(run, runs, split))
        rows.extend(_of_run(run, fraction, siblings[key]))
    return rows


def _of_run(run: Run, fraction: float, siblings: tuple[Run, ...]) -> list[tuple[object, ...]]:
    size = f"{run.size[1]:.4g}" if isinstance(run.size[1], float) else run.size[1]
    known = (run.log.name, run.log.family, size, run.log.schedule, fraction)
    final = run.log.final_loss()
    seen = run.seen(fraction)
    try:
        if seen is None:
            raise RefusedError(f"nothing was logged in the first {fraction:.0%}")
        found = line_up(seen, run.schedule, siblings)
    except RefusedError as error:
        names = [DEFAULT, *(forecaster.name for forecaster in FORECASTERS)]
        return [(*known, name, None, None, None, *final, str(error)) for name in names]
    told = [(*known, name, f.loss, f.low, f.high, *final, "") for name, f in found.forecasts.items()]
    return told + [(*known, name, None, None, None, *final, why) for name, why in found.refused.items()]
