"""A study of ours, with the training logs of all its runs."""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.databases import refuse_schema, refuse_views
from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog
from toposcope.logs.table import COLUMNS
from toposcope.logs.watched import Watched, monitor_facts, read_watched
from toposcope.untrusted import toml_value

FILES = ("study.toml", "study.db")


def claims(path: Path) -> bool:
    """Return whether the path is a study's folder, or its database or declaration in there."""
    folder = path.parent if path.is_file() else path
    return (path.is_dir() or path.name in FILES) and all((folder / name).is_file() for name in FILES)


def runs(path: Path) -> list[RawLog]:
    """Return the logs of the runs that the study declares; runs trained in it are one family."""
    folder = path.parent if path.is_file() else path
    declaration = toml_value(folder / "study.toml")
    trained = {run.get("name") or run["size"]: run for run in declaration.get("runs", [])}
    series = {one.get("name") or _last_part(one["path"]) for one in declaration.get("series", [])}
    with closing(sqlite3.connect(f"{(folder / 'study.db').resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as store:
        refuse_views(store)
        try:
            refuse_schema(store)
        except sqlite3.DatabaseError as error:
            raise ToposcopeError(f"{folder / 'study.db'}: {error}; read it with that version") from error
        sizes = store.execute("SELECT run, n_parameters FROM runs ORDER BY position").fetchall()
        return [
            RawLog(
                folder,
                run,
                _log(store, run),
                facts={
                    "n_parameters": size,
                    **_planned(store, run, watched),
                    **(_facts(declaration, trained[run]) if run in trained else {}),
                },
                one_run=True,
                watched=watched,
            )
            for run, size in sizes
            if run in trained or run in series
            for watched in [read_watched(store, run)]
        ]


def _planned(store: sqlite3.Connection, run: str, watched: Watched | None) -> dict[str, int]:
    """Return the last step planned, as the user told the monitor or as its last forecast has it."""
    if watched is None:
        return {}
    steps = [monitor_facts(store, run).get("last_step"), *(f["last_step"] for f in reversed(watched.forecasts))]
    return next(({"max_steps": step} for step in steps if isinstance(step, int)), {})


def _log(store: sqlite3.Connection, run: str) -> pl.DataFrame:
    rows = store.execute(f"SELECT step, {', '.join(COLUMNS)} FROM log WHERE run = ? ORDER BY step", (run,))
    schema = {"step": pl.Int64, **dict.fromkeys(COLUMNS, pl.Float64)}
    return with_nan(pl.DataFrame(rows.fetchall(), schema=schema, orient="row"), nan_steps(store, run))


def nan_steps(store: sqlite3.Connection, run: str) -> dict[str, list[int]]:
    """Return the steps at which a run logged NaN, by column of ``log`` or further target; SQLite has no NaN."""
    found: dict[str, list[int]] = {}
    for name, step in store.execute("SELECT name, step FROM log_nan WHERE run = ? ORDER BY step", (run,)):
        found.setdefault(name, []).append(step)
    return found


def with_nan(log: pl.DataFrame, steps: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return the log of a run with NaN at some steps of its columns."""
    return log.with_columns(
        pl.when(pl.col("step").is_in(list(at))).then(math.nan).otherwise(pl.col(name)).alias(name)
        for name, at in steps.items()
        if name in log.columns
    )


def _last_part(path: str) -> str:
    """Return the name of a series that was declared without one."""
    return path.partition("@")[0].rpartition("/")[2] if path.startswith("hf:") else Path(path).name


def _facts(declaration: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, object]:
    training = {**declaration.get("training", {}), **run.get("training", {})}
    return {"max_steps": training.get("steps"), "schedule": training.get("schedule"), "family": declaration["name"]}
