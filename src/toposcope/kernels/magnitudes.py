"""Floating-point magnitudes as integers: the bits of |w|, read in place, order as |w| does.

IEEE 754 orders non-negative numbers as their bit patterns, so comparing `bits & mask` compares magnitudes, exactly, in
every width and with nothing converted. Infinities and NaN are the largest keys of all: a maximum shows them for free.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from toposcope.typing import Indices, Vector

Keys = NDArray[np.signedinteger[Any]]

EXPONENT_BITS = {"float16": 5, "bfloat16": 8, "float32": 8, "float64": 11}  # width of the exponent of each format read
BFLOAT16 = np.dtype([("bfloat16", "V2")])
"""Of arrays of bfloat16, which NumPy has no type for: it can slice and copy them, and refuses to compute with them."""
SIGNED = {size: np.dtype(f"i{size}") for size in (2, 4, 8)}
MASKS = {dtype: dtype.type(np.iinfo(dtype).max) for dtype in SIGNED.values()}  # all bits but the sign


class Entries(NamedTuple):
    """Where the entries of a matrix lie: the key of entry (i, j) is ``buffer[starts[i] + j * step] & mask``."""

    buffer: Keys  # a read-only view of the memory the matrix lies in
    starts: Indices  # shape (m,)
    n: int
    step: int  # 1 where the entries of a row are neighbours
    mask: Any  # all bits but the sign
    contiguous: bool  # whether all entries follow each other in memory without a gap


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of `BFLOAT16` as float32, which is exact, and any other as it is."""
    if values.dtype != BFLOAT16:
        return values
    wide: NDArray[np.float32] = (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def largest_magnitude(values: NDArray[Any]) -> float:
    """Return max|w| of an array of one of the four formats; infinite or NaN if an entry is."""
    signed = SIGNED[values.dtype.itemsize]
    key = (values.view(signed) & MASKS[signed]).max()
    return float(widened(np.array(key).view(values.dtype)))


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """The magnitudes of an m x n matrix as integer keys, wherever in memory its entries lie."""

    entries: Entries
    format: str  # ``float16``, ``bfloat16``, ``float32`` or ``float64``

    @classmethod
    def of(cls, bits: NDArray[Any], format: str, rows: Indices | None = None) -> "Magnitudes":
        """View a matrix by its bits, shape (m, n), any strides; `rows` selects rows without copying them.

        Rows and columns are exchanged where that makes the entries of a row neighbours.
        """
        if rows is None and bits.flags.c_contiguous:
            m, n = bits.shape
            return cls._at(bits.view(SIGNED[bits.itemsize]).reshape(-1), np.arange(0, m * n, n), n, 1, True, format)
        # The order of rows and of columns does not matter: all can be read forwards.
        if bits.strides[1] < 0:
            bits = bits[:, ::-1]
        if bits.strides[0] < 0:
            bits, rows = bits[::-1], None if rows is None else bits.shape[0] - 1 - rows
        across, down = (stride // bits.itemsize for stride in (bits.strides[1], bits.strides[0]))
        if rows is None and down < across:
            bits, across, down = bits.T, down, across
        m, n = bits.shape
        step = max(across, 1) if n > 1 else 1
        contiguous = rows is None and step == 1 and down == n
        signed = bits.view(SIGNED[bits.itemsize])
        buffer = (
            signed.reshape(-1)
            if contiguous
            else as_strided(signed, ((m - 1) * down + (n - 1) * across + 1,), (bits.itemsize,))
        )
        return cls._at(buffer, (np.arange(m) if rows is None else rows) * down, n, step, contiguous, format)

    @classmethod
    def _at(cls, buffer: Keys, starts: Indices, n: int, step: int, contiguous: bool, format: str) -> "Magnitudes":
        buffer.flags.writeable = False
        return cls(Entries(buffer, starts, n, step, MASKS[buffer.dtype], contiguous), format)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns as they are read; either may be the other of the matrix."""
        return len(self.entries.starts), self.entries.n

    @property
    def infinity(self) -> int:
        """Key of infinity; NaN lies above it."""
        bits = 8 * self.entries.buffer.itemsize - 1
        return (1 << bits) - (1 << (bits - EXPONENT_BITS[self.format]))

    def n_not_finite(self) -> int:
        """Count infinities and NaN."""
        buffer, starts, n, step, mask, _ = self.entries
        rows = (buffer[s : s + (n - 1) * step + 1 : step] for s in starts)
        return sum(int(np.count_nonzero((row & mask) >= self.infinity)) for row in rows)

    def values(self, keys: Keys) -> Vector:
        """Return the magnitudes that keys stand for, exact."""
        if self.format == "bfloat16":
            return (keys.astype(np.int32) << np.int32(16)).view(np.float32).astype(np.float64)
        return keys.view(self.format).astype(np.float64)
