"""Recognising a log that can be read whole, without Polars, which takes as long to import as a small series to examine.

The log of a run trained here is a table of plain numbers. Where nobody asks what they are, nothing else is needed.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.logs.columns import identify_columns
from toposcope.typing import Steps, Vector

if TYPE_CHECKING:
    from toposcope.checkpoints.sources import Source

NAME = "log.csv"
MAX_BYTES = 1 << 22
"""A larger file is read as a table sooner than it is matched."""
_HEADER = re.compile(rb"[a-z_]+(?:,[a-z_]+)+")
_STEP = rb"\d{1,15}"
_CELL = rb"(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|nan|-?inf|)"


def folder_of(place: "Source | Path") -> "Source":
    """Return where a log may lie: beside a checkpoint that is a file of this machine."""
    from toposcope.checkpoints.sources import LocalSource  # what it imports takes long

    path = place.path if isinstance(place, LocalSource) else place
    return LocalSource(path if path.is_dir() else path.parent) if isinstance(path, Path) else path


class PlainLog(NamedTuple):
    """The steps, ascending, and the values of a table of plain numbers, as `toposcope.logs.LogTable` has them."""

    steps: Steps
    values: dict[str, Vector]


def plain_log(place: "Source | Path") -> PlainLog | None:
    """Return the log beside a series if it is surely one that `toposcope.logs.log_beside` reads, else None."""
    file = folder_of(place).files().get(NAME)
    content = file.read(0, file.size).tobytes() if file is not None and file.size <= MAX_BYTES else b""
    if not is_plain(content):
        return None
    header, *rows = content.decode().splitlines()
    names, cells = header.split(","), [row.split(",") for row in rows]
    table = np.array([[float(cell or "nan") for cell in row] for row in cells], np.float64).reshape(-1, len(names))
    steps, order = np.unique(table[:, names.index("step")].astype(np.int64), return_inverse=True)
    columns = {what: found[0] for what, found in identify_columns(names).named.items() if found}
    columns |= {name: name for name in names if name not in columns.values()}
    values = {what: np.full(len(steps), np.nan) for what in columns}
    for what, name in columns.items():
        column = table[:, names.index(name)]
        logged = ~np.isnan(column)
        values[what][order[logged]] = column[logged]  # of several rows of a step the last
    return PlainLog(steps, values)


def is_plain(content: bytes) -> bool:
    """Return whether a file is a table of steps, losses and further plain numbers, some of them not logged."""
    header, _, rows = content.partition(b"\n")
    names = header.split(b",")
    if not _HEADER.fullmatch(header) or len(set(names)) < len(names) or not {b"step", b"loss"} <= set(names):
        return False
    row = b",".join(_STEP if name == b"step" else _CELL for name in names)
    return re.fullmatch(b"(?:" + row + b"\n)*", rows) is not None
