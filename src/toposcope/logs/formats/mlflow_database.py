"""The SQLite database in which MLflow keeps its runs, ``mlflow.db``."""

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from toposcope.databases import refuse_views
from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog
from toposcope.logs.splitting import pivot_long

ENDINGS = (".db", ".sqlite", ".sqlite3")
MAGIC = b"SQLite format 3\0"
METRICS = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step, rowid"
MAX_VALUE_BYTES = 1 << 20  # of a text; an expression in a table makes a large one of nothing
MAX_FINITE = 1.797e308  # MLflow keeps infinity as the largest number, and NaN as 0 with a mark


def looks_like(head: bytes) -> bool:
    """Return whether a file begins as a database does."""
    return head.startswith(MAGIC)


def runs(path: Path) -> list[RawLog]:
    """Return the runs that were not deleted, with their parameters as facts."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            refuse_views(database)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            names = database.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active'").fetchall()
            found = [_run(database, path, str(run), str(name or run)) for run, name in names]
    except sqlite3.Error as error:
        raise ToposcopeError(f"not a database of MLflow that can be read ({error})") from error
    if not found:
        raise ToposcopeError("no run in it")
    return found


def _run(database: sqlite3.Connection, path: Path, run: str, name: str) -> RawLog:
    rows = database.execute(METRICS, (run,)).fetchall()
    schema = {"key": pl.String, "step": pl.Int64, "value": pl.Float64, "is_nan": pl.Int64}
    table = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.when(pl.col("is_nan") == 1)
        .then(float("nan"))
        .when(pl.col("value").abs() > MAX_FINITE)
        .then(float("inf"))
        .otherwise("value")
        .alias("value")
    )
    facts = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall())
    return RawLog(path, name, pivot_long(table, "key"), facts=facts)
