"""A tensor as torch and NumPy store it: numbers in a row, with an offset and strides."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import DTYPES, itemsize
from toposcope.checkpoints.formats.entry import Entry, as_array
from toposcope.checkpoints.sources import Bytes, CheckpointError, StoredFile
from toposcope.checkpoints.unpickling import StoredTensor

MAX_EXPANDED_BYTES = 1 << 24
"""Of a tensor that repeats fewer stored numbers by its strides: a causal mask of 2,048 tokens in float32."""
Data = Callable[[int, int], Bytes]
"""Reads a range of the bytes of a storage."""


def not_weights(file: StoredFile, reason: str) -> CheckpointError:
    """Return the error of a file that torch would not write."""
    return CheckpointError(f"{file.location}: not weights saved by torch, or damaged: {reason}", "damaged")


def strided_entry(
    file: StoredFile, name: str, tensor: StoredTensor, size: int, data: Data, *, is_big: bool = False
) -> Entry:
    """Return a tensor of a storage of `size` bytes."""
    needed = (tensor.offset + _extent(tensor.shape, tensor.strides)) * itemsize(tensor.dtype)
    if needed > size:
        raise not_weights(file, f"{name[:80]!r} needs more than the {size} bytes of its storage")
    expanded = math.prod(tensor.shape) * itemsize(tensor.dtype)
    if expanded > max(size, MAX_EXPANDED_BYTES):
        raise not_weights(file, f"{name[:80]!r} expands {size} stored bytes to {expanded:.3g} by repeating them")
    read = partial(_read_swapped if is_big else _read, tensor, data)
    return Entry(name, tensor.shape, tensor.dtype, read, _rows_are_separate(tensor.shape, tensor.strides))


def _read(tensor: StoredTensor, data: Data, start: int, stop: int) -> NDArray[Any]:
    size = itemsize(tensor.dtype)
    shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
    span = _extent(shape, tensor.strides)
    if not span:
        return np.empty(shape, DTYPES[tensor.dtype])
    first = (tensor.offset + start * (tensor.strides[0] if tensor.shape else 0)) * size
    numbers = as_array(data(first, first + span * size), tensor.dtype, (span,))
    return as_strided(numbers, shape, [stride * size for stride in tensor.strides])


def _read_swapped(tensor: StoredTensor, data: Data, start: int, stop: int) -> NDArray[Any]:
    """Read numbers that are stored big-endian."""
    return _read(tensor, data, start, stop).byteswap()


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many numbers of the storage a tensor covers."""
    span = 1
    for extent, stride in zip(shape, strides, strict=True):
        if not extent:
            return 0
        span += (extent - 1) * stride
    return span


def _rows_are_separate(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the rows of a tensor follow each other in the storage, or are all the same."""
    return not shape or _extent(shape[1:], strides[1:]) <= max(strides[0], 1) or strides[0] == 0
