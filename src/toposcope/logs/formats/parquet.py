"""Parquet."""

import io
from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog, one_line

MAX_CELLS = 500_000_000  # rows times columns; a file of a few bytes can hold any number of equal ones
ENDINGS = (".parquet", ".pq")


def looks_like(head: bytes) -> bool:
    """Return whether a file begins as Parquet does."""
    return head.startswith(b"PAR1")


def runs(path: Path) -> list[RawLog]:
    """Return the table of a file; nested columns are named as in ``train/loss``."""
    if not path.stat().st_size:
        raise ToposcopeError("the file is empty")
    try:
        content = path.read_bytes()
        n_columns = len(pl.read_parquet_schema(io.BytesIO(content)))
        n_rows = int(pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item())
        if n_rows * n_columns > MAX_CELLS:
            raise ToposcopeError(f"{n_rows:,} rows of {n_columns} columns; a training log has fewer")
        table = pl.read_parquet(content)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ToposcopeError(f"truncated or not Parquet ({one_line(error)})") from error
    while nested := [name for name, dtype in table.schema.items() if isinstance(dtype, pl.Struct)]:
        for name in nested:
            fields = table[name].struct.unnest()
            fields = fields.rename({field: f"{name}/{field}" for field in fields.columns})
            table = table.drop(name).hstack(fields.drop(set(fields.columns) & set(table.columns)))
    return [RawLog(path, "", table)]
