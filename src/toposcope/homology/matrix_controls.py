"""What persistence of matrices is compared with: random ones, a plain graph measure, the variance of weights."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_float_matrix
from toposcope.typing import Matrix

BLOCK_ENTRIES = 1 << 20  # of a matrix in float64, at a time, for its clustering coefficient

Ensemble = Literal["gaussian", "uniform", "orthogonal", "sparse", "heavy_tailed"]

ENSEMBLES: tuple[Ensemble, ...] = get_args(Ensemble)

DENSITY = 0.1  # share of the entries of a sparse matrix that are not zero, on average
TAIL_DEGREES = 3.0
"""Degrees of freedom of Student's t: the variance is finite, the fourth moment is not.

With a finite fourth moment the largest singular values are those of a Gaussian matrix of the same variance (Bai & Yin
1988), and single entries do not matter. With 3 degrees, P(|w| > x) falls as x^-3, and the largest of k entries grows as
k^(1/3), so they do. At 2 or less the norm would have no expectation to divide by.
"""


def random_matrix(ensemble: Ensemble, shape: tuple[int, int], seed: int) -> Matrix:
    """Draw one matrix."""
    m, n = (as_count(side, "shape", 1) for side in shape)
    if ensemble not in ENSEMBLES:
        raise ToposcopeError(f"ensemble: expected one of {', '.join(ENSEMBLES)}, got {ensemble!r}")
    rng = np.random.default_rng(seed)
    make: dict[Ensemble, Callable[[], Any]] = {
        "gaussian": lambda: rng.standard_normal((m, n)),
        "uniform": lambda: rng.uniform(-1, 1, (m, n)),
        "orthogonal": lambda: _orthogonal(rng, m, n),
        "sparse": lambda: np.where(rng.random((m, n)) < DENSITY, rng.standard_normal((m, n)), 0.0),
        "heavy_tailed": lambda: rng.standard_t(TAIL_DEGREES, (m, n)),
    }
    W: Matrix = make[ensemble]()
    return W


def _orthogonal(rng: np.random.Generator, m: int, n: int) -> Matrix:
    Q, R = np.linalg.qr(rng.standard_normal((max(m, n), min(m, n))))
    Q *= np.where(np.diagonal(R) < 0, -1.0, 1.0)
    return Q if m >= n else np.ascontiguousarray(Q.T)


def clustering_coefficient(W: ArrayLike | Any, *, name: str = "W") -> float:
    """Return the weighted clustering coefficient of the complete bipartite graph with edge weights |W| / max|W|.

    A path of three edges, i - j - k - l, closes to a cycle of four with the edge (i, l). With the weight of a path the
    product of its edges', the coefficient is the mean of a_il over all such paths, weighted by the path:
    """
    matrix = as_float_matrix(W, name)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    largest = float(max(-matrix.min(), matrix.max()))
    if min(matrix.shape) < 2 or largest == 0:
        return 0.0
    columns = _all_but_largest(_blocks(tall, largest), tall.shape[1])
    product = np.zeros((tall.shape[1], tall.shape[1]))
    turning, paths = 0.0, 0.0
    for A in _blocks(tall, largest):
        product += A.T @ A
        squares = A * A
        # Closed walks i - j - i - l that turn round, of columns j and l apart: no cycles, but in the product too.
        turning += float((squares * _others(squares, *_largest_and_rest(squares, 1))).sum())
        paths += float((A * _others(A, *_largest_and_rest(A, 1)) * _others(A, *columns)).sum())
    np.fill_diagonal(product, 0.0)
    product *= product
    cycles = float(product.sum()) - turning
    # Rounding may leave either a little outside.
    return min(1.0, max(0.0, cycles / paths)) if paths > 0 else 0.0


def weight_variance(matrices: Sequence[ArrayLike | Any], *, names: Sequence[str] | None = None) -> float:
    """Return the variance (population) of ``|w| / max|w|`` over all weights of some matrices; 0 if all are zero.

    Neural persistence follows it, by Girrbach et al. 2023 (arXiv:2307.10865).
    """
    names = names or [f"matrices[{k}]" for k in range(len(matrices))]
    found = [as_float_matrix(W, name) for W, name in zip(matrices, names, strict=True)]
    read = [W.T if W.flags.f_contiguous else W for W in found]
    largest = max((float(max(-W.min(), W.max())) for W in read), default=0.0)
    if largest == 0:
        return 0.0
    count = sum(W.size for W in read)
    mean = sum(float(A.sum()) for W in read for A in _blocks(W, largest)) / count
    return sum(float(np.square(A - mean).sum()) for W in read for A in _blocks(W, largest)) / count


def _blocks(tall: Any, largest: float) -> Iterator[Matrix]:
    """Yield |W| / max|W| in float64, a few rows at a time."""
    step = max(1, BLOCK_ENTRIES // tall.shape[1])
    for start in range(0, len(tall), step):
        yield np.abs(tall[start : start + step].astype(np.float64)) / largest


def _others(A: Matrix, largest: Matrix, rest: Matrix) -> Matrix:
    """Return, for each entry, the sum of the others of its row or column.

    Taken from the whole sum, an entry that outweighs the others would leave rounding only. Here it leaves `rest`, the
    sum of all but the largest, and a smaller one cannot outweigh the largest that comes in its place.
    """
    others: Matrix = np.where(largest == A, rest, rest - A + largest)
    return others


def _largest_and_rest(A: Matrix, axis: int) -> tuple[Matrix, Matrix]:
    """Return the largest entry of each row or column, and the sum of the others."""
    last = np.partition(A, -1, axis=axis)
    first, rest = np.split(last, [-1], axis=axis)
    return rest, first.sum(axis=axis, keepdims=True)


def _all_but_largest(blocks: Iterator[Matrix], n: int) -> tuple[Matrix, Matrix]:
    """Return the same of each column, from blocks of rows."""
    largest, rest = np.zeros((1, n)), np.zeros((1, n))
    for A in blocks:
        high, low = _largest_and_rest(A, 0)
        rest += low + np.minimum(largest, high)
        largest = np.maximum(largest, high)
    return largest, rest
