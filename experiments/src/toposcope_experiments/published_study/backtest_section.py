"""The forecasting rules of the published study next to forecasts without topology, as a section of a backtest."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from toposcope.analysis import trajectories
from toposcope.extend import (
    DEFAULT,
    Block,
    LoggedRun,
    Picture,
    RefusedError,
    ReportSection,
    Spec,
    ToposcopeError,
    complete_runs,
    csv_link,
    known_schedule,
    number_of,
    paragraph,
    percent_of,
    plain,
    run_forecasters,
    table,
    text_of,
    whole,
)
from toposcope.study import Study
from toposcope_experiments.backtest.backtesting import siblings_in_split
from toposcope_experiments.backtest.result import BacktestData
from toposcope_experiments.published_study.predictions import predictions

TABLE = {"protocol": pl.String, "fraction": pl.Float64, "forecaster": pl.String, "n": pl.Int64}
TABLE |= dict.fromkeys(("mae", "worst"), pl.Float64)
ERRORS = ("run", "protocol", "fraction", "forecaster", "error")
LOSSES: dict[str, dict[str, str] | None] = {"published": {"loss": "loss"}, "exact": None}
"""The log columns that the default forecaster reads, by protocol: the loss of batches, or the most reliable loss."""
RULES: tuple[Spec, ...] = (
    text_of("target", "protocol"),
    percent_of("seen, %", "fraction"),
    text_of("forecaster", "forecaster", names_row=True),
    number_of("runs", "n", whole),
    number_of("MAE, nats", "mae", plain),
    number_of("worst, nats", "worst", plain),
)


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


def _rules(data: BacktestData) -> pl.DataFrame:
    return pl.DataFrame() if data.study is None else published_rules(data.study)


def _blocks(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    rows = data.tables["rules"].to_dicts()
    if not rows:
        return ()
    return (
        paragraph(
            "The rules of the published study next to the same blend without topology, and next to the default here. ",
            csv_link("rules"), ".",
        ),
        table("rules", "Mean errors", RULES, rows),
    )  # fmt: skip


SECTION = ReportSection[BacktestData](
    anchor="rules", title="The published rules", position=50, tables={"rules": _rules}, blocks=_blocks
)
