"""TensorBoard event files; events are those of TensorBoard's own definition (extra ``tensorboard``)."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.extras import require
from toposcope.logs.raw import RawLog
from toposcope.logs.splitting import pivot_long

MARK = "tfevents"
LENGTH = struct.Struct("<Q")
BEFORE, AFTER = 12, 4
"""Bytes around each event: its length and a check sum, and a check sum of the event.

The sums are not checked: in Python that takes most of the time, and the lengths show where a file is cut.
"""
DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64}
"""Of tensors that may be scalars, by number in TensorFlow's types.proto."""


def claims(path: Path) -> bool:
    """Return whether the path is an event file, or a folder that holds some: those of one run, resumed or not."""
    return MARK in path.name if path.is_file() else bool(_files(path))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if MARK in file.name and file.is_file()) if path.is_dir() else []


def runs(path: Path) -> list[RawLog]:
    """Return the scalars of a run, and of those in folders below."""
    below = sorted(folder for folder in path.rglob("*") if folder.is_dir() and _files(folder)) if path.is_dir() else []
    found = [raw for folder in (path, *below) if (raw := _run(folder)) is not None]
    if not found:
        raise ToposcopeError("no scalars in it; nothing was logged yet, or it is damaged")
    return found


def _run(path: Path) -> RawLog | None:
    """Return the scalars of event files, in the order of their names, which hold the time; None if there are none."""
    keys: list[str] = []
    steps: list[int] = []
    values: list[float] = []
    remarks: list[str] = []
    for file in _files(path):
        for key, step, value in _scalars(file, remarks):
            keys.append(key)
            steps.append(step)
            values.append(value)
    if not keys:
        return None
    table = pl.DataFrame({"key": keys, "step": steps, "value": values}, schema_overrides={"value": pl.Float64})
    name = "" if path.is_dir() else path.resolve().parent.name
    return RawLog(path, name, pivot_long(table, "key"), remarks=tuple(remarks))


def _scalars(file: Path, remarks: list[str]) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of the scalars of a file, as they were written."""
    require("tensorboard.compat.proto.event_pb2", f"log {file}")
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    content = file.read_bytes()
    place = 0
    while place + BEFORE <= len(content):
        (length,) = LENGTH.unpack_from(content, place)
        end = place + BEFORE + length + AFTER
        if end > len(content):
            break
        try:
            event = Event.FromString(content[place + BEFORE : end - AFTER])
        except DecodeError:
            break
        place = end
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                yield value.tag, event.step, number
    if place < len(content):
        remarks.append(f"{file.name}: the last {len(content) - place} bytes are no whole event: ignored")


def _number(value: Any) -> float | None:
    """Return a scalar, be it a number or a tensor of one number; None if it is something else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.dtype not in DTYPES:
        return None
    if value.metadata.plugin_data.plugin_name not in ("", "scalars"):
        return None
    tensor = value.tensor
    dtype = np.dtype(DTYPES[tensor.dtype])
    if len(tensor.tensor_content) == dtype.itemsize:
        return float(np.frombuffer(tensor.tensor_content, dtype)[0])
    stored = [*tensor.float_val, *tensor.double_val, *tensor.int_val, *tensor.int64_val]
    return float(stored[0]) if len(stored) == 1 else None
