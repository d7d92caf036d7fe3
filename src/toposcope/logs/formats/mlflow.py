"""MLflow: the folder of a run in ``mlruns``, one text file a metric, and the SQLite database ``mlflow.db``."""

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from toposcope.databases import refuse_views
from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog, plural
from toposcope.logs.splitting import pivot_long

ENDINGS = (".db", ".sqlite", ".sqlite3")
MAGIC = b"SQLite format 3\0"
METRICS = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step, rowid"
MAX_VALUE_BYTES = 1 << 20  # of a text; an expression in a table makes a large one of nothing
MAX_FINITE = 1.797e308  # MLflow keeps infinity as the largest number, and NaN as 0 with a mark


def claims(path: Path) -> bool:
    """Return whether the path is the folder of one run."""
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def runs(path: Path) -> list[RawLog]:
    """Return the runs of a database, or the one in a folder, with their parameters as facts."""
    return _of_database(path) if path.is_file() else _of_folder(path)


def _of_folder(path: Path) -> list[RawLog]:
    if "lifecycle_stage: deleted" in _text(path / "meta.yaml"):
        raise ToposcopeError("the run was deleted in MLflow")
    metrics = path / "metrics"
    files = sorted(file for file in metrics.rglob("*") if file.is_file())
    remarks: list[str] = []
    tables = [_metric(file, file.relative_to(metrics).as_posix(), remarks) for file in files]
    if not tables:
        raise ToposcopeError("no metric was logged")
    parameters = path / "params"
    facts: dict[str, object] = {f.name: _text(f) for f in sorted(parameters.glob("*")) if f.is_file()}
    name = path / "tags" / "mlflow.runName"
    run = _text(name) if name.is_file() else path.name
    return [RawLog(path, run, pivot_long(pl.concat(tables), "key"), facts=facts, remarks=tuple(remarks))]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace").strip()


def _metric(file: Path, name: str, remarks: list[str]) -> pl.DataFrame:
    """Return the lines of a metric, ``timestamp value step``."""
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.split("\n") if line.strip()]
    if lines and not text.endswith("\n"):
        # a step that was cut has fewer digits than the one before
        before = len(lines[-2][-1]) if len(lines) > 1 else 0
        if len(lines[-1]) < 3 or len(lines[-1][2]) < before:
            lines.pop()
            remarks.append(f"metric {name}: the last line was cut in the middle: ignored")
    rows = [(name, line[1], line[2]) for line in lines if len(line) == 3]
    if len(rows) < len(lines):
        remarks.append(
            f"metric {name}: {plural(len(lines) - len(rows), 'line has', 'lines have')} not 3 parts: ignored"
        )
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String, "step": pl.String}, orient="row")


def looks_like(head: bytes) -> bool:
    """Return whether a file begins as a database does."""
    return head.startswith(MAGIC)


def _of_database(path: Path) -> list[RawLog]:
    """Return the runs that were not deleted."""
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
