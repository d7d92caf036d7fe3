"""What trackers keep on a machine: TensorBoard's event files, MLflow's folders and databases, the folders of W&B runs.

Events are those of TensorBoard's own definition (extra ``tensorboard``).
"""

import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.databases import refuse_views
from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.logs.formats import json_rows
from toposcope.logs.formats.tables import hyperparameters
from toposcope.logs.raw import RawLog, plural
from toposcope.logs.splitting import pivot_long
from toposcope.logs.texts import refuse_pointer

EVENTS = "tfevents"
LENGTH = struct.Struct("<Q")
BEFORE, AFTER = 12, 4
"""Bytes around each event: its length and a check sum, and a check sum of the event.

The sums are not checked: in Python that takes most of the time, and the lengths show where a file is cut.
"""
DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64}
"""Of tensors that may be scalars, by number in TensorFlow's types.proto."""
DATABASES, MAGIC = (".db", ".sqlite", ".sqlite3"), b"SQLite format 3\0"
MAX_VALUE_BYTES = 1 << 20  # of a text; an expression in a table makes a large one of nothing
MAX_FINITE = 1.797e308  # MLflow keeps infinity as the largest number, and NaN as 0 with a mark
_WANDB_RUN = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-(\w+)")
_WANDB_VALUE = re.compile(r"^([\w./-]+):\n(?:  desc:.*\n)?  value: ([^\n]+)$", re.MULTILINE)
"""A plain value of ``config.yaml`` as W&B writes it."""


def claims(path: Path) -> bool:
    """Return whether the path is an event file, a database, or a folder of events or of one MLflow or W&B run."""
    if path.is_file():
        return EVENTS in path.name or path.suffix.lower() in DATABASES
    return (
        bool(_event_files(path))
        or _is_mlflow_run(path)
        or (path.is_dir() and _WANDB_RUN.fullmatch(path.name) is not None)
    )


def looks_like(head: bytes) -> bool:
    """Return whether a file begins as a database does."""
    return head.startswith(MAGIC)


def runs(path: Path) -> list[RawLog]:
    """Return the runs at a path, with what the tracker knows of them as facts."""
    if _event_files(path):
        return _of_events(path)
    if path.is_file():
        return _of_database(path)
    return [_of_mlflow_folder(path) if _is_mlflow_run(path) else _of_wandb_folder(path)]


def _event_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [file for file in files if EVENTS in file.name and file.is_file()]


def _of_events(path: Path) -> list[RawLog]:
    below = sorted(f for f in path.rglob("*") if f.is_dir() and _event_files(f)) if path.is_dir() else []
    found = [raw for folder in (path, *below) if (raw := _event_run(folder)) is not None]
    if not found:
        raise ToposcopeError("no scalars in it; nothing was logged yet, or it is damaged")
    return found


def _event_run(path: Path) -> RawLog | None:
    """Return the scalars of event files, in the order of their names, which hold the time; None if there are none."""
    remarks: list[str] = []
    rows = [row for file in _event_files(path) for row in _scalars(file, remarks)]
    if not rows:
        return None
    table = pl.DataFrame(rows, schema={"key": pl.String, "step": pl.Int64, "value": pl.Float64}, orient="row")
    name = "" if path.is_dir() else path.resolve().parent.name
    facts = hyperparameters(path if path.is_dir() else path.parent)
    return RawLog(path, name, pivot_long(table, "key"), facts=facts, remarks=tuple(remarks))


def _scalars(file: Path, remarks: list[str]) -> Iterator[tuple[str, int, float]]:
    require("tensorboard.compat.proto.event_pb2", f"log {file}")
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    content = file.read_bytes()
    refuse_pointer(content)
    place = 0
    while place + BEFORE <= len(content):
        (length,) = LENGTH.unpack_from(content, place)
        end = place + BEFORE + length + AFTER
        if end > len(content):
            break
        try:
            event = Event.FromString(content[place + BEFORE : end - AFTER])
        except DecodeError:
            break
        place = end
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                yield value.tag, event.step, number
    if place < len(content):
        remarks.append(f"{file.name}: the last {len(content) - place} bytes are no whole event: ignored")


def _number(value: Any) -> float | None:
    """Return a scalar, be it a number or a tensor of one number; None if it is something else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.dtype not in DTYPES:
        return None
    if value.metadata.plugin_data.plugin_name not in ("", "scalars"):
        return None
    tensor = value.tensor
    dtype = np.dtype(DTYPES[tensor.dtype])
    if len(tensor.tensor_content) == dtype.itemsize:
        return float(np.frombuffer(tensor.tensor_content, dtype)[0])
    stored = [*tensor.float_val, *tensor.double_val, *tensor.int_val, *tensor.int64_val]
    return float(stored[0]) if len(stored) == 1 else None


def _is_mlflow_run(path: Path) -> bool:
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def _of_mlflow_folder(path: Path) -> RawLog:
    """Return the run in a folder of ``mlruns``, one text file per metric."""
    if "lifecycle_stage: deleted" in _text(path / "meta.yaml"):
        raise ToposcopeError("the run was deleted in MLflow")
    metrics = path / "metrics"
    files = sorted(file for file in metrics.rglob("*") if file.is_file())
    remarks: list[str] = []
    tables = [_metric(file, file.relative_to(metrics).as_posix(), remarks) for file in files]
    if not tables:
        raise ToposcopeError("no metric was logged")
    facts: dict[str, object] = {f.name: _text(f) for f in sorted((path / "params").glob("*")) if f.is_file()}
    name = path / "tags" / "mlflow.runName"
    run = _text(name) if name.is_file() else path.name
    return RawLog(path, run, pivot_long(pl.concat(tables), "key"), facts=facts, remarks=tuple(remarks))


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


def _of_database(path: Path) -> list[RawLog]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            refuse_views(database)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            names = database.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active'").fetchall()
            found = [_database_run(database, path, str(run), str(name or run)) for run, name in names]
    except sqlite3.Error as error:
        raise ToposcopeError(f"not a database of MLflow that can be read ({error})") from error
    if not found:
        raise ToposcopeError("no run in it")
    return found


def _database_run(database: sqlite3.Connection, path: Path, run: str, name: str) -> RawLog:
    query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step, rowid"
    rows = database.execute(query, (run,)).fetchall()
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


def _of_wandb_folder(path: Path) -> RawLog:
    """Return the history of a W&B run where it is a file of JSON lines, with the plain values of its configuration."""
    history = next(
        (f for f in (path / "files" / "wandb-history.jsonl", path / "wandb-history.jsonl") if f.is_file()), None
    )
    if history is None:
        raise ToposcopeError(
            "the history of this run is in a file that only wandb reads; export it: "
            "wandb.Api().run('ENTITY/PROJECT/RUN').history(samples=10**6).to_csv('run.csv')"
        )
    (raw,) = json_rows.runs(history)
    config = path / "files" / "config.yaml"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    name = _WANDB_RUN.fullmatch(path.name)
    return replace(raw, name=name[1] if name else path.name, facts=dict(_WANDB_VALUE.findall(text)))
