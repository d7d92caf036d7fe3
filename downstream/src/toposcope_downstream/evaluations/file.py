"""Evaluations in one form, as a tool wrote them, and the file or folder that they are read from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from toposcope.extend import (
    ACCURACY,
    NO_VALUE,
    ToposcopeError,
    message_of,
    parse_json_rows,
    parse_numbers,
    parse_table,
    plural,
    table_of_rows,
    values_of_lines,
)
from toposcope_downstream.evaluations.tasks import standard_task

SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run", "recipe", "seed", "task", "prompt", "metric", "date"), pl.String),
    **dict.fromkeys(("N", "D", "tokens_per_step", "value", "standard_error", "chance"), pl.Float64),
    **dict.fromkeys(("step", "shots", "n"), pl.Int64),
    "corpus": pl.Boolean,
}
"""Columns of `RawEvaluations.table`: null where the tool says nothing. ``corpus`` is true of the loss on a corpus; of
two values of one metric the one with the later ``date`` counts, and of several values of ``prompt`` the mean."""
COLUMNS = {
    name: SCHEMA.get(name, pl.String)
    for name in "run recipe N D step seed task shots metric role value n standard_error".split()
}
"""Columns of `Evaluations.table` and their types."""
ROLES = ("score", "loss", "likelihood", "corpus_loss", "other_score")
"""What a metric is: the score people care for, the loss of a task's right answers, a quantity made of likelihoods that
may stand for the score, the loss on a corpus (whose name is in the column ``task``), a further metric of a task that
has a score."""
MAX_SIZE = 1e30
"""Parameters, and tokens, beyond which (or below its inverse) a number is a mistake; products of both stay finite."""
MAX_BYTES = 10**9
PARQUET = (".parquet", ".pq")
TABLES = (".csv", ".tsv", *PARQUET)


class Target(NamedTuple):
    """What a task is judged by: a score, or a loss."""

    name: str
    unit: str  # ``accuracy``, or that of a loss
    chance: float | None = None  # what guessing reaches; None if unknown
    n: int | None = None  # questions; None if unknown

    @property
    def lower_is_better(self) -> bool:
        """Whether it is a loss."""
        return self.unit != ACCURACY


@dataclass(frozen=True, eq=False)
class Evaluations:
    """What evaluations said about runs."""

    table: pl.DataFrame
    targets: Mapping[str, Target] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if dict(self.table.schema) != COLUMNS:
            raise ToposcopeError(f"evaluations: columns must be {', '.join(COLUMNS)}, with their types")
        if unknown := set(self.table["role"].unique()) - set(ROLES):
            raise ToposcopeError(f"evaluations: role {sorted(unknown)[0]!r}; expected one of {', '.join(ROLES)}")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with scores, sorted."""
        return tuple(sorted(self.table.filter(pl.col("role") == "score")["task"].unique()))


@dataclass(frozen=True, eq=False)
class RawEvaluations:
    """Evaluations from one file or folder.

    Attributes
    ----------
    source : Path
    table : polars.DataFrame
        Columns and types `SCHEMA`; a row for each value. Without tasks, a table of what is known of runs.
    remarks : tuple of str
    named : bool
        Whether the runs have a model's full name, in which its family, size and checkpoint stand.
    """

    source: Path
    table: pl.DataFrame
    remarks: tuple[str, ...] = ()
    named: bool = False


def as_raw(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the columns and types of `SCHEMA`; texts that are numbers count as such."""
    columns = []
    for name, dtype in SCHEMA.items():
        if name not in table.columns:
            columns.append(pl.Series(name, [None], dtype=dtype).new_from_index(0, len(table)))
            continue
        column = table[name]
        if dtype.is_numeric() and column.dtype != dtype:
            values = pl.Series(name, parse_numbers(column).values, nan_to_null=name != "value")
            # 1.5 is no step
            column = values.set(values != values.round(), None) if dtype == pl.Int64 else values
        columns.append(column.cast(dtype, strict=False).alias(name))
    return pl.DataFrame(columns)


def short_number(name: str) -> pl.Expr:
    """Return a number as people write it: 19.5341M, 302M."""
    value = pl.col(name)

    def text(unit: float) -> pl.Expr:
        return (value / unit).round_sig_figs(6).cast(pl.String).str.replace(r"\.0$", "")

    large = pl.when(value >= 1e9).then(pl.format("{}B", text(1e9)))
    return large.when(value >= 1e6).then(pl.format("{}M", text(1e6))).otherwise(text(1.0))


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
        if self.path.suffix.lower() not in (".json", ".jsonl", ".ndjson") or not self.path.is_file():
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
        return documents, (f"{plural(bad, 'line is', 'lines are')} no JSON: ignored",) if bad else ()

    @cached_property
    def _table(self) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
        suffix = self.path.suffix.lower()
        if not self.path.is_file():
            return None, ()
        if suffix in TABLES:
            content = self.path.read_bytes() if suffix in PARQUET else self._content
            (raw,) = parse_table(content, self.path)
            return raw.table, raw.remarks
        if isinstance(self.document, dict):
            by_name = _by_name(self.document)
            return by_name if by_name is not None else _columns(self._content, self.path), ()
        rows = self.document if isinstance(self.document, list) else self.documents
        if not rows or not all(isinstance(row, dict) for row in rows):
            return None, ()
        return table_of_rows(rows) if any(rows) else None, self.line_remarks


def _columns(content: bytes, path: Path) -> pl.DataFrame | None:
    """Return the table that one JSON object holds, as columns by name or as rows next to facts; None if it has none."""
    try:
        raws = parse_json_rows(content, path)
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
    return table_of_rows(rows) if rows and (_are_tasks(names) or _are_tasks(inner)) else None


def _are_tasks(names: list[str]) -> bool:
    """Return whether a third of the names are those of standard tasks, as next to names of models and further tasks."""
    return sum(standard_task(name) is not None for name in names) * 3 >= len(names) > 0


def as_number(value: object) -> float | None:
    """Return a number of JSON; None of anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def dictionary(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one of anything else."""
    return value if isinstance(value, dict) else {}
