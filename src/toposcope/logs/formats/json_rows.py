"""JSON: a row a line, a list of rows, columns by name, or either of these for each run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog, plural

ENDINGS = (".json", ".jsonl", ".ndjson")
SURE = True


def looks_like(head: bytes) -> bool:
    """Return whether a file could be JSON."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def runs(path: Path) -> list[RawLog]:
    """Return the rows of a file."""
    return parse(path.read_bytes(), path)


def parse(content: bytes, source: Path) -> list[RawLog]:
    """Return the rows in the content of a file, by run."""
    if not content.strip():
        raise ToposcopeError("the file is empty")
    # a character cut in two at the end of a growing log is on a line that is cut anyway
    text = content.decode("utf-8-sig", errors="replace")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        rows, remarks = _lines(text)
        if not rows:
            raise ToposcopeError(f"neither JSON nor a JSON object a line ({error})") from error
        return [RawLog(source, "", table_of(rows), remarks=remarks)]
    if isinstance(document, dict):
        return _of_object(document, source)
    if document != [] and not _is_rows(document):
        raise ToposcopeError("no rows of a log in it; a list of objects is needed, one a step")
    return [RawLog(source, "", table_of(document))]


def _of_object(document: dict[str, Any], source: Path) -> list[RawLog]:
    """Return the rows in an object: lists of rows or columns by run, rows with facts, columns, or a single row."""
    if document and all(_is_rows(value) for value in document.values()):
        return [RawLog(source, str(name), table_of(rows)) for name, rows in document.items()]
    by_run = {name: _columns(value) if isinstance(value, dict) else None for name, value in document.items()}
    if document and all(by_run.values()):
        return [RawLog(source, str(name), table_of(rows)) for name, rows in by_run.items() if rows]
    lists = [name for name, value in document.items() if _is_rows(value)]
    if len(lists) == 1:
        rows = document.pop(lists[0])
        return [RawLog(source, "", table_of(rows), facts=dict(_flat(document)))]
    columns = _columns(document)
    return [RawLog(source, "", table_of(columns if columns is not None else [document]))]


def table_of(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a table; ``{"train": {"loss": 3}}`` has a column ``train/loss``, and lists are left out."""
    flat = [dict(_flat(row)) if any(isinstance(v, dict | list) for v in row.values()) else row for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    if flat and not names:
        raise ToposcopeError("its rows are empty")
    return pl.DataFrame([_series(name, [row.get(name) for row in flat]) for name in names])


def _series(name: str, values: list[Any]) -> pl.Series:
    """Return numbers as such, and anything else as text."""
    if {type(v) for v in values} <= {int, float, type(None)}:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _columns(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of columns by name, lists or, as pandas writes them, objects; None if these are no columns."""
    lists = {n: list(v.values()) if isinstance(v, dict) else v for n, v in value.items() if isinstance(v, dict | list)}
    lists = {n: v for n, v in lists.items() if v and not any(isinstance(x, dict | list) for x in v)}
    if len({len(v) for v in lists.values()}) != 1 or len(lists) < 2:
        return None
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _lines(text: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows that are whole, and a remark on the lines that are not; no rows if those are most."""
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        whole: list[Any] = json.loads(f"[{','.join(lines)}]")  # several times as fast as line by line
    except json.JSONDecodeError:
        whole = []
    if _is_rows(whole):
        return whole, ()
    rows: list[dict[str, Any]] = []
    bad: list[int] = []
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    if len(bad) > len(rows):
        return [], ()
    if bad == [len(lines) - 1]:
        return rows, ("the last line was cut in the middle: ignored",)
    return rows, (f"{plural(len(bad), 'line is', 'lines are')} no JSON object: ignored",) if bad else ()
