"""Training logs of any tool, read from a file or a folder."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from toposcope.errors import ToposcopeError
from toposcope.logs.cleaning import log_of
from toposcope.logs.columns import FIELDS, VALIDATION
from toposcope.logs.formats import runs_of
from toposcope.logs.log import UNITS, Log
from toposcope.logs.raw import Raw, listed, one_line
from toposcope.logs.shapes import split

DEPTH = 4
"""Folders below the given one that are looked into."""


class Logs(NamedTuple):
    """The logs of several runs.

    Attributes
    ----------
    logs : tuple of Log
        In the order of their names, which differ.
    remarks : tuple of str
        What was left out and why, and what the logs do not have in common, a sentence each.
    """

    logs: tuple[Log, ...]
    remarks: tuple[str, ...]


def read_logs(path: str | Path, *, columns: Mapping[str, str] | None = None, unit: str | None = None) -> Logs:
    r"""Read every run that a file or folder holds.

    Parameters
    ----------
    path : str or Path
        A log, a table of several runs, a study, a folder of these (looked through, four folders down), ``mlruns``.
    columns : mapping, optional
        Names of columns by what they are, in place of guesses: ``{"loss": "ce"}``. See `toposcope.logs.columns.FIELDS`.
    unit : str, optional
        Of the losses, one of `UNITS`; if left out, the name of the column tells.

    Returns
    -------
    Logs

    Raises
    ------
    ToposcopeError
        If there is no log that can be read; with several places, the first error is told.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("iter,train/loss,lr\n10,4.5,0.1\n20,nan,0.1\n30,4.0,0.1\n")
    >>> logs, remarks = read_logs(folder)
    >>> logs[0].name, logs[0].steps.tolist(), logs[0].remarks[0]
    ('a', [10, 30], '1 row has a loss that is NaN or infinite: ignored')
    """
    path, columns = Path(path), _checked(columns, unit)
    raws, errors = _found(path)
    logs: list[tuple[Raw, Log]] = []
    for raw in raws:
        try:
            parts = split(raw, columns)
        except ToposcopeError as error:
            errors.append(str(error))
            continue
        for part in parts:
            try:
                logs.append((part, log_of(part, columns, unit)))
            except ToposcopeError as error:
                which = f"{one_line(part.name)}: " if len(parts) > 1 or (len(raws) > 1 and part.name) else ""
                errors.append(f"{part.source}: {which}{error}")
    if not logs:
        more = f"; and {len(errors) - 1} more like this" if len(errors) > 1 else ""
        raise ToposcopeError((errors[0] + more) if errors else f"{path}: no training log in it that is understood")
    told = _with_names(path, logs)
    return Logs(tuple(told), (*(f"left out: {error}" for error in errors), *_differences(told)))


def read_log(
    path: str | Path, *, run: str | None = None, columns: Mapping[str, str] | None = None, unit: str | None = None
) -> Log:
    """Read one run.

    Parameters
    ----------
    path : str or Path
        As in `read_logs`.
    run : str, optional
        Its name, where there are several.
    columns, unit
        As in `read_logs`.

    Raises
    ------
    ToposcopeError
        If no log can be read, there are several and none is chosen, or the one chosen is not there.
    """
    logs, remarks = read_logs(path, columns=columns, unit=unit)
    names = [log.name for log in logs]
    if run is not None:
        if run not in names:
            raise ToposcopeError(f"{path}: no run {one_line(run)!r}; it has {listed(names)}")
        return logs[names.index(run)]
    if len(logs) > 1:
        raise ToposcopeError(f"{path}: {len(logs)} runs; choose one with --run NAME (run=NAME): {listed(names)}")
    return replace(logs[0], remarks=(*logs[0].remarks, *remarks))


def _checked(columns: Mapping[str, str] | None, unit: str | None) -> Mapping[str, str]:
    for what in columns or {}:
        if what not in FIELDS:
            raise ToposcopeError(f"no column can be named to be {what!r}; choose from {', '.join(FIELDS)}")
    if unit is not None and unit not in UNITS:
        raise ToposcopeError(f"unit {unit!r}: choose {', '.join(UNITS)}")
    return columns or {}


def _found(path: Path) -> tuple[list[Raw], list[str]]:
    """Return the tables of a place, and of what could not be read why."""
    try:
        exists = path.exists()
    except OSError as error:
        raise ToposcopeError(f"{path}: cannot be read: {error.strerror}") from error
    if not exists:
        raise ToposcopeError(f"{path}: no such file or folder")
    raws = runs_of(path, look=True)
    if raws is not None:
        return raws, []
    if not path.is_dir():
        raise ToposcopeError(
            f"{path}: not a training log that is known (CSV, JSON, JSON lines, Parquet, TensorBoard events, "
            "trainer_state.json, MLflow, a study)"
        )
    found: list[Raw] = []
    errors: list[str] = []
    _look_through(path, DEPTH, found, errors)
    return found, errors


def _look_through(folder: Path, depth: int, found: list[Raw], errors: list[str]) -> None:
    """Gather the tables in a folder; hidden files and folders are passed over."""
    try:
        places = sorted(place for place in folder.iterdir() if not place.name.startswith("."))
    except OSError as error:
        errors.append(f"{folder}: cannot be read: {error.strerror}")
        return
    for place in places:
        try:
            raws = runs_of(place)
        except ToposcopeError as error:
            errors.append(str(error))
            continue
        if raws is not None:
            found += raws
        elif place.is_dir() and depth and not place.is_symlink():
            _look_through(place, depth - 1, found, errors)


def _with_names(path: Path, logs: list[tuple[Raw, Log]]) -> list[Log]:
    """Return the logs under names that differ, sorted: as the tool called them, else by place, else both."""

    def place(raw: Raw) -> str:
        source = raw.source
        if source == path or not source.is_relative_to(path):
            return source.stem if source.is_file() else source.resolve().name
        return source.relative_to(path).with_suffix("" if source.is_file() else source.suffix).as_posix()

    ways: tuple[Callable[[Raw, Log], str], ...] = (
        lambda raw, log: log.name or place(raw),
        lambda raw, log: "/".join(filter(None, (place(raw), log.name))),
    )
    names = [ways[0](raw, log) for raw, log in logs]
    twice = {name for name, count in Counter(names).items() if count > 1}
    names = [ways[1](*pair) if name in twice else name for name, pair in zip(names, logs, strict=True)]
    seen: Counter[str] = Counter()
    told = []
    for name, (_, log) in zip(names, logs, strict=True):
        seen[name] += 1
        told.append(replace(log, name=one_line(name if seen[name] == 1 else f"{name} ({seen[name]})")))
    return sorted(told, key=lambda log: log.name)


def _differences(logs: list[Log]) -> list[str]:
    """Tell of units that differ, and of losses that are held out in some runs only."""
    remarks = []
    units = Counter(log.unit for log in logs)
    if len(units) > 1:
        parts = ", ".join(f"{unit} in {count} runs" for unit, count in sorted(units.items()))
        remarks.append(f"units differ ({parts}): runs of different units cannot be compared")
    targets = Counter(log.target for log in logs)
    held_out = {target: any(word in target.lower() for word in VALIDATION) for target in targets}
    if len(set(held_out.values())) > 1:
        parts = ", ".join(f"{one_line(target)!r} in {count} runs" for target, count in sorted(targets.items()))
        remarks.append(f"the loss is a validation loss in some runs only ({parts}); name one with --column loss=NAME")
    return remarks
