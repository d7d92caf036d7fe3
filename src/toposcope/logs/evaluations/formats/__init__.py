"""Formats of evaluations, one a file.

A format is a module with two functions; adding one means adding its file to this package, or naming it as an entry
point of the group ``toposcope.evaluations`` in a package of one's own:

- ``claims(material, columns) -> bool``: is this file or folder of the format, by what is in it?
- ``evaluations(material, columns) -> list[RawEvaluations]``: what it says.

``columns`` are those that the caller named.

The first that claims a file reads it; the plain tables (``GENERAL = True``) are asked last. What is wrong with a file
is raised as a `ToposcopeError` without its place, which `toposcope.logs.formats.refusing` adds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError, message_of
from toposcope.logs.evaluations.evaluations import RawEvaluations
from toposcope.logs.evaluations.tasks import standard_task
from toposcope.logs.formats import delimited, json_rows, parquet, refusing
from toposcope.logs.raw import plural
from toposcope.logs.texts import NO_VALUE, values_of_lines
from toposcope.plugins import collect_modules

MAX_BYTES = 10**9
JSON = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class EvaluationFile:
    """A file or folder."""

    path: Path

    @cached_property
    def documents(self) -> list[Any]:
        """The JSON values in the file, one for each line where it has lines of them; none of another file."""
        return self._json[0]

    @property
    def document(self) -> Any:
        """The one JSON value in the file; None where there are none or several."""
        return self.documents[0] if len(self.documents) == 1 else None

    @cached_property
    def table(self) -> pl.DataFrame | None:
        """The file as a table, nested columns named as in ``metrics/acc``; None if it is none."""
        return self._table[0]

    @property
    def text(self) -> str:
        """The file as text."""
        return self._content.decode("utf-8-sig", errors="replace")

    @property
    def line_remarks(self) -> tuple[str, ...]:
        """What was left out in reading `documents`."""
        return self._json[1]

    @property
    def table_remarks(self) -> tuple[str, ...]:
        """What was left out in reading `table`."""
        return self._table[1]

    @cached_property
    def _content(self) -> bytes:
        if self.path.stat().st_size > MAX_BYTES:
            raise ToposcopeError(f"{self.path.stat().st_size / 1e9:.1f} GB; results have fewer")
        content = self.path.read_bytes()
        if not content.strip():
            raise ToposcopeError("the file is empty")
        return content

    @cached_property
    def _json(self) -> tuple[list[Any], tuple[str, ...]]:
        if self.path.suffix.lower() not in JSON or not self.path.is_file():
            return [], ()
        text = self.text
        try:
            return [json.loads(text)], ()
        except RecursionError as error:
            raise ToposcopeError("nested too deeply to be results") from error
        except ValueError as error:
            values = values_of_lines(text)
            documents = [value for value in values if value is not NO_VALUE]
            bad = len(values) - len(documents)
            if not documents or bad > len(documents):
                raise ToposcopeError(
                    f"not JSON ({message_of(error)}); the file may have been cut in the middle"
                ) from error
        remark = f"{plural(bad, 'line is', 'lines are')} no JSON: ignored"
        return documents, (remark,) if bad else ()

    @cached_property
    def _table(self) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
        suffix = self.path.suffix.lower()
        if not self.path.is_file():
            return None, ()
        if suffix in delimited.ENDINGS:
            (raw,) = delimited.parse(self._content, self.path)
            return raw.table, raw.remarks
        if suffix in parquet.ENDINGS:
            (raw,) = parquet.runs(self.path)
            return raw.table, raw.remarks
        if isinstance(self.document, dict):
            by_name = _by_name(self.document)
            return by_name if by_name is not None else _columns(self._content, self.path), ()
        rows = self.document if isinstance(self.document, list) else self.documents
        if not rows or not all(isinstance(row, dict) for row in rows):
            return None, ()
        return json_rows.table_of(rows) if any(rows) else None, self.line_remarks


def _columns(content: bytes, path: Path) -> pl.DataFrame | None:
    """Return the table that one JSON object holds, as columns by name or as rows beside facts; None if it has none."""
    try:
        raws = json_rows.parse(content, path)
    except ToposcopeError:
        return None
    return raws[0].table if len(raws) == 1 else None


def _by_name(document: dict[str, Any]) -> pl.DataFrame | None:
    """Return the table of an object of columns, of scores, or of objects by model or task; None if it names no task."""
    values, inner = list(document.values()), []
    if all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        names, rows = [*document], [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
    elif all(isinstance(value, dict) for value in values):
        names = [*document]
        inner = [name for value in values for name in value]
        key = "task" if _are_tasks(names) else "run"
        rows = [{key: name, **value} for name, value in document.items()]
    elif not any(isinstance(value, dict | list) for value in values):
        names, rows = [name for name, value in document.items() if isinstance(value, float)], [document]
    else:
        return None
    return json_rows.table_of(rows) if rows and (_are_tasks(names) or _are_tasks(inner)) else None


def _are_tasks(names: list[str]) -> bool:
    """Return whether a third of the names are those of standard tasks, as beside names of models and further tasks."""
    return sum(standard_task(name) is not None for name in names) * 3 >= len(names) > 0


def as_number(value: object) -> float | None:
    """Return a number of JSON; None of anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def object_in(path: Path | None) -> dict[str, Any]:
    """Return the JSON object in a file beside results; nothing if there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"{path and path.name} beside it is not JSON: {message_of(error)}") from error
    return dictionary(document)


def dictionary(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one of anything else."""
    return value if isinstance(value, dict) else {}


@cache
def _formats() -> list[ModuleType]:
    found = collect_modules(__name__, "toposcope.evaluations", "claims", "evaluations")
    return sorted(found, key=lambda module: getattr(module, "GENERAL", False))


def read_raw(path: Path, columns: Mapping[str, str]) -> list[RawEvaluations] | None:
    """Return the evaluations in a file or folder, or None if no format claims it."""
    known = _formats()
    with refusing(path, "evaluations"):
        material = EvaluationFile(path)
        module = next((m for m in known if m.claims(material, columns)), None)
        found: list[RawEvaluations] | None = module.evaluations(material, columns) if module else None
    return found
