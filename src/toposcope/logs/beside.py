"""The training log that lies beside a series of checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import identify_columns
from toposcope.logs.encodings import ZERO_BYTES
from toposcope.logs.formats import delimited, json_rows, refusing, trainer_state
from toposcope.logs.formats.run_folder import NAMES
from toposcope.logs.raw import RawLog, join_names, numbers, one_line
from toposcope.logs.table import LogTable, is_step, log_table, sources

if TYPE_CHECKING:
    from toposcope.checkpoints.sources import Source


def log_beside(place: "Source | Path") -> LogTable | None:
    """Return what was logged of a series, or None if no log lies there.

    Looks for ``log.csv`` (our runs), ``training_log.json`` (a list of rows), then the ``trainer_state.json`` of the
    Hugging Face Trainer, in the folder and in its newest checkpoint. What a study stores beside checkpoints has to be
    whole: unlike in `toposcope.logs.read_log`, no row is left out.

    Raises
    ------
    ToposcopeError
        If a log is there and a row of it has no step, or something other than a number.
    """
    from toposcope.checkpoints.sources import LocalSource, refuse_linked  # what they import takes long

    path = place.path if isinstance(place, LocalSource) else place
    if isinstance(path, Path):
        source: Source = LocalSource(path if path.is_dir() else path.parent)  # beside a checkpoint that is a file
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
        return _whole_table(raws[0])


_parsers = {".csv": delimited.parse, ".json": json_rows.parse}


def _whole_table(raw: RawLog) -> LogTable:
    """Return the table of a log in which every row has a step and every value is a number."""
    table = raw.table
    if table.is_empty():
        return LogTable.from_rows({})
    columns = identify_columns(table.columns)
    names = columns.named.get("step", [])
    if not names:
        raise ToposcopeError(f"no column of steps; it has {join_names(table.columns)}")
    step = "step" if "step" in names else names[0]
    steps = numbers(table[step]).values
    if not is_step(steps).all():
        row = int(np.argmin(is_step(steps)))
        raise ToposcopeError(f"row {row + 1}: {step} is {one_line(table[step][row])}; a whole number is needed")
    read = sources(columns)
    if not read:
        raise ToposcopeError(f"no loss and no other quantity of a log in it; it has {join_names(table.columns)}")
    for name in read.values():
        if numbers(table[name]).unreadable:
            raise ToposcopeError(f"column {one_line(name)!r} holds something other than numbers")
    return log_table(table, columns, steps)
