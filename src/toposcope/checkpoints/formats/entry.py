"""A stored tensor: its name, shape and dtype, and how its bytes are read."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import DTYPES, MANTISSA_BITS, from_tensor, itemsize, without_8_bits
from toposcope.checkpoints.sources.source import Bytes, StoredFile
from toposcope.kernels.magnitudes import widened

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_BYTES = 1 << 24  # of a tensor in memory at a time where it is read block by block
Item = TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """One stored tensor.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : str
        As torch names it, for example ``bfloat16``.
    read : callable
        ``read(start, stop)`` returns these rows (slices of the first axis) of the tensor, as stored: an array of the
        dtype that `toposcope.checkpoints.formats.dtypes` gives for this one.
    sequential_rows : bool
        Whether rows can be read without the bytes of all others; not those of a transposed matrix.
    place : tuple of StoredFile and int, optional
        The file, and the offset in it, where the numbers follow each other row by row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int, int], NDArray[Any]]
    sequential_rows: bool = True
    place: tuple[StoredFile, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # JSON holds a list

    def whole(self) -> NDArray[Any]:
        """Read the tensor."""
        return self.read(0, self.shape[0] if self.shape else 1)

    def numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """Read the tensor, or its rows `start` to `stop`, in double precision."""
        stored = self.whole() if stop is None else self.read(start, stop)
        numbers: NDArray[np.float64] = widened(without_8_bits(stored, self.dtype)).astype(np.float64)
        return numbers

    @cached_property
    def n_bytes(self) -> int:
        """Size of the stored data; 0 if its dtype is not known."""
        return math.prod(self.shape) * (itemsize(self.dtype) if self.dtype in DTYPES else 0)

    @property
    def is_float(self) -> bool:
        """Whether its numbers are floating-point, of a byte or more each."""
        return self.dtype in MANTISSA_BITS

    def content_hash(self) -> str:
        """Return the SHA-256 of dtype, shape and bytes, a few rows in memory at a time."""
        digest = self.new_digest()
        for rows in self.blocks():
            digest.update(flattened(rows).view(np.uint8).data)
        return digest.hexdigest()

    def new_digest(self) -> "hashlib._Hash":
        """Return a SHA-256 that becomes the content hash once it is updated with the bytes of all rows."""
        return hashlib.sha256(f"{self.dtype}{list(self.shape)}".encode())

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Read the tensor in blocks of rows of about `BLOCK_BYTES` bytes."""
        if 0 in self.shape:
            return
        whole = None if self.sequential_rows or not self.shape else self.whole()
        count = self.shape[0] if self.shape else 1
        width = math.prod(self.shape[1:]) * itemsize(self.dtype)
        step = max(1, BLOCK_BYTES // max(1, width))
        for start in range(0, count, step):
            stop = min(start + step, count)
            yield self.read(start, stop) if whole is None else whole[start:stop]


class Unread(NamedTuple):
    """A value of a model that is no plain tensor: what it is, how many numbers it holds, whether it is a weight."""

    what: str
    numbers: int
    is_weight: bool = False


class Listing(list[Entry]):
    """The tensors of a checkpoint, with remarks on what was chosen in its files, and the values that are not read.

    `stated` holds the counters that a single file states, where they were at hand; None where they were not.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        notes: Iterable[str] = (),
        stated: Mapping[str, int] | None = None,
        unread: Mapping[str, Unread] | None = None,
    ) -> None:
        super().__init__(entries)
        self.notes: tuple[str, ...] = tuple(notes)
        self.stated: Mapping[str, int] | None = stated
        self.unread: dict[str, Unread] = dict(unread or {})


def flattened(stored: NDArray[Any]) -> NDArray[Any]:
    """Return all numbers in one dimension, one after another in memory."""
    return np.ascontiguousarray(stored).reshape(-1)


def in_memory(name: str, tensor: "Tensor") -> Entry:
    """Return a tensor that need not be read, shared with torch; one on a GPU is fetched when its rows are read."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(name, tuple(tensor.shape), dtype, partial(_rows_of_tensor, tensor))


def _rows_of_tensor(tensor: "Tensor", start: int, stop: int) -> NDArray[Any]:
    return from_tensor(tensor[start:stop] if tensor.ndim else tensor)


def contiguous(name: str, shape: tuple[int, ...], dtype: str, file: StoredFile, offset: int) -> Entry:
    """Return a tensor that is stored row by row in a file, from `offset` on."""
    return Entry(name, shape, dtype, partial(_read, shape, dtype, file, offset), place=(file, offset))


def _read(shape: tuple[int, ...], dtype: str, file: StoredFile, offset: int, start: int, stop: int) -> NDArray[Any]:
    width = math.prod(shape[1:]) * itemsize(dtype)
    stored = file.read(offset + start * width, offset + stop * width)
    return as_array(stored, dtype, (stop - start, *shape[1:]) if shape else ())


def as_array(stored: Bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return bytes as an array, without a copy if they are aligned."""
    if stored.__array_interface__["data"][0] % itemsize(dtype):
        stored = np.array(stored)
    return stored.view(DTYPES[dtype]).reshape(shape)


def slice_of(entry: Entry, k: int, name: str) -> Entry:
    """Return one slice of a tensor along its first axis."""
    if entry.place is None:
        read = partial(_rows_of_slice, entry, k)
        return Entry(name, entry.shape[1:], entry.dtype, read, sequential_rows=False)
    file, offset = entry.place
    return contiguous(name, entry.shape[1:], entry.dtype, file, offset + k * (entry.n_bytes // entry.shape[0]))


def _rows_of_slice(entry: Entry, k: int, start: int, stop: int) -> NDArray[Any]:
    rows: NDArray[Any] = entry.read(k, k + 1)[0][start:stop]
    return rows


def reshaped(name: str, shape: tuple[int, ...], entry: Entry) -> Entry:
    """Return a tensor with other axes, its numbers in the same order."""
    if entry.place is not None:
        return contiguous(name, shape, entry.dtype, *entry.place)
    return Entry(name, shape, entry.dtype, partial(_read_reshaped, entry, shape), sequential_rows=False)


def _read_reshaped(entry: Entry, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
    whole: NDArray[Any] = np.ascontiguousarray(entry.whole()).reshape(shape)
    return whole[start:stop]


def stacks_of(members: Iterable[tuple[Item, Entry]], max_entries: int) -> Iterator[tuple[list[Item], NDArray[Any]]]:
    """Yield tensors of one shape and dtype in stacks with what they belong to, without those that cannot be read."""
    alike: dict[tuple[tuple[int, ...], str], list[tuple[Item, Entry]]] = {}
    for item, entry in members:
        alike.setdefault((entry.shape, entry.dtype), []).append((item, entry))
    for (shape, _), same in alike.items():
        size = max(1, max_entries // max(1, math.prod(shape)))
        for start in range(0, len(same), size):
            items, tensors = [], []
            for item, entry in same[start : start + size]:
                with suppress(Exception):  # it is read by itself later, which says why
                    tensors.append(entry.whole())
                    items.append(item)
            if items:
                yield items, np.stack(tensors)
