"""Training logs of any tool, read from a file or a folder, or from next to a series of checkpoints."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.files import refuse_link
from toposcope.logs.cleaning import clean_log, identified_columns
from toposcope.logs.columns import FIELDS, target_of
from toposcope.logs.formats import (
    console,
    existing,
    format_of,
    json_rows,
    nothing_read,
    read_raw,
    refusing,
    search_folder,
    tables,
    trainer_state,
)
from toposcope.logs.formats.run_folder import NAMES
from toposcope.logs.raw import RawLog, join_names, one_line
from toposcope.logs.run import UNITS, Run
from toposcope.logs.splitting import split_runs
from toposcope.logs.table import LogTable, is_step, log_table, sources
from toposcope.logs.target import require_losses
from toposcope.logs.texts import ZERO_BYTES

if TYPE_CHECKING:
    from toposcope.checkpoints.sources import Source

LEFT_OUT = "left out: "  # begins a remark on a log that was refused
MAX_DEPTH = 4  # folders below the given one that are searched
_parsers = {".csv": tables.parse_table, ".json": json_rows.parse_json_rows}


class Logs(NamedTuple):
    """The logs of several runs.

    Attributes
    ----------
    logs : tuple of Run
        In the order of their names, which differ.
    remarks : tuple of str
        What was left out and why, and in what the logs differ, a sentence each.
    """

    logs: tuple[Run, ...]
    remarks: tuple[str, ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """The logs that could not be read, a clause each: where it lies, and why. Other JSON in a folder is no log."""
        errors = (remark.removeprefix(LEFT_OUT) for remark in self.remarks if remark.startswith(LEFT_OUT))
        return tuple(error for error in errors if not any(words in error for words in json_rows.NO_LOG))


def read_logs(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    pattern: str = "",
    every: int = 0,
) -> Logs:
    r"""Read every run that a file or folder holds.

    Parameters
    ----------
    path : str or Path
        A log, a table of several runs, a study, a folder of these (searched four folders down), ``mlruns``.
    columns : mapping, optional
        Names of columns by what they are: ``{"loss": "ce"}``, each one of `toposcope.logs.columns.FIELDS`. The others
        are identified by their names.
    unit : str, optional
        Of the losses, one of `UNITS`; by default, that in the name of the column.
    pattern : str, optional
        A regular expression with groups such as ``(?P<step>[0-9]+)`` and ``(?P<loss>[0-9.]+)`` by which the lines of a
        text are read, in place of what is recognised. Without look-around and references to groups: the time it takes
        grows with the length of the text alone.
    every : int, optional
        Steps between two rows with a loss, for a log that states none: its rows are counted.

    Returns
    -------
    Logs

    Raises
    ------
    ToposcopeError
        If there is no log that can be read; of several errors, the first is shown.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("iter,train/loss,lr\n10,4.5,0.1\n20,nan,0.1\n30,4.0,0.1\n")
    >>> logs, remarks = read_logs(folder)
    >>> logs[0].name, logs[0].steps.tolist(), logs[0].remarks[0]
    ('a', [10, 30], '1 row has a loss that is NaN or infinite: ignored')
    """
    columns, path = checked_columns(columns, unit), existing(path)
    for part in () if pattern else _first_rows(path, columns):
        try:
            require_losses(part, identified_columns(part, columns))
        except ToposcopeError as error:
            raise ToposcopeError(f"{path}: {error}") from error
    raws, errors = _raw_logs(path, pattern, columns)
    logs: list[tuple[RawLog, Run]] = []
    for raw in raws:
        try:
            parts = split_runs(raw, columns)
        except ToposcopeError as error:
            errors.append(f"{raw.source}: {error}")
            continue
        for part in parts:
            try:
                logs.append((part, clean_log(part, columns, unit, every)))
            except ToposcopeError as error:
                which = f"{one_line(part.name)}: " if len(parts) > 1 or (len(raws) > 1 and part.name) else ""
                errors.append(f"{part.source}: {which}{error}")
    if not logs:
        raise nothing_read(errors, f"{path}: holds no training log of a known format{console_hint(path)}")
    named = _with_names(path, logs)
    return Logs(tuple(named), (*(f"{LEFT_OUT}{error}" for error in errors), *_differences(named)))


def _first_rows(path: Path, columns: Mapping[str, str]) -> list[RawLog]:
    """Return the first rows of a large table by run, where its columns are quantities: they show what it lacks."""
    if not path.is_file() or format_of(path, look=True) is not tables or (raw := tables.first_rows(path)) is None:
        return []
    names = raw.table.columns
    if (run := columns.get("run")) is not None and run not in names:
        raise ToposcopeError(f"{path}: no column {one_line(run)!r}; it has {join_names(names)}")
    try:
        return [] if {"step", "value"} <= set(names) else split_runs(raw, columns)
    except ToposcopeError:  # all of it may be more than its first rows
        return []


def beginning(path: str | Path, columns: Mapping[str, str], unit: str | None = None, every: int = 0) -> Run | None:
    """Return the first rows of a large table of one run that has no learning rates, in which an end could show later.

    None of any other log.
    """
    parts = _first_rows(Path(path), columns)
    if len(parts) != 1 or "learning_rate" in {*parts[0].columns.named, *columns}:
        return None
    try:
        return _with_names(Path(path), [(parts[0], clean_log(parts[0], columns, unit, every))])[0]
    except ToposcopeError:
        return None


def console_hint(folder: Path) -> str:
    """Return what to pass in place of a folder in which nothing is saved yet: the console log of the training."""
    if not folder.is_dir():
        return ""
    beside = sorted(str(file) for file in folder.resolve().parent.glob("*.*") if file.suffix in (".log", ".out"))
    which = f"pass that of this run: {join_names(beside, 3)}" if beside else "write it to a file and pass that"
    return f"; what a training prints is read too: {which}"


def read_log(
    path: str | Path,
    *,
    run: str | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str | None = None,
    pattern: str = "",
    every: int = 0,
) -> Run:
    """Read one run.

    Parameters
    ----------
    path : str or Path
        As in `read_logs`.
    run : str, optional
        Its name, where there are several.
    columns, unit, pattern, every
        As in `read_logs`.

    Raises
    ------
    ToposcopeError
        If no log can be read, there are several and `run` is not given, or there is no run of that name.
    """
    logs, remarks = read_logs(path, columns=columns, unit=unit, pattern=pattern, every=every)
    names = [log.name for log in logs]
    if run is not None:
        if run not in names:
            raise ToposcopeError(f"{path}: no run {one_line(run)!r}; it has {join_names(names)}")
        return logs[names.index(run)]
    if len(logs) > 1:
        raise ToposcopeError(f"{path}: {len(logs)} runs; choose one with --run NAME (run=NAME): {join_names(names)}")
    return replace(logs[0], remarks=(*logs[0].remarks, *remarks))


def checked_columns(columns: Mapping[str, str] | None, unit: str | None) -> Mapping[str, str]:
    """Return the columns that a caller named; refuse what is wrong for every log."""
    for quantity in columns or {}:
        if quantity not in FIELDS:
            raise ToposcopeError(f"no column can be named to be {quantity!r}; {choices(quantity, FIELDS)}")
    if unit is not None and unit not in UNITS:
        raise ToposcopeError(f"unit {unit!r}: {choices(unit, UNITS)}")
    return columns or {}


def _raw_logs(path: Path, pattern: str, columns: Mapping[str, str]) -> tuple[list[RawLog], list[str]]:
    if pattern and path.is_file():
        with refusing(path):
            return console.parse_pattern(path.read_bytes(), path, pattern), []
    if columns and format_of(path, look=True) is console:
        with refusing(path):
            return console.runs(path, columns), []
    raws = read_raw(path, look=True)
    if raws is not None:
        return raws, []
    if path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz"):
        raise ToposcopeError(f"{path}: compressed; unpack it first")
    if not path.is_dir():
        raise ToposcopeError(
            f"{path}: not a training log of a known format (CSV, JSON, JSON lines, Parquet, TensorBoard events, "
            "trainer_state.json, MLflow, a study)"
        )
    errors: list[str] = []

    def read(one: Path) -> list[RawLog] | None:
        refuse_link(one, path)
        return read_raw(one, root=path)

    # texts are looked into where a folder has no other log
    return search_folder(path, MAX_DEPTH, read, errors, lambda one: _console_log(one, pattern)), errors


def _console_log(path: Path, pattern: str) -> list[RawLog]:
    """Return what a text says of a run; nothing of one that states no loss, such as a list of packages."""
    if path.suffix.lower() not in console.TEXTS:
        return []
    try:
        return (console.parse_pattern(path.read_bytes(), path, pattern) if pattern else read_raw(path, look=True)) or []
    except ToposcopeError:
        return []


def _with_names(path: Path, logs: list[tuple[RawLog, Run]]) -> list[Run]:
    """Return the logs sorted by names that differ: the tool's; where two are equal, with the place before them."""

    def place(raw: RawLog) -> str:
        source = raw.source
        if source == path or not source.is_relative_to(path):
            return source.stem if source.is_file() else source.resolve().name
        return source.relative_to(path).with_suffix("" if source.is_file() else source.suffix).as_posix()

    def full(raw: RawLog, log: Run) -> str:
        return "/".join(filter(None, (place(raw), log.name)))

    names = [log.name or place(raw) for raw, log in logs]
    counts = Counter(names)
    names = [full(*pair) if counts[name] > 1 else name for name, pair in zip(names, logs, strict=True)]
    seen: Counter[str] = Counter()
    named = []
    within = Counter(place for raw, _ in logs for place in (_folder(raw.source), *_folder(raw.source).parents))
    for name, (raw, log) in zip(names, logs, strict=True):
        seen[name] += 1
        name = one_line(name if seen[name] == 1 else f"{name} ({seen[name]})")
        # what lies next to or above several logs is not of one of them
        named.append(replace(log, name=name, source=raw.source if within[_folder(raw.source)] == 1 else None))
    return sorted(named, key=lambda log: log.name)


def _folder(source: Path) -> Path:
    return source if source.is_dir() else source.parent


def _differences(logs: list[Run]) -> list[str]:
    """Return remarks on units that differ, and on losses that are of held-out data in some runs only."""
    remarks = []
    units = Counter(log.unit for log in logs)
    if len(units) > 1:
        parts = ", ".join(f"{unit} in {count} runs" for unit, count in sorted(units.items()))
        remarks.append(f"units differ ({parts}): runs of different units cannot be compared")
    targets = Counter(log.target for log in logs)
    if len({target_of(target).validation for target in targets}) > 1:
        parts = ", ".join(f"{one_line(target)!r} in {count} runs" for target, count in sorted(targets.items()))
        remarks.append(f"the loss is a validation loss in some runs only ({parts}); name one with --column loss=NAME")
    return remarks


def find_log(place: "Source | Path", axis: str = "step") -> LogTable | None:
    """Return what was logged of a series, or None if no log lies there.

    Looks for ``log.csv`` (our runs), ``training_log.json`` (a list of rows), then the ``trainer_state.json`` of the
    Hugging Face Trainer, in the folder and in its newest checkpoint. What a study stores next to checkpoints has to be
    whole: unlike in `toposcope.logs.read_log`, no row is left out. What its rows count is the `axis`, as
    `Series.axis` gives it: epochs, of which the last row of each is kept, where the checkpoints are named by them.

    Raises
    ------
    ToposcopeError
        If a log is there and a row of it has no step, or something other than a number.
    """
    from toposcope.checkpoints.sources import LocalSource, refuse_linked  # what they import takes long

    path = place.path if isinstance(place, LocalSource) else place
    if isinstance(path, Path):
        source: Source = LocalSource(path if path.is_dir() else path.parent)  # next to a checkpoint that is a file
    else:
        source = path
    files = source.files()
    name = next((name for name in NAMES if name in files), None) or trainer_state.newest_state(files)
    if name is None:
        return None
    file = files[name]
    refuse_linked(file)
    content = file.read(0, file.size).tobytes()
    parse = trainer_state.parse if name.endswith(trainer_state.NAME) else _parsers[Path(name).suffix]
    with refusing(file.location):
        raws = parse(content, Path(name))
        if len(raws) > 1:
            raise ToposcopeError(f"it holds {len(raws)} runs, not one")
        if lost := [remark for remark in raws[0].remarks if ZERO_BYTES in remark]:
            raise ToposcopeError(f"{lost[0]}; remove these lines")
        return _whole_table(raws[0], axis)


def _whole_table(raw: RawLog, axis: str) -> LogTable:
    """Return the table of a log in which every row has a step and every value is a number."""
    table = raw.table
    if table.is_empty():
        return LogTable.from_rows({})
    columns = raw.columns
    names, epochs = columns.named.get("step", []), columns.named.get("epoch", [])
    if epochs and (axis == "epoch" or (axis == "step or epoch" and not names)):
        names = epochs
        raw = replace(raw, table=table.filter(is_step(raw.numbers[epochs[0]].values)))
        table = raw.table
    if not names:
        raise ToposcopeError(f"no column of steps; it has {join_names(table.columns)}")
    step = "step" if "step" in names else names[0]
    steps = raw.numbers[step].values
    if not is_step(steps).all():
        row = int(np.argmin(is_step(steps)))
        raise ToposcopeError(f"row {row + 1}: {step} is {one_line(table[step][row])}; a whole number is needed")
    read = sources(columns)
    if not read:
        raise ToposcopeError(f"no loss and no other quantity of a log in it; it has {join_names(table.columns)}")
    for name in read.values():
        if raw.numbers[name].unreadable:
            raise ToposcopeError(f"column {one_line(name)!r} holds something other than numbers")
    return log_table(raw.numbers, columns, steps)
