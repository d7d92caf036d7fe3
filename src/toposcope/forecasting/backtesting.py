"""Forecasts of runs whose end is known, from their beginnings alone."""

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from toposcope.engine.pool import TaskFailure, Workers, shared
from toposcope.errors import ToposcopeError
from toposcope.forecasting.forecaster import LoggedRun, RefusedError
from toposcope.forecasting.forecaster_set import DEFAULT, run_forecasters
from toposcope.forecasting.forecasters import forecasters
from toposcope.forecasting.schedules.known import known_schedule
from toposcope.forecasting.siblings import runs_to_score
from toposcope.logs import read_logs
from toposcope.progress import Progress, silent

Split = Literal["size", "group", "family"]
SPLITS: tuple[Split, ...] = get_args(Split)
DEFAULT_FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7)
SCHEMA = {
    "run": pl.String,
    "family": pl.String,
    "size": pl.String,
    "group": pl.String,
    "fraction": pl.Float64,
    "forecaster": pl.String,
    "predicted": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "final": pl.Float64,
    "final_error": pl.Float64,
    "refused": pl.String,
}


def siblings_in_split(run: LoggedRun, runs: Sequence[LoggedRun], split: Split) -> tuple[LoggedRun, ...]:
    """Return the runs that a forecast of `run` may borrow from: those of another size, group or family."""
    return tuple(other for other in runs if _split_key(other, split) != _split_key(run, split))


def backtest(
    runs: Sequence[LoggedRun] | str | Path,
    *,
    split: Split = "size",
    fractions: Sequence[float] = DEFAULT_FRACTIONS,
    workers: int | None = None,
    progress: Progress = silent,
) -> pl.DataFrame:
    """Forecast runs whose end is known from their beginnings.

    The number of steps planned is given; the schedule after what was seen is not (`known_schedule`).

    Parameters
    ----------
    runs : list of LoggedRun, str or Path
        Complete; a path is a table or folder of logs, or a study.
    split : "size", "group" or "family"
        What a run may not borrow from: runs of its family and size, of its family and kind of schedule, or of its
        family.
    fractions : sequence of float
        In (0, 1).
    workers : int, optional
        Number of processes, by default that of the processors. The result does not depend on it.
    progress : callable
        Called with ``backtest`` and the number of forecasts.

    Returns
    -------
    polars.DataFrame
        ``run, family, size, group, fraction, forecaster, predicted, low, high, final, final_error, refused``, a row for
        each run, fraction and forecaster. Where a forecaster refused, ``predicted`` is null and ``refused`` says why.
        ``size`` and ``group`` name what is left out together with the run, by size and by kind of schedule.

    Raises
    ------
    ToposcopeError
        If there are fewer than two runs, their units differ, or a fraction is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from toposcope.logs import Log
    >>> from toposcope.forecasting.siblings import complete_runs
    >>> steps = np.arange(20, 2001, 20)
    >>> logs = [Log(f"run {k}", steps, k + 3 * steps**-0.3, np.full(100, 1e-3), 2000, k * 1e8) for k in (1, 2)]
    >>> rows = backtest(complete_runs(logs).runs, fractions=[0.5], workers=1)
    >>> rows.filter(forecaster="power_law").select("run", pl.col("predicted", "final").round(2)).rows()
    [('run 1', 1.31, 1.31), ('run 2', 2.31, 2.31)]
    """
    if isinstance(runs, str | Path):
        runs = runs_to_score(read_logs(runs)).runs
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


def _split_key(run: LoggedRun, split: Split) -> Hashable:
    if split == "family":
        return run.log.family
    return run.size if split == "size" else (run.log.family, run.log.schedule)


def _forecast_family(task: tuple[float, str]) -> list[tuple[object, ...]]:
    """Forecast the runs of a family from a fraction."""
    fraction, family = task
    runs, split = shared()
    siblings: dict[Hashable, tuple[LoggedRun, ...]] = {}
    rows: list[tuple[object, ...]] = []
    for run in runs:
        if run.log.family != family:
            continue
        key = _split_key(run, split)
        siblings.setdefault(key, siblings_in_split(run, runs, split))
        rows.extend(_forecast_run(run, fraction, siblings[key]))
    return rows


def _forecast_run(run: LoggedRun, fraction: float, siblings: tuple[LoggedRun, ...]) -> list[tuple[object, ...]]:
    """Return a row for each forecaster."""
    size = f"{run.size[1]:.4g}" if isinstance(run.size[1], float) else run.size[1]
    key = (run.log.name, run.log.family, size, run.log.schedule, fraction)
    final = run.log.final_loss()
    seen = run.seen(fraction)
    try:
        if seen is None:
            raise RefusedError(f"nothing was logged in the first {fraction:.0%}")
        results = run_forecasters(seen, known_schedule(run, seen, siblings), siblings)
    except ToposcopeError as error:
        names = [DEFAULT, *(forecaster.name for forecaster in forecasters())]
        return [(*key, name, None, None, None, *final, str(error)) for name in names]
    made = [(*key, name, f.loss, f.low, f.high, *final, "") for name, f in results.forecasts.items()]
    return made + [(*key, name, None, None, None, *final, reason) for name, reason in results.refused.items()]
