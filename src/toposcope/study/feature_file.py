"""Features of runs that somebody else measured and published, from a JSON file; nothing in it is trusted."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.checkpoints.steps import MAX_STEP
from toposcope.errors import ToposcopeError
from toposcope.logs import COLUMNS, LogTable
from toposcope.logs.columns import identify_columns
from toposcope.logs.table import sources

LARGEST_FILE = 100_000_000
"""Bytes; a table of features is far smaller."""
LONGEST_NAME = 100

_NAMES_OF_RUNS = ("run", "model", "config_name")
_TEXTS = (*_NAMES_OF_RUNS, "checkpoint", "revision")
"""Columns that may hold text."""
_SIZES = ("n_parameters", "n_params", "num_parameters")
_NOT_FEATURES = {
    *("epoch", "n_analyzed_layers", "n_layers_analyzed", "n_points", "n_embeddings", "embedding_dim", "pca_dim"),
}
"""What was measured on, not what was measured; nor is how long it took (``..._time_s``)."""
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


@dataclass(frozen=True)
class PublishedRun:
    """What a file says of one run.

    Attributes
    ----------
    features : dict of dict of float
        By step, then by statistic (`canonical`). Finite; what is not defined is absent.
    log : LogTable
        The columns that belong into a training log, at the same steps.
    n_parameters : int, optional
    written : str
        What the file calls it; empty if it does not.
    """

    features: dict[int, dict[str, float]]
    log: LogTable
    n_parameters: int | None = None
    written: str = ""

    @property
    def key(self) -> str:
        """Return a digest of the features."""
        return hashlib.sha256(json.dumps(sorted(self.features.items()), sort_keys=True).encode()).hexdigest()


def canonical(name: str) -> str:
    """Return the name METHODS gives a published statistic; one it does not know as it is.

    Examples
    --------
    >>> canonical("neural_persistence_mean"), canonical("h0_total_persistence"), canonical("h1_n_features")
    ('np_mean', 'H0.total', 'H1.count')
    """
    if found := re.fullmatch(r"(?:neural_persistence|np)_(mean|std|min|max)", name):
        return "np_mean" if found[1] == "mean" else f"np_mean_{found[1]}"
    if (found := re.fullmatch(r"[hH](\d)[._](\w+)", name)) and found[2] in _STATISTIC_OF:
        return f"H{found[1]}.{_STATISTIC_OF[found[2]]}"
    return _OTHER_NAMES.get(name, name)


def read_json(path: Path) -> Any:
    """Read a JSON file, in which no object may name a field twice.

    Raises
    ------
    ToposcopeError
        If it cannot be read, is too large, or is not JSON.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ToposcopeError(f"{path}: more than {LARGEST_FILE // 10**6} MB; not a table of features")
        return json.loads(path.read_bytes(), object_pairs_hook=_object)
    except OSError as error:
        raise ToposcopeError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ToposcopeError(f"{path}: not JSON: {' '.join(str(error).split())[:100]}") from error


def read_features(path: Path) -> dict[str, PublishedRun]:
    """Read the features of one or several runs.

    The file holds a list of rows, each with its ``step``, or an object of such lists by run. Rows of a list are of the
    run that ``run``, ``model`` or ``config_name`` names (of ``owner/name`` the last part), else of one called like the
    file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict of PublishedRun
        By run, in the order of the file.

    Raises
    ------
    ToposcopeError
        In one line, naming the file, the row and the field: what is no number, a step twice or missing, two columns of
        one meaning, nothing that is a feature.
    """
    return features_of(read_json(path), path)


def features_of(content: Any, path: Path) -> dict[str, PublishedRun]:
    """Make sense of what a file of features holds (see `read_features`)."""
    try:
        return {run: _run(rows, written) for run, (written, rows) in _by_run(content, path.stem).items()}
    except _Odd as error:
        raise ToposcopeError(f"{path}: {error}") from error


def of_run(runs: Mapping[str, PublishedRun], name: str, path: Path) -> PublishedRun:
    """Return what a file says of a run; a file that names no run is of the one that is asked for.

    Raises
    ------
    ToposcopeError
        If the file is of other runs.
    """
    if name in runs:
        return runs[name]
    if not any(run.written for run in runs.values()):
        return next(iter(runs.values()))
    raise ToposcopeError(f"{path}: no run {name!r}; it has {', '.join(runs)}; name the series like one of them")


class _Odd(Exception):  # noqa: N818 - never leaves this file
    """What is odd about a file, without its name."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:LONGEST_NAME]!r} twice in one object")
    return content


Rows = list[tuple[str, dict[str, Any]]]
"""Rows, each with its place in the file for messages."""


def _by_run(content: Any, stem: str) -> dict[str, tuple[str, Rows]]:
    """Gather rows by run, with what the file calls it."""
    lists = content.items() if isinstance(content, dict) else [("", content)]
    runs: dict[str, tuple[str, Rows]] = {}
    for key, rows in lists:
        where = f"{key[:LONGEST_NAME]}: " if key else ""
        if not isinstance(rows, list):
            raise _Odd(f"{where}expected a list of rows, found {_kind(rows)}")
        named: dict[str, Rows] = {}
        for i, row in enumerate(rows):
            place = f"{where}row {i + 1}"
            if not isinstance(row, dict):
                raise _Odd(f"{place}: expected an object with a step, found {_kind(row)}")
            named.setdefault(key or _name_of(row, place), []).append((place, row))
        for written, mine in named.items():
            name = (written or stem).rstrip("/").rpartition("/")[2]
            if not name.isprintable() or not name.strip(". ") or "\\" in name or len(name) > LONGEST_NAME:
                raise _Odd(f"{mine[0][0] if mine else where}: {name[:LONGEST_NAME]!a} cannot be the name of a run")
            if name in runs:
                raise _Odd(f"two runs are called {name!r}; rename one of them")
            runs[name] = written, mine
    if not runs:
        raise _Odd("no rows")
    return runs


def _name_of(row: dict[str, Any], place: str) -> str:
    for column in _NAMES_OF_RUNS:
        if column in row:
            if not isinstance(row[column], str):
                raise _Odd(f"{place}: {column}: expected text, found {_kind(row[column])}")
            return str(row[column])
    return ""


def _run(rows: Rows, written: str) -> PublishedRun:
    features: dict[int, dict[str, float]] = {}
    logged: dict[int, dict[str, float]] = {}
    sizes: set[int] = set()
    # beside a column `loss`, none is taken for the loss just because of the word in its name
    names = dict.fromkeys(["loss", *(name for _, row in rows for name in row)])
    columns = {source: name for name, source in sources(identify_columns(names)).items() if name in COLUMNS}
    for place, row in rows:
        step = _step(row, place)
        if step in features:
            raise _Odd(f"{place}: step {step} a second time")
        features[step], logged[step] = {}, {}
        for column, value in row.items():
            if column == "step" or (column in _TEXTS and isinstance(value, str)):
                continue
            if not column.isprintable() or not 0 < len(column) <= LONGEST_NAME:
                raise _Odd(f"{place}: {column[:LONGEST_NAME]!r} cannot be the name of a feature")
            number = _number(value, f"{place}: {column}")
            if number is None or column in _NOT_FEATURES or column.endswith("_time_s"):
                continue
            if column in _SIZES:
                sizes.add(_whole(number, f"{place}: {column}"))
            elif not _log(logged[step], columns, column, number, place):
                _keep(features[step], canonical(column), number, f"{place}: {column}")
    if len(sizes) > 1:
        raise _Odd(f"{' and '.join(map(str, sorted(sizes)[:2]))} parameters in one run; rename the rows of one of them")
    if not any(features.values()):
        raise _Odd("rows with steps, but no feature in any of them")
    features = {step: values for step, values in sorted(features.items()) if values}
    return PublishedRun(features, LogTable.from_rows(logged), next(iter(sizes), None), written)


def _log(into: dict[str, float], columns: Mapping[str, str], column: str, number: float, place: str) -> bool:
    """Add what belongs into a training log; return whether this does."""
    if column == "perplexity":
        if number <= 0:
            raise _Odd(f"{place}: perplexity is {number}; it must be more than 0")
        into.setdefault("validation_loss", math.log(number))
        return True
    if column in columns:
        into[columns[column]] = number  # a loss comes before one from a perplexity
    return column in columns


def _keep(into: dict[str, float], name: str, number: float, place: str) -> None:
    if name in into:
        raise _Odd(f"{place}: {name} a second time, under another name")
    if math.isinf(number):
        raise _Odd(f"{place}: infinite; leave out what is not defined")
    into[name] = number


def _step(row: dict[str, Any], place: str) -> int:
    if "step" not in row:
        raise _Odd(f"{place}: no step")
    number = _number(row["step"], f"{place}: step")
    if number is None:
        raise _Odd(f"{place}: no step")
    return _whole(number, f"{place}: step")


def _number(value: Any, place: str) -> float | None:
    """Return a number as float, and None for what is not defined: null, NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Odd(f"{place}: expected a number, found {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise _Odd(f"{place}: too large a number") from None
    return None if math.isnan(number) else number


def _whole(number: float, place: str) -> int:
    if not number.is_integer() or not 0 <= number <= MAX_STEP:
        raise _Odd(f"{place} is {number}; expected a whole number from 0")
    return int(number)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number")
