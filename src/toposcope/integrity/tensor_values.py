"""What a tensor's values show as they are read: the largest, lines of zeros and copies, how even their spread is."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toposcope.integrity import tuning
from toposcope.kernels.magnitudes import MASKS, SIGNED, widened
from toposcope.typing import Matrix

N_LARGEST = 8  # values of a tensor that are kept
CHUNK = 64  # values of which first only the largest is found; those of the chunks with the largest are then looked at
MIN_CHUNKED = 2 * N_LARGEST * CHUNK  # values from which on chunks save time


class LargestValues:
    """The `N_LARGEST` values of largest magnitude of each of several tensors."""

    def __init__(self, n_tensors: int) -> None:
        self._values, self._positions = np.empty((n_tensors, 0)), np.empty((n_tensors, 0), np.int64)

    def add(self, values: NDArray[Any], begin: int) -> None:
        """Add the next values of each, in one of the formats of `toposcope.kernels.magnitudes`, shape (n, k)."""
        signed = SIGNED[values.dtype.itemsize]
        positions = _largest(values.view(signed) & MASKS[signed])
        added = widened(np.take_along_axis(values, positions, axis=1)).astype(np.float64)
        both = np.concatenate([self._values, added], axis=1)
        order = np.argsort(-np.abs(both), kind="stable", axis=1)[:, :N_LARGEST]
        self._values = np.take_along_axis(both, order, axis=1)
        self._positions = np.take_along_axis(
            np.concatenate([self._positions, begin + positions], axis=1), order, axis=1
        )

    def result(self) -> tuple[Matrix, NDArray[np.int64]]:
        """Return values, largest magnitude first, and their positions, at most `N_LARGEST` of each tensor."""
        return self._values, self._positions


def _largest(keys: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    """Return the indices of the `N_LARGEST` largest, along the last axis."""
    *outer, n = keys.shape
    if n <= N_LARGEST:
        return np.broadcast_to(np.arange(n), keys.shape)
    if n < MIN_CHUNKED:
        return np.argpartition(keys, -N_LARGEST)[..., -N_LARGEST:]
    whole = n // CHUNK * CHUNK
    chunks = _largest(keys[..., :whole].reshape(*outer, -1, CHUNK).max(axis=-1))
    inside = (chunks[..., None] * CHUNK + np.arange(CHUNK)).reshape(*outer, -1)
    rest = np.broadcast_to(np.arange(whole, n), (*outer, n - whole))
    positions = np.concatenate([inside, rest], axis=-1)
    found = _largest(np.take_along_axis(keys, positions, axis=-1))
    return np.take_along_axis(positions, found, axis=-1)


MAX_LISTED = 64  # rows, columns or copies that are listed; the rest are counted

_Mask = NDArray[np.bool_]
_Keys = NDArray[np.uint64]


class Lines(msgspec.Struct, frozen=True):
    """Lines of a matrix that stand out; of more than two dimensions, all but the first make a row."""

    zero_rows: tuple[int, ...] = ()  # the first `MAX_LISTED` that are all zero
    zero_columns: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()  # rows that are not zero, each with the first row that is the same
    counts: tuple[int, int, int] = (0, 0, 0)  # how many there are of each of the three
    # whether all values are multiples of a 127th, or a 7th, of the largest of their row, as after int8 or int4
    is_quantised: bool = False


NONE = Lines()


class LinesFound:
    """Finds the lines of matrices of one shape that are read a few whole rows at a time."""

    def __init__(self, shape: tuple[int, ...], n_tensors: int) -> None:
        self._width = math.prod(shape[1:]) if len(shape) > 1 else 0
        self._keys: list[_Keys] = []
        self._rows: list[_Mask] = []
        self._columns: _Mask = np.ones((n_tensors, self._width), np.bool_)
        self._quantised = np.full(n_tensors, self._width >= tuning.MIN_QUANTISED_WIDTH)

    def add(self, numbers: NDArray[Any], values: NDArray[Any]) -> None:
        """Add the next rows of each, flattened: as stored, and as floats, shape (n, k)."""
        if self._width < tuning.MIN_WIDTH:
            return
        numbers, values = (block.reshape(len(block), -1, self._width) for block in (numbers, values))
        self._keys.append(_keys(numbers))
        rows, columns = _zero(values)
        self._rows.append(rows)
        self._columns &= columns
        if self._quantised.any():
            self._quantised &= _quantised(values)

    def result(self) -> list[Lines]:
        """Return what was found in each."""
        if not self._keys:
            return [NONE] * len(self._columns)
        keys, rows = np.concatenate(self._keys, axis=1), np.concatenate(self._rows, axis=1)
        ordered = np.sort(keys, axis=1)
        some = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | rows.any(axis=1) | self._columns.any(axis=1)
        each = zip(some | self._quantised, keys, rows, self._columns, self._quantised.tolist(), strict=True)
        return [_lines(*found) if stands_out else NONE for stands_out, *found in each]


@lru_cache(maxsize=8)
def _factors(width: int) -> _Keys:
    """Return an odd random factor for each column."""
    return np.random.default_rng(0).integers(1 << 63, size=width, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _keys(numbers: NDArray[Any]) -> _Keys:
    """Hash the bits of each row; rows that differ have the same by a chance below 1e-9."""
    bits, factors = numbers.view(f"u{numbers.dtype.itemsize}"), _factors(numbers.shape[-1])
    return np.asarray(np.einsum("mrk,k->mr", bits, factors, dtype=np.uint64, casting="unsafe"))


def _zero(values: NDArray[Any]) -> tuple[_Mask, _Mask]:
    """Return which rows and which columns of each matrix are zero; only those that may be are looked at."""
    rows = (values[..., 0] == 0) & (values[..., -1] == 0)
    if rows.any():
        rows[rows] = ~values[rows].any(axis=-1)
    columns = (values[:, 0] == 0) & (values[:, -1] == 0)
    some = columns.any(axis=1)
    if some.any():
        columns[some] &= ~values[some].any(axis=1)
    return rows, columns


def _quantised(values: NDArray[Any]) -> _Mask:
    """Return which matrices have rows of many different multiples of a 127th, or a 7th, of their largest value."""
    rows = values[:, :: max(1, values.shape[1] // tuning.N_QUANTISED_ROWS)].astype(np.float64)
    top = np.abs(rows).max(axis=-1, keepdims=True)
    found = np.zeros(len(values), np.bool_)
    for levels in (127, 7):
        scaled = levels * np.divide(rows, top, out=np.zeros_like(rows), where=np.isfinite(top) & (top > 0))
        on_level = (np.abs(scaled - np.rint(scaled)) < tuning.MAX_OFF_LEVEL).all(axis=(1, 2))
        found |= on_level & ((np.rint(scaled) % levels != 0).mean(axis=(1, 2)) > 0.5)
    return found


def _lines(keys: _Keys, rows: _Mask, columns: _Mask, is_quantised: bool) -> Lines:
    if rows.all():
        return NONE  # the whole matrix is
    _, first, place, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    copies = np.flatnonzero((counts[place] > 1) & (first[place] != np.arange(len(keys))) & ~rows)
    zero_rows, zero_columns = np.flatnonzero(rows), np.flatnonzero(columns)
    if not (len(copies) or len(zero_rows) or len(zero_columns) or is_quantised):
        return NONE
    pairs = tuple((int(k), int(first[place[k]])) for k in copies[:MAX_LISTED])
    return Lines(
        tuple(zero_rows[:MAX_LISTED].tolist()),
        tuple(zero_columns[:MAX_LISTED].tolist()),
        pairs,
        (len(zero_rows), len(zero_columns), len(copies)),
        is_quantised,
    )


def new_lines(now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """Return what is listed now and was not before."""
    known = set(before)
    return [line for line in now if line not in known]


class Spread(msgspec.Struct, frozen=True):
    """Spread of the values of one tensor."""

    low: float  # smallest and largest value
    high: float
    # how much the mean squares of neighbouring rows (columns) differ, in units of what they would in a matrix of
    # independent values of one kind: about 1 there, and 0 for an orthogonal matrix. NaN if there are too few
    rows: float = math.nan
    columns: float = math.nan
    # of the values within a row, the mean over the rows: 3 for normal values, 1.8 for uniform ones. NaN likewise
    kurtosis: float = math.nan


class SpreadSums:
    """Running sums over a tensor of some shape that is read a few whole rows at a time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._width = math.prod(shape[1:]) if len(shape) >= 2 else 0
        self._low, self._high = math.inf, -math.inf
        self._rows: list[NDArray[np.float64]] = []
        self._columns = np.zeros((2, self._width))

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the next values."""
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        if not self._width:
            return
        squares = np.square(values.reshape(-1, self._width), dtype=np.float64)
        present = squares > 0
        # Exact zeros (a padding row, an identity matrix) are not drawn from the distribution.
        self._rows.append(np.stack([present.sum(1), squares.sum(1), np.square(squares).sum(1)]))
        count, second, _ = self._rows[-1]
        # Each row has the same weight, whatever the scale of its block.
        weight = count / np.where(second > 0, second, 1)
        self._columns += [present.sum(0), weight @ squares]

    def spread(self) -> Spread:
        """Return the spread of the values so far."""
        if not self._width:
            return Spread(self._low, self._high)
        count, second, fourth = np.concatenate(self._rows, axis=1)
        full = count >= tuning.MIN_SPREAD_LINES
        if full.sum() < tuning.MIN_SPREAD_LINES:
            return Spread(self._low, self._high)
        count, mean, fourth = count[full], second[full] / count[full], fourth[full] / count[full]
        kurtosis = float(np.mean(fourth / mean**2))
        column_count, column_second = self._columns[:, self._columns[0] >= tuning.MIN_SPREAD_LINES]
        return Spread(
            self._low,
            self._high,
            _unevenness(mean, float(count.mean()), kurtosis),
            _unevenness(column_second / column_count, float(column_count.mean()), kurtosis)
            if len(column_count) >= tuning.MIN_SPREAD_LINES
            else math.nan,
            kurtosis,
        )


def _unevenness(means: NDArray[np.float64], count: float, kurtosis: float) -> float:
    """Return the deviation among mean squares by neighbours (von Neumann 1941) over that of independent values."""
    middle = (means[1:] + means[:-1]) / 2
    variance = float(np.mean((np.diff(means) / middle) ** 2)) / 2
    expected = max(kurtosis - 1, 0.1) / count
    return math.sqrt(variance / expected)
