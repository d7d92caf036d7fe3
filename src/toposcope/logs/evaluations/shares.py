"""Scores as shares from 0 to 1, from shares and percentages."""

import polars as pl

from toposcope.logs.evaluations.tasks import chance_of
from toposcope.logs.raw import join_names, plural

SHARES = ("score", "other_score")
MIN_CHOICE = 0.05
"""Chance of a task that is a choice between answers: beyond 1% by far."""


def shares(table: pl.DataFrame, remarks: list[str]) -> pl.DataFrame:
    """Return scores from 0 to 1: where a metric goes beyond 1 in a file, it is in percent there.

    A score of 1 or less among them is a share all the same if the task is a choice: 1% is far below its chance; so are
    all of a task of unknown chance that lie between 5% and 1.
    """
    table = _with_percentages(table)
    if len(metrics := table.filter("percent")["metric"].unique().sort()):
        remarks.append(f"scores of {join_names([*metrics], 4)} are percentages: divided by 100")
    if len(mixed := table.filter("mixed")):
        first, n = mixed.row(0, named=True), plural(len(mixed), "score", "scores")
        remarks.append(
            f"{n} among percentages at most 1 (the first: run {first['run']}, task {first['task']}): taken as a share"
        )
    if len(small := table.filter("small")["task"].unique().sort()):
        remarks.append(f"all scores of {join_names([*small], 6)} are at most 1: taken as percentages like the others")
    table = table.with_columns(
        pl.when("percent").then(pl.col(name) / 100).otherwise(name).alias(name) for name in ("value", "standard_error")
    )
    if len(tasks := table.filter(pl.col("chance") > 1)["task"].unique().sort()):
        remarks.append(f"chance of {join_names([*tasks], 4)} is a percentage: divided by 100")
    table = table.with_columns(chance=pl.when(pl.col("chance") > 1).then(pl.col("chance") / 100).otherwise("chance"))
    impossible = ~((pl.col("chance") >= 0) & (pl.col("chance") < 1))
    if n_tasks := table.filter(pl.col("chance").is_not_null() & impossible)["task"].n_unique():
        remarks.append(f"chance is no share below 1 in {plural(n_tasks, 'task', 'tasks')}: ignored there")
    table = table.with_columns(chance=pl.when(~impossible).then("chance"))
    outside = pl.col("role").is_in(SHARES) & ~pl.col("value").is_between(0, 1)
    if len(rows := table.filter(outside)):
        first, n = rows.row(0, named=True), plural(len(rows), "score is", "scores are")
        remarks.append(
            f"{n} neither a share nor a percentage (the first: run {first['run']}, task {first['task']}, "
            f"{first['metric']}): ignored"
        )
    return table.filter(~outside)


def _with_percentages(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with columns ``percent``, and ``mixed``: a share among percentages."""
    is_score = pl.col("role").is_in(SHARES)
    largest = pl.col("value").filter(is_score).max().over("source", "metric")
    pairs = table.select("task", "metric").unique()
    usual = pl.Series("usual", [chance_of(*pair) for pair in pairs.rows()], dtype=pl.Float64)
    table = table.join(pairs.with_columns(usual), on=["task", "metric"], how="left", maintain_order="left")
    is_choice = pl.coalesce("chance", "usual").fill_null(0) > MIN_CHOICE
    of_task = pl.col("value").filter(is_score)
    top, least = (value.over("source", "metric", "task") for value in (of_task.max(), of_task.min()))
    is_unknown = pl.coalesce("chance", "usual").is_null()
    share = (is_choice & pl.col("value").is_between(0, 1, "right")) | (is_unknown & (top <= 1) & (least >= MIN_CHOICE))
    beyond, share = (is_score & (largest > 1)).fill_null(False), share.fill_null(False)
    return table.with_columns(percent=beyond & ~share, mixed=beyond & share, small=beyond & ~share & (top <= 1))
