"""Parquet."""

from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog, one_line

ENDINGS = (".parquet", ".pq")


def looks_like(head: bytes) -> bool:
    """Return whether a file begins as Parquet does."""
    return head.startswith(b"PAR1")


def runs(path: Path) -> list[RawLog]:
    """Return the table of a file; nested columns are named as in ``train/loss``."""
    if not path.stat().st_size:
        raise ToposcopeError("the file is empty")
    try:
        table = pl.read_parquet(path.read_bytes())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ToposcopeError(f"truncated or not Parquet ({one_line(error)})") from error
    while nested := [name for name, dtype in table.schema.items() if isinstance(dtype, pl.Struct)]:
        for name in nested:
            fields = table[name].struct.unnest()
            fields = fields.rename({field: f"{name}/{field}" for field in fields.columns})
            table = table.drop(name).hstack(fields.drop(set(fields.columns) & set(table.columns)))
    return [RawLog(path, "", table)]
