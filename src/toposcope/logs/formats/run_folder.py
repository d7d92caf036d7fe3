"""A run trained here, or a series of checkpoints with its log next to it: ``log.csv`` or ``training_log.json``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.logs.formats import json_rows, refusing, tables
from toposcope.logs.raw import RawLog, parse_numbers
from toposcope.untrusted import bytes_of, json_value

NAMES = ("log.csv", "training_log.json")


def claims(path: Path) -> bool:
    """Return whether the path is such a file, or a folder that holds one."""
    return path.name in NAMES if path.is_file() else any((path / name).is_file() for name in NAMES)


def runs(path: Path) -> list[RawLog]:
    """Return the log, with what ``run.json`` next to it says of the run."""
    file = path if path.is_file() else next(path / name for name in NAMES if (path / name).is_file())
    found = tables.runs(file) if file.suffix == ".csv" else json_rows.runs(file)
    if len(found) > 1:
        return found
    declared = file.with_name("run.json")
    facts: dict[str, object] = {}
    if declared.is_file():
        with refusing(declared, "what is declared of a run"):
            facts = _facts(json_value(bytes_of(declared)), found[0].table)
    return [replace(found[0], name=file.resolve().parent.name, facts=facts)]


def _facts(declared: Any, table: pl.DataFrame) -> dict[str, object]:
    """Return what the ``run.json`` of a run trained here says; nothing if the file is another tool's."""
    try:
        training, size = declared["run"]["training"], declared["run"]["size"]
        facts = {
            "max_steps": training["steps"],
            "schedule": training["schedule"],
            "tokens_per_step": training["batch_size"] * size["context"],
        }
    except (KeyError, TypeError):
        return {}
    return facts | {"n_parameters": _parameters(table)}


def _parameters(table: pl.DataFrame) -> int | None:
    """Return N from a log of tokens D and of the 6 N D operations spent on them."""
    if not {"flops", "tokens"} <= set(table.columns):
        return None
    flops, tokens = parse_numbers(table["flops"]).values[-1], parse_numbers(table["tokens"]).values[-1]
    return round(flops / (6 * tokens)) if tokens > 0 else None
