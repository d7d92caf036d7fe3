"""Tables of several runs, and tables that are not one row a step, taken apart."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import NAMES, guess
from toposcope.logs.raw import Raw, counted, listed

KEYS = ("key", "metric", "metric_name", "tag")
"""Columns of a long table that name what a row's value is."""
SPREAD = ("__MIN", "__MAX")
"""Ends of columns that W&B writes beside a chart's own: the spread within a bin."""
BETWEEN = " - "
"""Between run and metric in a column of a W&B chart."""


def split(raw: Raw, columns: Mapping[str, str]) -> list[Raw]:
    """Return the runs of a table, one row a step, each under its name.

    Parameters
    ----------
    raw : Raw
    columns : mapping
        What the caller said columns are; only ``run`` matters here.

    Raises
    ------
    ToposcopeError
        If the column of runs that was named is not there.
    """
    run = columns.get("run")
    if run is not None and run not in raw.table.columns:
        raise ToposcopeError(f"{raw.source}: no column {run!r}; it has {listed(raw.table.columns)}")
    if charts := _charts(raw.table):
        return [replace(raw, name=name, table=table) for name, table in charts.items()]
    run = run or next(iter(guess(raw.table.columns).columns.get("run", [])), None)
    key = next((name for name in raw.table.columns if name.lower() in KEYS), None)
    if key is not None and {"step", "value"} <= set(raw.table.columns):
        runs = _by_run(raw, run) if run else [raw]
        return [replace(r, table=widened(r.table, key)) for r in runs]
    return _by_run(raw, run) if run else [raw]


def _by_run(raw: Raw, run: str) -> list[Raw]:
    table = raw.table.with_columns(pl.col(run).cast(pl.String))
    nameless = table[run].null_count()
    remarks = raw.remarks
    if nameless:
        remarks = (*remarks, f"{counted(nameless, 'row names', 'rows name')} no run in column {run!r}: ignored")
    parts = table.filter(pl.col(run).is_not_null()).partition_by(run, as_dict=True, include_key=False)
    if not parts and not raw.table.is_empty():
        return [raw]  # a column of runs with nothing in it
    return [replace(raw, name=str(name), table=part, remarks=remarks) for (name,), part in parts.items()]


def widened(table: pl.DataFrame, key: str, step: str = "step", value: str = "value") -> pl.DataFrame:
    """Return a long table, one value a row, as one with a column for each key.

    Where a key has a step twice, the later one is in a row of its own, below.
    """
    again = pl.int_range(pl.len()).over(key, step).alias("_again")
    wide = table.select(key, step, value, again).pivot(on=key, index=["_again", step], values=value)
    return wide.sort("_again", maintain_order=True).drop("_again")


def _charts(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables of a W&B chart's export by run, or nothing if it is none: ``Step``, ``<run> - train/loss``."""
    first, *others = table.columns or [""]
    if not others or first.lower().rpartition("/")[2] not in NAMES["step"] or not all(BETWEEN in n for n in others):
        return {}
    of_run: dict[str, dict[str, str]] = {}
    for name in others:
        run, _, metric = name.rpartition(BETWEEN)
        if not metric.endswith(SPREAD) and metric != first:
            of_run.setdefault(run, {})[name] = metric
    return {
        run: table.select(first, *names).rename(names).filter(~pl.all_horizontal(pl.col(*names.values()).is_null()))
        for run, names in of_run.items()
    }
