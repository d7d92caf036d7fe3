"""The published study's forecasts compared with forecasts without topology, on the runs of one study."""

import numpy as np
import polars as pl

from toposcope.analysis import trajectories
from toposcope.extend import (
    LoggedRun,
    RefusedError,
    ToposcopeError,
    complete_runs,
    known_schedule,
    run_forecasters,
    siblings_in_split,
)
from toposcope.study import Study
from toposcope_experiments.published_study.predictions import predictions

DEFAULT = "default"  # the forecaster that is used where none is named
TABLE = {
    "protocol": pl.String,
    "fraction": pl.Float64,
    "forecaster": pl.String,
    "n": pl.Int64,
    "mae": pl.Float64,
    "worst": pl.Float64,
}
ERRORS = ("run", "protocol", "fraction", "forecaster", "error")
LOSSES: dict[str, dict[str, str] | None] = {"published": {"loss": "loss"}, "exact": None}
"""The log columns that the default forecaster reads, by protocol: the loss of batches, or the most reliable loss."""


def published_rules(study: Study) -> pl.DataFrame:
    """Return the errors of the published rules, of the blend without topology and of our default."""
    log = study.log()
    found = predictions(trajectories(study.frame(), study.labels(), log), log, study.runs())
    if not len(found):
        return pl.DataFrame(schema=TABLE)
    asked = found.select("run", "protocol", "fraction", "final").unique(maintain_order=True)
    ours = [_ours(study, part, str(protocol)) for (protocol,), part in asked.group_by("protocol", maintain_order=True)]
    errors = pl.concat([found.select(ERRORS), *ours])
    answers = pl.len().over("protocol", "fraction", "run")
    errors = errors.filter(answers == answers.max().over("protocol", "fraction"))
    mean_errors = errors.group_by("protocol", "fraction", "forecaster", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64), mae=pl.col("error").mean(), worst=pl.col("error").max()
    )
    return mean_errors.sort("protocol", "fraction", descending=[True, False], maintain_order=True).select(list(TABLE))


def _ours(study: Study, asked: pl.DataFrame, protocol: str) -> pl.DataFrame:
    """Return the errors of the default on runs and fractions."""
    from toposcope.logs import read_logs

    try:
        runs = complete_runs(read_logs(study.directory, columns=LOSSES[protocol]).logs).runs
    except ToposcopeError:  # losses were published at checkpoints alone
        runs = ()
    by_name = {run.log.name: run for run in runs}
    rows = [
        (name, protocol, fraction, DEFAULT, abs(loss - final))
        for name, fraction, final in asked.select("run", "fraction", "final").iter_rows()
        if name in by_name and np.isfinite(loss := _default(by_name[name], runs, fraction))
    ]
    schema = {name: TABLE.get(name, pl.Float64) for name in ERRORS} | {"run": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _default(run: LoggedRun, runs: tuple[LoggedRun, ...], fraction: float) -> float:
    """Return the default forecast of the final loss; NaN if every forecaster refuses."""
    seen = run.seen(fraction)
    if seen is None:
        return np.nan
    try:
        siblings = siblings_in_split(run, runs, "size")
        return run_forecasters(seen, known_schedule(run, seen, siblings), siblings).forecasts[DEFAULT].loss
    except RefusedError:
        return np.nan
