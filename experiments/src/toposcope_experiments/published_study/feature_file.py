"""Reads published features of runs from a JSON file; nothing in it is trusted."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.extend import MAX_STEP, PublishedRun, ToposcopeError, identify_columns, message_of, size_of, sources
from toposcope.logs import COLUMNS, LogTable

MAX_FILE_BYTES = 100_000_000  # a table of features is far smaller
MAX_NAME_LENGTH = 100

_RUN_COLUMNS = ("run", "model", "config_name")
_TEXT_COLUMNS = (*_RUN_COLUMNS, "checkpoint", "revision")  # columns that may hold text
_SIZE_COLUMNS = ("n_parameters", "n_params", "num_parameters")
_NOT_FEATURES = {
    *("epoch", "n_analyzed_layers", "n_layers_analyzed", "n_points", "n_embeddings", "embedding_dim", "pca_dim"),
}
"""Columns that describe the measurement; those that end in ``_time_s`` are no features either."""
_STATISTICS = {
    "total": ("total", "total_persistence"),
    "mean": ("mean", "avg", "mean_persistence", "avg_persistence"),
    "max": ("max", "max_persistence"),
    "std": ("std", "std_persistence"),
    "entropy": ("entropy", "persistence_entropy"),
    "count": ("num", "count", "num_features", "n_features"),
    "n_significant": ("n_significant",),
}
_OTHER_NAMES = {"eigenspectrum_decay_alpha": "eigenspectrum_decay"}
_STATISTIC_OF = {name: statistic for statistic, names in _STATISTICS.items() for name in names}


def canonical_name(name: str) -> str:
    """Return the name of a published statistic in this library; unknown names are returned unchanged.

    Examples
    --------
    >>> [canonical_name(name) for name in ("neural_persistence_mean", "h0_total_persistence", "h1_n_features")]
    ['np_mean', 'H0.total', 'H1.count']
    """
    if match := re.fullmatch(r"(?:neural_persistence|np)_(mean|std|min|max)", name):
        return "np_mean" if match[1] == "mean" else f"np_mean_{match[1]}"
    if (match := re.fullmatch(r"[hH](\d)[._](\w+)", name)) and match[2] in _STATISTIC_OF:
        return f"H{match[1]}.{_STATISTIC_OF[match[2]]}"
    return _OTHER_NAMES.get(name, name)


def read_json(path: Path) -> Any:
    """Read a JSON file, in which no object may name a field twice.

    Raises
    ------
    ToposcopeError
        If it cannot be read, is too large, or is not JSON.
    """
    try:
        if path.exists() and not path.is_file():
            raise ToposcopeError(f"{path}: not a file; name a JSON file of features")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ToposcopeError(f"{path}: more than {MAX_FILE_BYTES // 10**6} MB; not a table of features")
        return json.loads(path.read_bytes(), object_pairs_hook=_object)
    except OSError as error:
        raise ToposcopeError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"{path}: not JSON: {message_of(error)}") from error


def read_features(path: Path) -> dict[str, PublishedRun]:
    """Read the features of one or several runs.

    The file holds a list of rows, each with its ``step``, or an object of such lists by run. Rows of a list are of the
    run that ``run``, ``model`` or ``config_name`` names (of ``owner/name`` the last part), else of one called like the
    file.
    """
    return parse_features(read_json(path), path)


def parse_features(content: Any, path: Path) -> dict[str, PublishedRun]:
    """Read the features in the JSON content of a file (see `read_features`)."""
    try:
        return {run: _run(rows, written, run) for run, (written, rows) in _by_run(content, path.stem).items()}
    except _ContentError as error:
        raise ToposcopeError(f"{path}: {error}") from error


def features_of_run(runs: Mapping[str, PublishedRun], name: str, path: Path) -> PublishedRun:
    """Return one run of a file; a file without names of runs holds the requested one."""
    if name in runs:
        return runs[name]
    if not any(run.written for run in runs.values()):
        return next(iter(runs.values()))
    raise ToposcopeError(f"{path}: no run {name!r}; it has {', '.join(runs)}; name the series like one of them")


class _ContentError(Exception):
    """What is wrong with the content of a file, without the name of the file."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:MAX_NAME_LENGTH]!r} twice in one object")
    return content


Rows = list[tuple[str, dict[str, Any]]]  # rows, each with its place in the file for messages


def _by_run(content: Any, stem: str) -> dict[str, tuple[str, Rows]]:
    """Group rows by run, with the name of the run in the file."""
    lists = content.items() if isinstance(content, dict) else [("", content)]
    runs: dict[str, tuple[str, Rows]] = {}
    for key, rows in lists:
        where = f"{key[:MAX_NAME_LENGTH]}: " if key else ""
        if not isinstance(rows, list):
            raise _ContentError(f"{where}expected a list of rows, found {_json_type(rows)}")
        if not rows:
            raise _ContentError(f"{where}no rows")
        named: dict[str, Rows] = {}
        for i, row in enumerate(rows):
            place = f"{where}row {i + 1}"
            if not isinstance(row, dict):
                raise _ContentError(f"{place}: expected an object with a step, found {_json_type(row)}")
            named.setdefault(key or _run_name(row, place), []).append((place, row))
        for written, run_rows in named.items():
            name = (written or stem).rstrip("/").rpartition("/")[2]
            if not name.isprintable() or not name.strip(". ") or "\\" in name or len(name) > MAX_NAME_LENGTH:
                raise _ContentError(
                    f"{run_rows[0][0] if run_rows else where}: {name[:MAX_NAME_LENGTH]!a} cannot be the name of a run"
                )
            if name in runs:
                raise _ContentError(f"two runs are called {name!r}; rename one of them")
            runs[name] = written, run_rows
    if not runs:
        raise _ContentError("no rows")
    return runs


def _run_name(row: dict[str, Any], place: str) -> str:
    for column in _RUN_COLUMNS:
        if column in row:
            if not isinstance(row[column], str):
                raise _ContentError(f"{place}: {column}: expected text, found {_json_type(row[column])}")
            return str(row[column])
    return ""


def _run(rows: Rows, written: str, run: str) -> PublishedRun:
    features: dict[int, dict[str, float]] = {}
    logged: dict[int, dict[str, float]] = {}
    sizes: set[int] = set()
    # a column `loss` is preferred to others with that word in their names
    names = dict.fromkeys(["loss", *(name for _, row in rows for name in row)])
    columns = {source: name for name, source in sources(identify_columns(names)).items() if name in COLUMNS}
    for place, row in rows:
        step = _step(row, place)
        if step in features:
            raise _ContentError(f"{place}: step {step} occurs twice")
        features[step], logged[step] = {}, {}
        for column, value in row.items():
            if column == "step" or (column in _TEXT_COLUMNS and isinstance(value, str)):
                continue
            if not column.isprintable() or not 0 < len(column) <= MAX_NAME_LENGTH:
                raise _ContentError(f"{place}: {column[:MAX_NAME_LENGTH]!r} cannot be the name of a feature")
            number = _number(value, f"{place}: {column}")
            if number is None or column in _NOT_FEATURES or column.endswith("_time_s"):
                continue
            if column in _SIZE_COLUMNS:
                sizes.add(_whole(number, f"{place}: {column}"))
            elif not _log(logged[step], columns, column, number, place):
                _add(features[step], canonical_name(column), number, f"{place}: {column}")
    if len(sizes) > 1:
        raise _ContentError(
            f"{' and '.join(map(str, sorted(sizes)[:2]))} parameters in one run; rename the rows of one of them"
        )
    if not any(features.values()):
        raise _ContentError("rows with steps, but no feature in any of them")
    features = {step: values for step, values in sorted(features.items()) if values}
    size, assumed = next(iter(sizes), None), ""
    if size is None and (size := size_in_name(run)):
        assumed = f"{size:,} parameters, as its name says; no file states them"
    return PublishedRun(features, LogTable.from_rows(logged), size, written, assumed)


def size_in_name(name: str) -> int | None:
    """Return the number of parameters that a name such as ``pythia-70m`` states; None if it states none or several."""
    stated = [size_of(part) for part in re.split(r"[-_]", name) if re.fullmatch(r"\d+(\.\d+)?[kmbKMB]", part)]
    return round(stated[0]) if len(stated) == 1 else None


def _log(into: dict[str, float], columns: Mapping[str, str], column: str, number: float, place: str) -> bool:
    """Add a value of a training log; return whether the column is one."""
    if column == "perplexity":
        if number <= 0:
            raise _ContentError(f"{place}: perplexity is {number}; it must be more than 0")
        into.setdefault("validation_loss", math.log(number))
        return True
    if column in columns:
        into[columns[column]] = number  # a loss comes before one from a perplexity
    return column in columns


def _add(into: dict[str, float], name: str, number: float, place: str) -> None:
    if name in into:
        raise _ContentError(f"{place}: {name} occurs twice, under two names")
    if math.isinf(number):
        raise _ContentError(f"{place}: infinite; leave out undefined values")
    into[name] = number


def _step(row: dict[str, Any], place: str) -> int:
    if "step" not in row:
        raise _ContentError(f"{place}: no step")
    number = _number(row["step"], f"{place}: step")
    if number is None:
        raise _ContentError(f"{place}: no step")
    return _whole(number, f"{place}: step")


def _number(value: Any, place: str) -> float | None:
    """Return a number as float, and None for an undefined value: null or NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _ContentError(f"{place}: expected a number, found {_json_type(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise _ContentError(f"{place}: too large a number") from None
    return None if math.isnan(number) else number


def _whole(number: float, place: str) -> int:
    if not number.is_integer() or not 0 <= number <= MAX_STEP:
        raise _ContentError(f"{place} is {number}; expected a whole number from 0")
    return int(number)


def _json_type(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number")
