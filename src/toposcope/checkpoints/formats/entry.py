"""A stored tensor: its name, shape and dtype, and how its bytes are read."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from toposcope.checkpoints.sources import Bytes, StoredFile
from toposcope.errors import ToposcopeError

BLOCK_BYTES = 1 << 24
"""Bytes of a tensor in memory at a time where it is read block by block."""
NUMPY_DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}


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
        ``read(start, stop)`` returns these rows (slices of the first axis) of the tensor, on the CPU, as stored.
    sequential_rows : bool
        Whether rows can be read without the bytes of all others; not those of a transposed matrix.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int, int], Tensor]
    sequential_rows: bool = True

    def whole(self) -> Tensor:
        """Read the tensor."""
        return self.read(0, self.shape[0] if self.shape else 1)

    @property
    def n_bytes(self) -> int:
        """Size of the stored data; 0 if torch does not know its dtype."""
        return math.prod(self.shape) * (itemsize(self.dtype) if hasattr(torch, self.dtype) else 0)

    @property
    def is_float(self) -> bool:
        """Whether its numbers are floating-point, of a byte or more each."""
        return _is_float(self.dtype)

    def content_hash(self) -> str:
        """Return the SHA-256 of dtype, shape and bytes, a few rows in memory at a time."""
        digest = self.new_digest()
        for rows in self.blocks():
            digest.update(flattened(rows).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def new_digest(self) -> "hashlib._Hash":
        """Return a SHA-256 that becomes the content hash once it is updated with the bytes of all rows."""
        return hashlib.sha256(f"{self.dtype}{list(self.shape)}".encode())

    def blocks(self) -> Iterator[Tensor]:
        """Read the tensor in blocks of rows of about `BLOCK_BYTES` bytes."""
        if 0 in self.shape:
            return
        read = self.read if self.sequential_rows else partial(_rows, self.whole())
        count = self.shape[0] if self.shape else 1
        width = math.prod(self.shape[1:]) * itemsize(self.dtype)
        step = max(1, BLOCK_BYTES // max(1, width))
        for start in range(0, count, step):
            yield read(start, min(start + step, count))


@cache
def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and not dtype.startswith("float4")


def flattened(tensor: Tensor) -> Tensor:
    """Return all numbers in one dimension; a single number may have come with a stride of its own."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor[start:stop]


def contiguous(name: str, shape: tuple[int, ...], dtype: str, file: StoredFile, offset: int) -> Entry:
    """Return a tensor that is stored row by row in a file, from `offset` on."""
    return Entry(name, shape, dtype, partial(_read, shape, dtype, file, offset))


def _read(shape: tuple[int, ...], dtype: str, file: StoredFile, offset: int, start: int, stop: int) -> Tensor:
    width = math.prod(shape[1:]) * itemsize(dtype)
    stored = file.read(offset + start * width, offset + stop * width)
    return as_tensor(stored, dtype, (stop - start, *shape[1:]) if shape else ())


@cache
def itemsize(dtype: str) -> int:
    """Return the bytes of one number.

    Raises
    ------
    ToposcopeError
        For a dtype that torch does not have.
    """
    known = getattr(torch, dtype, None)
    if not isinstance(known, torch.dtype):
        raise ToposcopeError(f"this version of torch does not know the dtype {dtype[:40]!a}")
    return known.itemsize


def as_tensor(stored: Bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return bytes as a tensor, without a copy if they are aligned."""
    if not stored.size:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    if (known_to_numpy := NUMPY_DTYPES.get(dtype)) is not None:
        # NumPy's views are faster than torch's, which matters for small tensors.
        numbers = stored.view(known_to_numpy).reshape(shape)
        return torch.from_numpy(numbers if numbers.flags.aligned else numbers.copy())
    known = getattr(torch, dtype)
    if stored.__array_interface__["data"][0] % known.itemsize:
        stored = np.array(stored)
    return torch.from_numpy(stored).view(known).view(shape)
