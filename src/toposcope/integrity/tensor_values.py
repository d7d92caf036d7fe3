"""What a tensor's values show as they are read: the largest, lines of zeros and copies, how many levels there are."""

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

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


N_DIRECTIONS = 5  # random ones, in all of which two rows lie next to each other
MAX_SAME = 1e-6  # distance in each direction of rows that are the same, relative to their size
MAX_NEARLY = 0.02  # of rows that are nearly so: of unlike rows, 5 of a million pairs of a million
MIN_WIDTH = 4  # values of a row; shorter ones may be equal by chance
N_LINES, LINE_LENGTH, MAX_SAMPLE = 8, 256, 1024  # rows and columns in which equal values are counted, and values
MIN_SAME = 6  # equal values: of float32, 0.05 in all
N_DIGITS = 64
MAX_INNER = 0.1  # share of the pairs that lie between the extremes, of signs; and of zeros that count as a value
MAX_LEVELS, MAX_NARROW_LEVELS = 4096, 64  # that are few; of 16 bits bfloat16 itself leaves about 600


class Lines(msgspec.Struct, frozen=True):
    """What the rows and columns of a matrix show; of more than two dimensions, all but the first make a row."""

    zeros: tuple[int, int] = (0, 0)  # how many rows, and columns, are all zero
    copies: tuple[int, int] = (0, 0)  # how many rows are the same as another, and nearly; zero ones too
    levels: int = 0  # about how many different values a row or a column has, 2 of signs; 0 for many, -1 unclear


NONE = Lines()


class LinesFound:
    """Looks at the lines of matrices of one shape that are read a few whole rows at a time."""

    def __init__(self, shape: tuple[int, ...], n_tensors: int) -> None:
        self._width = math.prod(shape[1:]) if len(shape) > 1 else 0
        self._n_rows = np.zeros(n_tensors, np.int64)
        self._places: list[NDArray[Any]] = []
        self._columns = np.ones((n_tensors, self._width), np.bool_)
        self._levels = Levels(shape[0], self._width) if self._width >= MIN_WIDTH and shape[0] > 0 else None

    def add(self, values: NDArray[Any], *, is_narrow: bool) -> None:
        """Add the next rows of each, flattened, shape (n, k)."""
        if self._levels is None:
            return
        values = values.reshape(len(values), -1, self._width)
        self._n_rows += np.count_nonzero(~values.any(axis=2), axis=1)
        self._columns &= ~values.any(axis=1)
        self._places.append(values @ _directions(self._width).astype(values.dtype, copy=False))
        self._levels.add(values, is_narrow=is_narrow)

    def result(self) -> list[Lines]:
        """Return what was found in each."""
        if self._levels is None or not self._places:
            return [NONE] * len(self._columns)
        zeros = zip(self._n_rows.tolist(), self._columns.sum(axis=1).tolist(), strict=True)
        each = zip(zeros, _copies(np.concatenate(self._places, axis=1)), self._levels.result(), strict=True)
        found = [Lines(*lines) for lines in each]
        return [NONE if lines == NONE else lines for lines in found]


@lru_cache(maxsize=8)
def _directions(width: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((width, N_DIRECTIONS)).astype(np.float32)


def _copies(places: NDArray[Any]) -> list[tuple[int, int]]:
    """Count the rows of each matrix that are the same as another, and nearly, by where they lie in some directions."""
    ordered = np.take_along_axis(places, np.argsort(places[..., :1], axis=1), axis=1)
    with np.errstate(all="ignore"):  # of values that are not finite
        apart, size = np.abs(np.diff(ordered, axis=1)).max(axis=-1), np.abs(ordered[:, 1:]).max(axis=-1)
    same, nearly = (
        ((apart <= share * size) & (size < np.inf)).sum(axis=1).tolist() for share in (MAX_SAME, MAX_NEARLY)
    )
    return list(zip(same, nearly, strict=True))


class Levels:
    """Counts equal values in some rows and columns of matrices of one shape, a few whole rows at a time.

    Of n values that are drawn from L levels about n (n - 1) / 2L pairs are equal, whatever the code: by tensor, row,
    column or group, with or without a zero point, on an even or an uneven grid. Values of full precision lie 64 times
    more often within 64 of their last digits of each other than they are equal; of a grid none does.
    """

    def __init__(self, n_rows: int, width: int) -> None:
        self._lines = _spread_out(n_rows, max(N_LINES, MAX_SAMPLE // width))
        self._across = _spread_out(n_rows, LINE_LENGTH)
        self._down = _spread_out(width, max(N_LINES, MAX_SAMPLE // n_rows))
        self._samples: tuple[list[NDArray[Any]], list[NDArray[Any]]] = [], []
        self._seen, self._is_narrow = 0, False

    def add(self, values: NDArray[Any], *, is_narrow: bool) -> None:
        """Add the next rows of each, shape (n, rows, width)."""
        end, self._is_narrow = self._seen + values.shape[1], is_narrow
        lines, across = (at[(at >= self._seen) & (at < end)] - self._seen for at in (self._lines, self._across))
        self._samples[0].append(values[:, lines, :LINE_LENGTH])
        self._samples[1].append(values[:, across][:, :, self._down].swapaxes(1, 2))
        self._seen = end

    def result(self) -> list[int]:
        """Return about how many different values each matrix has, by rows or, where rows differ, by columns."""
        rows, columns = np.concatenate(self._samples[0], axis=1), np.concatenate(self._samples[1], axis=2)
        each = zip(self._counted(rows), self._counted(columns, different=True), strict=True)
        return [across or down for across, down in each]

    def _counted(self, lines: NDArray[Any], *, different: bool = False) -> list[int]:
        ordered = np.sort(lines, axis=-1)
        equal = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != 0)  # zeros are what pruning leaves
        some = equal.sum(axis=(1, 2)) >= MIN_SAME
        return [
            self._levels_of(np.sort(np.unique(each, axis=1), axis=-1) if different else np.sort(each, axis=-1))
            if may_be_few
            else 0
            for each, may_be_few in zip(lines, some, strict=True)
        ]

    def _levels_of(self, ordered: NDArray[Any]) -> int:
        lines = [line[line != 0] for line in ordered]
        inner = [line[(line > line[0]) & (line < line[-1])] for line in lines if len(line)]  # clipping leaves extremes
        n_all, n_pairs = (sum(math.comb(len(line), 2) for line in some) for some in (lines, inner))
        if n_pairs < MAX_INNER * n_all:  # of signs there are two, or three with zero
            return 2 + int(np.mean(ordered == 0) > MAX_INNER)
        counts = np.concatenate([np.unique(line, return_counts=True)[1] for line in inner])
        levels = math.ceil(n_pairs / max(1, int(np.sum(counts * (counts - 1) // 2))))
        with np.errstate(all="ignore"):  # of values that are not finite
            gaps = np.concatenate([np.diff(line) / np.spacing(np.abs(line[1:])) for line in inner])
        n_same, n_close = np.count_nonzero(gaps == 0), np.count_nonzero((gaps > 0) & (gaps <= N_DIGITS))
        if n_same < MIN_SAME or levels > (MAX_NARROW_LEVELS if self._is_narrow else MAX_LEVELS):
            return 0
        return levels if n_same > n_close else -1


def _spread_out(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of `count` places, evenly spread."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
