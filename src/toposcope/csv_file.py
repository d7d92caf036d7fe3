"""Tables as CSV that a spreadsheet shows as they are: no cell is run as a formula."""

import json
import re
from pathlib import Path

import polars as pl

from toposcope.files import write_bytes, write_whole

FORMULA = r"^\s*[=+\-@]|^[\t\r]"
"""How a text begins that a spreadsheet may run; names of runs, layers and columns come from files of others."""
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def to_csv(table: pl.DataFrame) -> bytes:
    """Return a table as CSV: a list as its JSON, and a text that begins like a formula behind an apostrophe.

    Numbers stay as they are, also those written as text.
    """
    plain = table.with_columns(_escaped(name) for name, kind in table.schema.items() if kind == pl.String)
    plain.columns = [_escaped_name(name) for name in table.columns]
    nested = [name for name, kind in plain.schema.items() if isinstance(kind, pl.List | pl.Struct)]
    plain = plain.with_columns(
        pl.Series(name, [None if value is None else json.dumps(value) for value in plain[name].to_list()], pl.String)
        for name in nested
    )
    return plain.write_csv().encode()


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table whole: as Parquet if the path ends so, else as CSV."""
    if path.suffix == ".parquet":
        write_whole(path, table.write_parquet)
    else:
        write_bytes(path, to_csv(table))


def _escaped(name: str) -> pl.Expr:
    text = pl.col(name)
    is_formula = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
    return pl.when(is_formula).then(pl.concat_str(pl.lit("'"), text)).otherwise(text).alias(name)


def _escaped_name(name: str) -> str:
    return f"'{name}" if re.search(FORMULA, name) and not re.search(NUMBER, name) else name
