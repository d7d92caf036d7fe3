"""Checkpoints of one run inside files that hold those of many, one file a step.

In the folder of the run's checkpoints, ``packed.json`` names the folder of the pack and the run. Its checkpoints are
then listed as ordinary safetensors files, byte for byte those that a run trained alone would have; the bytes of a
tensor are read from the pack where they lie, one row of its first dimension.
"""

import bisect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from toposcope.checkpoints.sources.source import Bytes, CheckpointError, check_range, opened, unreachable

POINTER = "packed.json"
MAX_POINTER_BYTES = 10_000_000
MAX_HEADER_BYTES = 100_000_000  # as in the safetensors library
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
class _Layout:
    """Where the tensors of a run lie in a pack, and in the file they are listed as."""

    header: bytes  # the beginning of the listed file
    size: int  # of the listed file
    begins: tuple[int, ...]  # of the tensors in the listed file, ascending
    # of each tensor in the pack: where it begins for the first run, and the bytes of a run
    places: tuple[tuple[int, int], ...]


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
            layout, _ = _layout(self.pack, self.pack_size, self.pack_mtime)
            head = layout.header[start:stop]
            content[: len(head)] = np.frombuffer(head, np.uint8)
            for at, place, count in _pieces(layout, self.index, start + len(head), stop):
                got = os.preadv(file, [content[at - start : at - start + count].data], place)
                check_range(str(self.pack), place, place + count, place + got)
        return content


def packed_files(folder: Path) -> dict[str, PackedFile]:
    """Return the checkpoints that the ``packed.json`` of a folder stands for, by the names of files in the folder."""
    pointer = read_pointer(folder)
    if pointer is None:
        return {}
    pack = _folder_of(folder, pointer)
    return {name: _packed_file(folder / name, pack / name, pointer.run) for name in map(file_name, pointer.steps)}


def packed_file(path: Path) -> PackedFile | None:
    """Return the checkpoint that a path stands for where there is no such file; None if it stands for none."""
    pointer = read_pointer(path.parent)
    if pointer is None or path.name not in map(file_name, pointer.steps):
        return None
    return _packed_file(path, _folder_of(path.parent, pointer) / path.name, pointer.run)


def file_name(step: int) -> str:
    """Return the name of the file of one step, in a pack and in the folder of a run."""
    return f"step_{step:06d}.safetensors"


def read_pointer(folder: Path) -> PackPointer | None:
    """Return the content of a folder's ``packed.json``; None if it has none."""
    path = folder / POINTER
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_POINTER_BYTES:
            raise CheckpointError(f"{path}: too long to name a pack; train the run again", "damaged")
        return msgspec.json.decode(path.read_bytes(), type=PackPointer)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path}: does not name a pack ({reason}); train the run again", "damaged") from error


def _folder_of(folder: Path, pointer: PackPointer) -> Path:
    """Return the folder of a pack, by one path for all its runs."""
    return (folder / pointer.pack).resolve()


def _packed_file(path: Path, pack: Path, run: str) -> PackedFile:
    try:
        status = pack.stat()
        layout, runs = _layout(pack, status.st_size, status.st_mtime_ns)
    except OSError as error:
        reason = f"holds the checkpoint {path} and cannot be read: {error.strerror or error}"
        raise unreachable(pack, f"{reason}; restore the pack's folder, or train the run again") from error
    if run not in runs:
        raise CheckpointError(f"{pack}: holds no run {run!r}; restore the pack's folder", "damaged")
    return PackedFile(path, pack, runs[run], layout.size, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _layout(pack: Path, size: int, _mtime: int) -> tuple[_Layout, dict[str, int]]:
    """Return how a pack is laid out, and the index of each run; read once for each state of the file."""
    with pack.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(f"{pack}: truncated or damaged; restore the pack's folder", "truncated")
        text = file.read(length)
    try:
        described = msgspec.json.decode(text, type=dict[str, Any])
        names = msgspec.json.decode(described.pop("__metadata__", {})["runs"], type=list[str])
        tensors = msgspec.convert(described, dict[str, _Described])
        return _of_run(tensors, len(names), 8 + length, size), {name: i for i, name in enumerate(names)}
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{pack}: damaged, or no pack of runs ({reason}); restore it", "damaged") from error


def _of_run(tensors: dict[str, _Described], runs: int, data: int, size: int) -> _Layout:
    """Return the layout of a run from the header of a pack, whose data begin at `data`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begins, places = [], []
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        first, last = tensor.data_offsets
        if not tensor.shape or tensor.shape[0] != runs or (last - first) % runs or data + last > size or last < first:
            raise ValueError(f"{name[:80]!a} has no row for each of {runs} runs")
        width = (last - first) // runs
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape[1:], "data_offsets": (at, at + width)}
        begins.append(at)
        places.append((data + first, width))
        at += width
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return _Layout(head, len(head) + at, tuple(len(head) + begin for begin in begins), tuple(places))


def _pieces(layout: _Layout, index: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a range of the listed file behind its header: where, where in the pack, and how many bytes."""
    number = max(0, bisect.bisect_right(layout.begins, start) - 1)
    while start < stop:
        first, width = layout.places[number]
        within = start - layout.begins[number]
        count = min(stop - start, width - within)
        if count > 0:
            yield start, first + index * width + within, count
            start += count
        number += 1
