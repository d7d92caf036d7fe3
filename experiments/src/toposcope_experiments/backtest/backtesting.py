"""Forecasts of runs whose end is known, from their beginnings alone, and their scores against simpler forecasts."""

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import polars as pl

from toposcope.engine import TaskFailure, Workers, shared
from toposcope.extend import (
    COVERAGE,
    DEFAULT,
    CompleteRuns,
    LoggedRun,
    Progress,
    RefusedError,
    ToposcopeError,
    adjusted,
    complete_runs,
    derive_seed,
    forecasters,
    known_schedule,
    remarks_on_runs,
    run_forecasters,
    sign_flip,
    silent,
)
from toposcope.logs import Logs, read_logs

Split = Literal["size", "group", "family"]
SPLITS: tuple[Split, ...] = get_args(Split)
DEFAULT_FRACTIONS = (0.1, 0.2, 0.3, 0.5, 0.7)
SCHEMA = {
    **dict.fromkeys(("run", "family", "size", "group"), pl.String),
    "fraction": pl.Float64,
    "forecaster": pl.String,
    **dict.fromkeys(("predicted", "low", "high", "final", "final_error"), pl.Float64),
    "refused": pl.String,
}
SCORES = {
    "fraction": pl.Float64,
    "forecaster": pl.String,
    **dict.fromkeys(("n", "refused"), pl.Int64),
    **dict.fromkeys(("mae", "relative_median", "relative_p90", "bias", "worst", "coverage", "width"), pl.Float64),
    **dict.fromkeys(("interval_score", "rank_correlation"), pl.Float64),
}
SKILLS = {
    "fraction": pl.Float64,
    **dict.fromkeys(("forecaster", "baseline"), pl.String),
    **dict.fromkeys(("n", "n_groups"), pl.Int64),
    **dict.fromkeys(("skill", "skill_low", "skill_high", "p", "p_adjusted"), pl.Float64),
}


def runs_to_score(logs: Logs) -> CompleteRuns:
    """Return the complete runs of a collection for a backtest."""
    units = sorted({log.unit for log in logs.logs})
    if len(units) > 1:
        parts = ", ".join(f"{unit} in {sum(log.unit == unit for log in logs.logs)} runs" for unit in units)
        raise ToposcopeError(
            f"units differ ({parts}): errors in different units have no mean; give the runs of one unit"
        )
    complete = complete_runs(logs.logs)
    remarks = remarks_on_runs(logs, complete)
    if len(complete.runs) < 2:
        raise ToposcopeError(
            "; ".join([f"a backtest needs at least two complete runs, not {len(complete.runs)}", *remarks])
        )
    return CompleteRuns(complete.runs, tuple(remarks))


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
        ``size`` and ``group`` name what is held out together with the run, by size and by kind of schedule.

    Raises
    ------
    ToposcopeError
        If there are fewer than two runs, their units differ, or a fraction is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from toposcope.logs import Run
    >>> from toposcope.extend import complete_runs
    >>> steps = np.arange(20, 2001, 20)
    >>> logs = [Run(f"run {k}", steps, k + 3 * steps**-0.3, np.full(100, 1e-3), 2000, k * 1e8) for k in (1, 2)]
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


def scores(backtested: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of each forecaster at each fraction."""
    rows = []
    for (fraction, forecaster), part in backtested.group_by("fraction", "forecaster", maintain_order=True):
        known = part.filter(pl.col("predicted").is_not_null())
        if len(known):
            rows.append((fraction, forecaster, len(known), len(part) - len(known), *_errors(known)))
    return pl.DataFrame(rows, schema=SCORES, orient="row").sort("fraction", "relative_median", "forecaster")


def skills(backtested: pl.DataFrame, baselines: Sequence[str] = ("last", "power_law", "annealing")) -> pl.DataFrame:
    """Compare each forecaster with simpler ones, on the runs that both forecast.

    Returns
    -------
    polars.DataFrame
        ``fraction, forecaster, baseline, n, n_groups, skill`` (1 - MAE / MAE of the baseline), ``skill_low`` and
        ``skill_high`` (95%, 1,000 bootstrap samples of groups), ``p`` (two-sided, of flipping the signs of the groups'
        mean differences) and ``p_adjusted`` (Holm, over the forecasters at a fraction and baseline). Groups are the
        runs of one family and size. NaN with fewer than two groups.
    """
    error = (pl.col("predicted") - pl.col("final")).abs()
    known = backtested.filter(pl.col("predicted").is_not_null()).with_columns(error=error)
    rows: list[tuple[object, ...]] = []
    for (fraction,), part in known.group_by("fraction", maintain_order=True):
        for baseline in baselines:
            base = part.filter(forecaster=baseline).select("family", "run", base="error")
            names = [name for name in part["forecaster"].unique(maintain_order=True) if name != baseline]
            skill_rows = []
            for name in names:
                both = part.filter(forecaster=name).join(base, on=["family", "run"])
                if len(both):
                    skill_rows.append((fraction, name, baseline, len(both), *_skill(both)))
            p = adjusted(np.array([row[-1] for row in skill_rows], dtype=np.float64))
            rows.extend((*row, value) for row, value in zip(skill_rows, p, strict=True))
    return pl.DataFrame(rows, schema=SKILLS, orient="row")


def _errors(known: pl.DataFrame) -> tuple[float, ...]:
    """Return mae to rank_correlation."""
    predicted, final, low, high = (known[name].to_numpy() for name in ("predicted", "final", "low", "high"))
    error, relative = predicted - final, np.abs(predicted / final - 1)
    outside = np.maximum(low - final, 0) + np.maximum(final - high, 0)
    score = (high - low + 2 / (1 - COVERAGE) * outside) / final
    rho = known.select(pl.corr("predicted", "final", method="spearman")).item()  # NaN where all are equal
    of_errors = np.abs(error).mean(), np.median(relative), np.quantile(relative, 0.9), error.mean(), relative.max()
    return tuple(map(float, (*of_errors, (outside == 0).mean(), ((high - low) / final).mean(), score.mean(), rho)))


def _skill(both: pl.DataFrame) -> tuple[float, ...]:
    """Return n_groups, skill, its interval and p."""
    groups = both.group_by("family", "size", maintain_order=True).agg(
        pl.col("error").sum(), pl.col("base").sum(), difference=(pl.col("error") - pl.col("base")).mean()
    )
    ours, base = groups["error"].to_numpy(), groups["base"].to_numpy()
    skill = 1 - ours.sum() / base.sum() if base.sum() > 0 else np.nan
    if len(groups) < 2:
        return len(groups), skill, np.nan, np.nan, np.nan
    rng = np.random.default_rng(derive_seed(42, "skill", len(groups)))
    sampled = rng.integers(len(groups), size=(1000, len(groups)))
    below = base[sampled].sum(axis=1)
    resampled = 1 - ours[sampled].sum(axis=1) / np.where(below > 0, below, np.nan)
    low, high = np.nanquantile(resampled, [0.025, 0.975]) if base.any() else (np.nan, np.nan)
    return len(groups), float(skill), float(low), float(high), sign_flip(groups["difference"].to_numpy())
