"""Checkpoints of one run inside files that hold those of many, one file a step.

In the folder of the run's checkpoints, ``packed.json`` names the folder of the pack and the run. Its checkpoints are
then listed as ordinary safetensors files, byte for byte those that a run trained alone would have; the bytes of a
tensor are read from the pack where they lie, one row of its first dimension.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from toposcope.checkpoints.sources.source import (
    Bytes,
    check_range,
    damaged,
    malformed,
    opened,
    truncated,
    unreachable,
)
from toposcope.untrusted import MAX_BYTES, bytes_of, json_as

POINTER = "packed.json"
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class PackPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``packed.json``."""

    pack: str  # the folder of the pack, relative to the one that holds this file
    run: str  # the name of the run, as in the pack's files
    steps: list[_Count]  # of its checkpoints
    status: Literal["running", "complete", "diverged"]  # how the run ended
    step: _Count  # the last step in its log


class _Described(msgspec.Struct):
    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True)
class PackedFile:
    """One run's checkpoint in a pack (see `StoredFile`)."""

    path: Path
    pack: Path
    index: int
    size: int
    pack_size: int
    pack_mtime: int
    sha256: str = ""

    @property
    def location(self) -> str:
        """The path that a file of the run's own would have."""
        return str(self.path)

    @property
    def version(self) -> str:
        """Changes with the pack."""
        return f"{self.pack_mtime}-{self.index}"

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range, from the header made for this run and from its rows of the pack."""
        check_range(self.location, start, stop, self.size)
        content = np.empty(stop - start, np.uint8)
        with opened(self.pack, str(self.pack), self.pack_size, str(self.pack_mtime)) as file:
            layout = _layout(self.pack, self.pack_size, self.pack_mtime)
            head = np.frombuffer(layout.header, np.uint8)[start:stop]
            content[: len(head)] = head
            for begin, place, width in layout.rows:
                first, last = max(start, begin), min(stop, begin + width)
                if first < last:
                    at = place + self.index * width + first - begin
                    got = os.preadv(file, [content[first - start : last - start].data], at)
                    check_range(str(self.pack), at, at + last - first, at + got)
        return content


def packed_files(folder: Path, only: str = "") -> dict[str, PackedFile]:
    """Return the checkpoints, or one, that a folder's ``packed.json`` stands for, by the names of files there."""
    pointer = read_pointer(folder)
    if pointer is None:
        return {}
    pack = (folder / pointer.pack).resolve()  # one path for all its runs
    names = [name for name in map(file_name, pointer.steps) if name == (only or name)]
    return {name: _packed_file(folder / name, pack / name, pointer.run) for name in names}


def file_name(step: int) -> str:
    """Return the name of the file of one step, in a pack and in the folder of a run."""
    return f"step_{step:06d}.safetensors"


def read_pointer(folder: Path) -> PackPointer | None:
    """Return the content of a folder's ``packed.json``; None if it has none."""
    path = folder / POINTER
    if not path.is_file():
        return None
    try:
        return json_as(bytes_of(path), PackPointer)
    except (OSError, ValueError) as error:
        raise malformed(path, f"does not name a pack ({' '.join(str(error).split())}); train the run again") from error


def _packed_file(path: Path, pack: Path, run: str) -> PackedFile:
    try:
        status = pack.stat()
        layout = _layout(pack, status.st_size, status.st_mtime_ns)
    except OSError as error:
        reason = f"holds the checkpoint {path} and cannot be read: {error.strerror or error}"
        raise unreachable(pack, f"{reason}; restore the pack's folder, or train the run again") from error
    if run not in layout.runs:
        raise malformed(pack, f"holds no run {run!r}; restore the pack's folder")
    return PackedFile(path, pack, layout.runs.index(run), layout.size, status.st_size, status.st_mtime_ns)


class _Layout(NamedTuple):
    """A run's checkpoint: its header and size, and where each tensor begins in it and in the pack, and its bytes."""

    runs: list[str]
    header: bytes
    size: int
    rows: list[tuple[int, int, int]]


@lru_cache(maxsize=1024)
def _layout(pack: Path, size: int, _mtime: int) -> _Layout:
    """Return how a pack is laid out; read once for each state of the file."""
    with pack.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_BYTES):
            raise truncated(pack, "no whole header", "restore the pack's folder")
        text = file.read(length)
    try:
        described = json_as(text, dict[str, Any])
        runs = msgspec.json.decode(described.pop("__metadata__")["runs"], type=list[str])
        header, rows, at = dict[str, object](__metadata__={"format": "pt"}), [], 0
        tensors = msgspec.convert(described, dict[str, _Described])
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
            first, last = tensor.data_offsets
            width, rest = divmod(last - first, len(runs))
            if tensor.shape[:1] != [len(runs)] or rest or not first <= last <= size - 8 - length:
                raise ValueError(f"{name[:80]!a} has no row for each of {len(runs)} runs")
            header[name] = {"dtype": tensor.dtype, "shape": tensor.shape[1:], "data_offsets": (at, at + width)}
            rows.append((at, 8 + length + first, width))
            at += width
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise damaged(pack, f"no pack of runs ({reason})", "restore it") from error
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return _Layout(runs, head, len(head) + at, [(len(head) + begin, place, width) for begin, place, width in rows])
