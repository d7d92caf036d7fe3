"""JSON: one row per line, a list of rows, losses or pairs, columns by name, or any of these for each part or run."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import identify_columns
from toposcope.logs.raw import MAX_COLUMNS, RawLog, join_names, one_line, parse_numbers, plural
from toposcope.logs.run_labels import is_part, is_validation, part_of
from toposcope.logs.steps import MIN_TIME
from toposcope.logs.table import is_step
from toposcope.logs.texts import decoded, parse_json

MIN_ASCENDING_SHARE = 0.9  # of JSON's pairs without names: steps nearly all ascend

ENDINGS = (".json", ".jsonl", ".ndjson")
SURE = True
CONTAINERS = frozenset(
    """
    history histories log_history log logs metrics data results records rows curve curves scalars value values points
    entries
    """.split()
)
"""Names around rows or columns that say nothing of what they are."""
RUN_NAMES = ("name", "run", "run_name", "id", "run_id", "label", "experiment")
PIECE = 1 << 26  # characters of a text of objects that are parsed at a time
_LIST = re.compile(r"(?<=[A-Za-z])[_ -](?:history|hist|curve|list|values|log|logs)$", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:(epoch|step|iter|iteration)[^0-9A-Za-z]*)?(\d+)", re.IGNORECASE)
NEEDED = "needed is a list of objects, one per step, of losses, or of pairs of step and loss"
NO_LOG = ("no losses in it", "no rows of a log in it", "one row of results without a step")
"""Words of the errors on a file that is none, such as a configuration."""
LOSS, STEP = "loss", "step"
Columns = dict[str, list[Any]]


class _Gathered(NamedTuple):
    """What a document holds of one run: tables with steps of their own, and columns that have none."""

    tables: list[Columns]
    columns: Columns

    def names(self) -> Iterable[str]:
        return [name for columns in (*self.tables, self.columns) for name in columns]


def looks_like(head: bytes) -> bool:
    """Return whether a file could be JSON."""
    return head.lstrip(b"\xff\xfe\xef\xbb\xbf\0 \t\r\n")[:1] in (b"{", b"[")


def runs(path: Path) -> list[RawLog]:
    """Return the rows of a file."""
    return parse_json_rows(path.read_bytes(), path)


def parse_json_rows(content: bytes, source: Path) -> list[RawLog]:
    """Return the rows in the content of a file, by run."""
    if not content.strip():
        raise ToposcopeError("the file is empty")
    text, encoding = decoded(content)
    if (rows := _in_pieces(text)) is not None:
        return [RawLog(source, "", rows[0], remarks=(*encoding, *rows[1]))]
    document, remarks = parse_json(text)
    return [replace(raw, remarks=(*encoding, *remarks, *raw.remarks)) for raw in _runs(document, source, "")]


def _in_pieces(text: str) -> tuple[pl.DataFrame, tuple[str, ...]] | None:
    """Return the table of a long text of one object per line, parsed a piece at a time, and remarks on its end.

    A parsed object takes ten times the memory of its text, and a hundred times that of its numbers in a table. None of
    other documents.
    """
    tables: list[pl.DataFrame] = []
    begin, remarks = 0, tuple[str, ...]()
    while len(text) > PIECE and begin < len(text):
        end = text.find("\n", begin + PIECE) + 1 if begin + 2 * PIECE < len(text) else len(text)
        lines = text[begin : end or len(text)]
        if remarks or lines.lstrip()[:1] != "{":
            return None
        rows, remarks = parse_json(lines)
        if not _is_rows(rows) or _is_run_object(rows[0]):
            return None
        tables.append(table_of_rows(rows))
        begin += len(lines)
    dtypes = {(name, dtype) for table in tables for name, dtype in table.schema.items()}
    if not tables or len(dtypes) > len({name for name, _ in dtypes}):
        return None
    return pl.concat(tables, how="diagonal"), remarks


def table_of_rows(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a table; ``{"train": {"loss": 3}}`` has a column ``train/loss``, and lists are left out."""
    flat = [dict(_flat(row)) if any(isinstance(v, dict | list) for v in row.values()) else row for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    if flat and not names:
        raise ToposcopeError("its rows are empty")
    if len(names) > MAX_COLUMNS:
        raise ToposcopeError(f"{len(names):,} different keys; a training log has fewer")
    return _table({name: [row.get(name) for row in flat] for name in names})


def _table(columns: Columns) -> pl.DataFrame:
    return pl.DataFrame([_series(name, values) for name, values in columns.items()])


def _series(name: str, values: list[Any]) -> pl.Series:
    if {type(v) for v in values} <= {int, float, type(None)}:
        return pl.Series(name, values, dtype=pl.Float64, strict=False)
    return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def _runs(document: Any, source: Path, name: str) -> list[RawLog]:
    """Return the runs in a document, or in the part of it that is under the name of a run."""
    document = _by_number(document)
    if _is_rows(document) and all(_is_run_object(row) for row in document):
        of_rows = [next((str(row[key]) for key in row if key.lower() in RUN_NAMES), "") for row in document]
        return [run for row, of_row in zip(document, of_rows, strict=True) for run in _runs(row, source, of_row)]
    if isinstance(document, list):
        return [RawLog(source, name, *_of_list(document))]
    if not isinstance(document, dict):
        raise ToposcopeError(f"no rows of a log in it but a single value; {NEEDED}")
    if isinstance(document.get("columns"), list) and isinstance(document.get("data"), list):  # of pandas
        return [RawLog(source, name, _of_lists([document["columns"], *document["data"]]))]
    logged = {key: value for key, value in document.items() if _is_logged(value)}
    facts: dict[str, object] = dict(_flat({key: value for key, value in document.items() if key not in logged}))
    if logged and all(_is_run(key, value) for key, value in logged.items()):
        names = {key: "/".join(filter(None, (name, key))) for key in logged}
        if len(logged) == 1 and facts:
            names = dict.fromkeys(names, name)
        return [
            replace(run, facts={**facts, **run.facts})
            for key, value in logged.items()
            for run in _runs(value, source, names[key])
        ]
    tables, remarks = _aligned(_gather(logged, ()))
    if not any(_is_target(name) for table in tables for name in table) and not any(map(_is_rows, logged.values())):
        if not facts:
            found = list(dict.fromkeys(name for table in tables for name in table))
            raise ToposcopeError(f"no losses in it but {join_names(found) if found else 'an empty object'}; {NEEDED}")
        if not identify_columns(document).named.get("step"):
            raise ToposcopeError(
                "one row of results without a step, such as of an evaluation; a log has one row per step"
            )
        return [RawLog(source, name, table_of_rows([document]))]
    return [RawLog(source, name, _joined(tables), facts=facts, remarks=remarks)]


def _is_run_object(row: Mapping[str, Any]) -> bool:
    """Return whether an object of a list is a run: losses are in a list within it."""
    return not any(_is_target(name) for name, _ in _flat(row)) and any(
        _is_target(name)
        for name in _gather({key: value for key, value in row.items() if _is_logged(value)}, ()).names()
    )


def _by_number(document: Any) -> Any:
    """Return the rows of an object ``{"epoch_1": {"loss": 4}, "epoch_2": ...}``; anything else as it is."""
    if (
        not isinstance(document, dict)
        or len(document) < 2
        or not all(isinstance(row, dict) for row in document.values())
    ):
        return document
    keys = [_NUMBERED.fullmatch(key) for key in document]
    if not all(keys) or any(map(_is_logged, document.values())):
        return document
    return [
        {(key[1] or STEP).lower(): int(key[2]), **row} for key, row in zip(keys, document.values(), strict=True) if key
    ]


def _is_run(key: str, value: Any) -> bool:
    """Return whether a key is the name of a run: no part, quantity or container, and with more than a column in it."""
    found = identify_columns([key])
    is_quantity = found.losses or found.accuracies or set(found.named) & {"step", "epoch", "learning_rate", "tokens"}
    return not (is_part(key) or is_quantity or key.lower() in CONTAINERS or _is_column(value)) and "loss" not in key


def _is_logged(value: Any) -> bool:
    """Return whether a value holds rows, pairs or columns, at any depth."""
    if isinstance(value, dict):
        return _as_column(value) is not None or any(_is_logged(inner) for inner in value.values())
    return _is_column(value) or _is_rows(value) or _is_lists(value)


def _of_list(document: list[Any]) -> tuple[pl.DataFrame, dict[str, object], tuple[str, ...]]:
    if not document or _is_rows(document):
        return table_of_rows(document), {}, ()
    if _is_lists(document):
        return _of_lists(document), {}, ()
    if all(_is_number(value) for value in document):
        if all(isinstance(value, int) for value in document):
            raise ToposcopeError(
                f"no losses in it but {plural(len(document), 'whole number', 'whole numbers')}; {NEEDED}"
            )
        if len(document) == 2 and isinstance(document[0], int):
            raise ToposcopeError(f"two numbers in it, which may be a step and a loss or two losses; {NEEDED}")
        return _table({LOSS: document}), {}, (f"a list of {plural(len(document), 'number', 'numbers')}: losses",)
    kinds = Counter(_kind(value) for value in document).most_common(2)
    raise ToposcopeError(f"no rows of a log in it but a list of {' and '.join(kind for kind, _ in kinds)}; {NEEDED}")


def _of_lists(rows: list[list[Any]], quantity: str = LOSS) -> pl.DataFrame:
    """Return the table of rows that are lists: under a first row of names, or pairs of step and loss."""
    first, width = rows[0], len(rows[0])
    if any(len(row) != width for row in rows):
        raise ToposcopeError("its rows are lists of different lengths; write them as objects, with names")
    if all(isinstance(name, str) and not _is_number(name) for name in first):
        return _table({name: [row[i] for row in rows[1:]] for i, name in enumerate(first)})
    if not all(_is_number(value) for row in rows for value in row):
        raise ToposcopeError("its rows are lists of something other than numbers; write them as objects, with names")
    columns = [[row[i] for row in rows] for i in range(width)]
    # TensorBoard writes time, step and value
    columns = [
        column for column in columns if not (parse_numbers(pl.Series(column, strict=False)).values >= MIN_TIME).all()
    ]
    steps = [i for i, column in enumerate(columns) if _ascends(column)]
    if len(columns) == 1:
        return _table({quantity: columns[0]})
    if len(columns) != 2 or len(steps) != 1:
        raise ToposcopeError(
            f"its rows are {width} numbers without names, and which are step and loss is not certain; write the names "
            'as the first row, such as ["step", "loss"]'
        )
    return _table({STEP: columns.pop(steps[0]), quantity: columns[0]})


def _gather(value: Any, path: tuple[str, ...]) -> _Gathered:
    if (column := _as_column(value)) is not None:
        return _Gathered([], {_name(path): column})
    if _is_rows(value) or _is_lists(value):
        quantity = "value" if path and not is_part(path[-1]) and path[-1].lower() not in CONTAINERS else LOSS
        table = table_of_rows(value) if _is_rows(value) else _of_lists(value, quantity)
        return _with_steps({_name((*path, name)): table[name].to_list() for name in table.columns})
    tables: list[Columns] = []
    columns: Columns = {}
    has_steps = any(_is_step(key) for key in value)
    for key, inner in value.items():
        if _is_logged(inner):
            of_key = _gather(inner if has_steps else _by_step(inner), (*path, key))
            tables += of_key.tables
            columns = {**columns, **{name: v for name, v in of_key.columns.items() if name not in columns}}
    with_steps = _with_steps(columns)
    return _Gathered([*tables, *with_steps.tables], with_steps.columns)


def _name(path: tuple[str, ...]) -> str:
    """Return the name of a column by its place: parts and quantities count, other names above it do not."""
    keys = [part_of(key) if is_part(key) else key for key in map(_singular, path)]
    name = keys.pop()
    if keys and (name.lower() in CONTAINERS or (name == LOSS and _is_target(keys[-1]))):
        name = keys.pop()
    above = [key for key in keys if is_part(key) or _is_target(key)]
    if is_part(name) and not any(map(_is_target, above)):
        above, name = [*above, name], LOSS
    if not _is_target(name) and identify_columns([name]).named:
        return name  # a step or rate is one of the run
    return "/".join([*(key for key in above if not name.startswith(key)), name])


def _singular(name: str) -> str:
    """Return the name of a quantity by that of a list of it: ``train_loss`` of ``train_losses_history``."""
    return _LIST.sub("", name).replace("losses", "loss").replace("Losses", "Loss")


def _is_target(name: str) -> bool:
    found = identify_columns([name])
    return bool(found.losses or found.accuracies) or LOSS in name.lower()


def _is_step(name: str) -> bool:
    """Return whether a name is that of steps, be it those of a part."""
    words = re.findall(r"[^\W_]+", name.lower())
    return "step" in identify_columns(["_".join(word for word in words if not is_validation(word))]).named


def _with_steps(columns: Columns) -> _Gathered:
    """Return the tables of columns that are as long as one of steps, and the other columns."""
    steps = identify_columns(name for name in columns if _is_step(name)).named.get("step", [])
    steps += [name for name in columns if _is_step(name) and name not in steps]
    tables: dict[str, Columns] = {}
    rest: Columns = {}
    for name, values in columns.items():
        fitting = [step for step in steps if len(columns[step]) == len(values)]
        same = [step for step in fitting if is_validation(step) == is_validation(name)]
        if not fitting:
            rest[name] = values
            continue
        step = (same or fitting)[0]
        tables.setdefault(step, {STEP if is_validation(step) else step: columns[step]})
        if name != step:
            tables[step][name] = values
    return _Gathered(list(tables.values()), rest)


def _aligned(gathered: _Gathered) -> tuple[list[Columns], tuple[str, ...]]:
    """Return tables that hold the columns without steps too, counted by rows, and a remark on those that cannot be."""
    tables, columns = [dict(table) for table in gathered.tables], gathered.columns
    if not tables and columns:
        losses = sorted(filter(_is_target, columns), key=is_validation)
        usual = Counter(len(values) for values in columns.values()).most_common(1)[0][0]
        n = len(columns[losses[0]]) if losses else usual
        tables = [{name: values for name, values in columns.items() if len(values) == n}]
        columns = {name: values for name, values in columns.items() if len(values) != n}
    remarks = []
    has_losses = any(_is_target(name) for table in tables for name in table)
    for name, values in columns.items():
        fitting = [table for table in tables if gathered.tables and _length(table) == len(values)]
        if len(fitting) == 1:
            fitting[0].setdefault(name, values)
        elif _is_target(name) or identify_columns([name]).named:
            rows = " and ".join(str(_length(table)) for table in tables)
            count = plural(len(values), "value", "values")
            missing = f"{one_line(name)!r} has {count} next to {rows} rows, and no steps of its own"
            if _is_target(name) and not has_losses:
                raise ToposcopeError(f"{missing}; write a step for each")
            remarks.append(f"{missing}: ignored")
    return tables, tuple(remarks)


def _length(table: Columns) -> int:
    return len(next(iter(table.values())))


def _joined(tables: list[Columns]) -> pl.DataFrame:
    """Return the rows of several tables as one, in the order of their steps where these ascend in each."""
    if len(tables) == 1:
        return _table(tables[0])
    frames = []
    for table in tables:
        step = identify_columns(table).named["step"][0]
        frames.append(_table({STEP if name == step else name: values for name, values in table.items()}))
    joined = pl.concat(frames, how="diagonal_relaxed")
    ascend = all(_ascends(frame[STEP].to_list(), 1.0) for frame in frames)
    return joined[np.argsort(parse_numbers(joined[STEP]).values, kind="stable")] if ascend else joined


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_lists(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) and row for row in value)


def _is_column(value: object) -> bool:
    return isinstance(value, list) and bool(value) and not any(isinstance(x, dict | list) for x in value)


def _as_column(value: object) -> list[Any] | None:
    """Return a column, be it one that pandas wrote as an object; None if a value is none."""
    if isinstance(value, dict) and all(key.isdecimal() for key in value):
        value = list(value.values())
    return value if isinstance(value, list) and _is_column(value) else None


def _by_step(value: Any) -> Any:
    """Return pairs of step and loss for an object ``{"100": 4.1, "200": 4.0}``; anything else as it is."""
    if not isinstance(value, dict) or _as_column(value) is None:
        return value
    steps = [int(key) for key in value]
    return value if steps == list(range(len(steps))) else [[int(key), inner] for key, inner in value.items()]


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return bool(parse_numbers(pl.Series([value])).logged.all())
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _ascends(values: list[Any], share: float = MIN_ASCENDING_SHARE) -> bool:
    steps = parse_numbers(pl.Series(values, strict=False)).values
    return bool(is_step(steps).all() and (len(steps) < 2 or (np.diff(steps) > 0).mean() >= share))


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "texts"
    return {dict: "objects", list: "lists", bool: "true or false", type(None): "nulls"}.get(type(value), "numbers")
