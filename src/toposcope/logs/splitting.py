"""Tables of several runs, and tables that are not one row a step, split into one table a run."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import NAMES, identify_columns
from toposcope.logs.raw import RawLog, join_names, plural

KEYS = ("key", "metric", "metric_name", "tag")
"""Columns of a long table that name the quantity in a row."""
SPREAD = ("__MIN", "__MAX")
"""Ends of the columns that W&B writes beside a chart's own: the spread within a bin."""
SEPARATOR = " - "
"""Between run and metric in a column of a W&B chart."""


def split_runs(raw: RawLog, columns: Mapping[str, str]) -> list[RawLog]:
    """Return the runs of a table, one row a step, each under its name.

    Parameters
    ----------
    raw : RawLog
    columns : mapping
        Columns that the caller named; only ``run`` matters here.

    Raises
    ------
    ToposcopeError
        If the column of runs that was named is not there.
    """
    run = columns.get("run")
    if run is not None and run not in raw.table.columns:
        raise ToposcopeError(f"no column {run!r}; it has {join_names(raw.table.columns)}")
    if charts := _charts(raw.table):
        return [replace(raw, name=name, table=table) for name, table in charts.items()]
    run = run or next(iter(identify_columns(raw.table.columns).named.get("run", [])), None)
    key = next((name for name in raw.table.columns if name.lower() in KEYS), None)
    parts = _by_run(raw, run) if run else [raw]
    if key is not None and {"step", "value"} <= set(raw.table.columns):
        return [replace(part, table=pivot_long(part.table, key)) for part in parts]
    return parts


def _by_run(raw: RawLog, run: str) -> list[RawLog]:
    table = raw.table.with_columns(pl.col(run).cast(pl.String))
    nameless = table[run].null_count()
    remarks = raw.remarks
    if nameless:
        remarks = (*remarks, f"{plural(nameless, 'row names', 'rows name')} no run in column {run!r}: ignored")
    parts = table.filter(pl.col(run).is_not_null()).partition_by(run, as_dict=True, include_key=False)
    if not parts and not raw.table.is_empty():
        return [raw]  # a column of runs with nothing in it
    return [replace(raw, name=str(name), table=part, remarks=remarks) for (name,), part in parts.items()]


def pivot_long(table: pl.DataFrame, key: str, step: str = "step", value: str = "value") -> pl.DataFrame:
    """Return a long table, one value a row, with a column for each key.

    Where a key has a step twice, the later value is in a row of its own, below.
    """
    again = pl.int_range(pl.len()).over(key, step).alias("_again")
    wide = table.select(key, step, value, again).pivot(on=key, index=["_again", step], values=value)
    return wide.sort("_again", maintain_order=True).drop("_again")


def _charts(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables of a W&B chart's export (``Step``, ``<run> - train/loss``) by run; nothing of another table."""
    first, *others = table.columns or [""]
    is_step = first.lower().rpartition("/")[2] in NAMES["step"]
    if not others or not is_step or not all(SEPARATOR in name for name in others):
        return {}
    metrics: dict[str, dict[str, str]] = {}
    for name in others:
        run, _, metric = name.rpartition(SEPARATOR)
        if not metric.endswith(SPREAD) and metric != first:
            metrics.setdefault(run, {})[name] = metric
    return {
        run: table.select(first, *names).rename(names).filter(~pl.all_horizontal(pl.col(*names.values()).is_null()))
        for run, names in metrics.items()
    }
