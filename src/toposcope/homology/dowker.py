"""Loops of a weight matrix: H0 and H1 of the Dowker filtration of |W|, exact, and the null model they are read against.

Definitions, the proof and when to trust it: ``docs/methods/weight-loops.md``.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.homology.arrays import as_count, as_float_matrix, as_scaled_matrix, warn_without_gradient
from toposcope.homology.diagram import Diagram, sorted_pairs
from toposcope.homology.memory import check_fits
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Indices, Matrix, Vector

# Chosen on benchmarks/dowker.py; no result depends on them.
FIRST_SHARE, GROWTH = 1 / 32, 4  # of the entries, which are sorted first, and how many times as many the next
ENTRIES_AT_ONCE = 4096  # between two calls, Ctrl-C is heard
MIN_DRAWS = 5  # the deviation of a score of fewer is infinite, or nearly
MAX_ROUNDS = 60  # of projections, for one random matrix
MAX_MISFIT = 1e-6  # relative, of the norms of rows and columns, at which projections end
MIN_SINGULAR = 1e-7  # of the largest singular value; smaller ones of a product are rounding
SCORED = ("count", "total", "longest")


def dowker(W: ArrayLike | Any, *, name: str = "W") -> list[Diagram]:
    """Return H0 and H1 of the Dowker filtration of a weight matrix.

    Row i and column j are related from the value ``1 - |W_ij| / max|W|`` on. The complex at a value has the rows as
    vertices, and as simplices the sets of rows that are related to one column; that on the columns has the same
    diagrams. Coefficients are in the field of two elements.

    Parameters
    ----------
    W : array-like or torch.Tensor, shape (m, n)
        Any floating-point dtype. It is not transposed: the smaller side has the part of the rows.
    name : str
        How messages call the matrix.

    Returns
    -------
    list of Diagram
        H0, with one essential class, and H1, with none: entries of 0 enter last, at 1, where every loop ends. Values
        are in [0, 1]; bars of length zero are left out. Of a matrix of zeros, or of one row, there are no bars.

    Raises
    ------
    ToposcopeError
        If W is not a finite floating-point matrix, or the vectors of loops would not fit in memory.

    Notes
    -----
    Most time goes into loops that close: of random weights about 1e-12 (mn)^2 s, and 20 mn + (mn)^(4/3) / 2 bytes. See
    `toposcope.kernels.relations`. Source: Dowker 1952; Chowdhury & Memoli 2018.
    """
    warn_without_gradient(W)
    matrix = as_float_matrix(W, name)
    check_fits(dowker_bytes(matrix.size), f"{name}: loops of {matrix.size:,} entries", "measure a part of its rows")
    magnitudes = np.abs(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T, order="C")
    largest = float(magnitudes.max())
    merges, loops = _filtration(magnitudes) if largest else (np.empty((0, 2)), np.empty((0, 2)))
    return [_diagram(0, merges, largest), _diagram(1, loops, largest)]


def dowker_bytes(n_entries: int) -> int:
    """Return about the most bytes that `dowker` takes next to a matrix of random weights."""
    return 20 * n_entries + int(n_entries ** (4 / 3)) // 2


def expected_seconds(n_entries: int) -> float:
    """Return about how long `dowker` of random weights takes on one processor (of 2.5 GHz)."""
    return 1e-7 * n_entries + 1e-12 * n_entries**2


def _diagram(dimension: int, pairs: Matrix, largest: float) -> Diagram:
    """Return the diagram of bars that begin and end at magnitudes, without those of length zero."""
    bars = 1 - pairs / largest if len(pairs) else pairs
    bars = sorted_pairs(bars[bars[:, 1] > bars[:, 0]])
    return Diagram(bars, dimension, essential_births=np.zeros(1 - dimension))


def _filtration(magnitudes: NDArray[Any]) -> tuple[Matrix, Matrix]:
    """Return the magnitudes at which components and loops of a matrix, rows the fewer, begin and end.

    No entry of 0 enters: there the loops that are open end, and so do all components but the oldest.
    """
    from toposcope.kernels.relations import N_LOOPS, N_MERGES, N_OPEN, empty_relation, enter, first_open_row, with_room

    m, n = magnitudes.shape
    relation, row = empty_relation(m, n), 0
    for entries in _descending(magnitudes.reshape(-1)):
        values, place = magnitudes.reshape(-1)[entries].astype(np.float64), 0
        while (place := enter(entries, values, place, relation)) < len(entries):
            relation = with_room(relation)
        if not relation.counters[N_OPEN] and (row := first_open_row(relation, row)) == m:
            break
    is_root = (relation.parent == np.arange(m + n)) & (relation.oldest > 0)
    left = np.sort(relation.oldest[is_root])[:-1]
    merges = relation.merges[: relation.counters[N_MERGES]]
    return np.concatenate([merges, np.column_stack([left, 0 * left])]), relation.loops[: relation.counters[N_LOOPS]]


def _descending(magnitudes: NDArray[Any]) -> Iterator[Indices]:
    """Yield the places of the positive entries, the largest first, some at a time."""
    above, count, size = np.inf, max(ENTRIES_AT_ONCE, int(FIRST_SHARE * magnitudes.size)), magnitudes.size
    while above > 0:
        least = np.partition(magnitudes, size - count)[size - count] if count < size else 0
        chosen = np.flatnonzero((magnitudes >= least) & (magnitudes < above) & (magnitudes > 0))
        chosen = chosen[np.argsort(-magnitudes[chosen], kind="stable")]
        for start in range(0, len(chosen), ENTRIES_AT_ONCE):
            yield chosen[start : start + ENTRIES_AT_ONCE]
        above, count = least, GROWTH * count


def loop_values(diagram: Diagram) -> dict[str, float]:
    """Return number, total length and greatest length of the bars."""
    lengths = diagram.lifetimes
    return dict(zip(SCORED, (float(len(lengths)), float(lengths.sum()), float(lengths.max(initial=0))), strict=True))


@dataclass(frozen=True, eq=False)
class DowkerNull:
    """Loops of random matrices with the singular values of a matrix, and its norms of rows and columns.

    Attributes
    ----------
    draws : dict of ndarray, shape (n,), float64
        ``count``, ``total`` and ``longest`` of the bars of H1 of each.
    misfit : float
        The largest difference of their norms of rows and columns from those of the matrix, relative to its norm; their
        singular values are equal up to rounding.
    """

    draws: Mapping[str, Vector]
    misfit: float

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {values.mean():.4g}" for name, values in self.draws.items())
        return f"DowkerNull({len(self.draws['count'])} draws: {means}; misfit {self.misfit:.2g})"

    def scores(self, loops: Diagram) -> dict[str, float]:
        """Return the z of count, total and longest bar of a diagram, by name.

        It is (x - mean) / deviation, times ((n - 3) n / ((n - 1) (n + 1)))^(1/2): then that of one more matrix like the
        n drawn has deviation 1, whatever n, if the values are normal. It is 0 where all draws have the value x, and
        absent where all have one other.
        """
        scores = {}
        for name, x in loop_values(loops).items():
            values = self.draws[name]
            n, deviation = len(values), float(values.std(ddof=1)) if np.ptp(values) else 0.0
            if deviation or x == values[0]:
                unit = np.sqrt((n - 3) * n / ((n - 1) * (n + 1))) / deviation if deviation else 0.0
                scores[name] = float((x - values.mean()) * unit)
        return scores


def dowker_null(W: ArrayLike | Any, *, draws: int = 20, seed: int = SEED, name: str = "W") -> DowkerNull:
    """Return what the loops of a weight matrix are read against: those of random ones of its spectrum and norms.

    Parameters
    ----------
    W : array-like or torch.Tensor, shape (m, n)
    draws : int
        How many matrices, at least 5. Each takes what `dowker` takes, and 5 to 60 eigendecompositions of the smaller
        side's products.
    seed : int
    name : str
        How messages call the matrix.

    Raises
    ------
    ToposcopeError
        As of `dowker`.

    Notes
    -----
    Each is a Gaussian matrix that is projected in turn onto the matrices of these singular values and those of these
    norms, up to 60 times, or until the norms differ by 1e-6. Its entries are rounded to as many significant bits as
    those of W have, so that it has ties as a matrix of 16-bit floats has them. Where zeros of W are in places of their
    own, or its magnitudes on a grid, as in pruned or quantised weights, no draw is like it.
    """
    draws, seed = as_count(draws, "draws", MIN_DRAWS), as_count(seed, "seed", 0)
    matrix, _ = as_scaled_matrix(W, name)
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    values, misfits = [], []
    with _one_thread():
        singular = np.linalg.svd(matrix, compute_uv=False)[::-1].astype(np.float64)
        rows, columns = (np.sort(np.linalg.norm(matrix, axis=axis)) for axis in (1, 0))
        for draw in range(draws):
            X, misfit = _matched(singular, rows, columns, derive_seed(seed, "dowker", draw))
            values.append(loop_values(dowker(_rounded(X, significant_bits(matrix)), name=name)[1]))
            misfits.append(misfit)
    return DowkerNull({key: np.array([value[key] for value in values]) for key in SCORED}, max(misfits))


def _one_thread() -> AbstractContextManager[Any]:
    """Keep linear algebra to one thread, on whose number rounding depends; this room alone may be without the means."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def _matched(singular: Vector, rows: Vector, columns: Vector, seed: int) -> tuple[Matrix, float]:
    """Draw a matrix with given singular values, ascending, and nearly with given norms; return the misfit of these."""
    from scipy.linalg import eigh

    X, misfit, norm = np.random.default_rng(seed).standard_normal((len(rows), len(columns))), np.inf, singular[-1]
    if norm == 0:
        return 0 * X, 0.0
    for _ in range(MAX_ROUNDS):
        if np.isfinite(misfit):
            X *= _ratio(rows, np.linalg.norm(X, axis=1))[:, None]
            X *= _ratio(columns, np.linalg.norm(X, axis=0))
        squares, U = eigh(X @ X.T, check_finite=False)
        own = np.sqrt(np.maximum(squares, 0))
        X = (U * np.where(own > MIN_SINGULAR * own[-1], _ratio(singular, own), 0)) @ U.T @ X
        differences = (
            np.linalg.norm(np.linalg.norm(X, axis=axis) - of_matrix) for axis, of_matrix in ((1, rows), (0, columns))
        )
        misfit = float(max(differences)) / float(np.linalg.norm(singular))
        if misfit < MAX_MISFIT:
            break
    return X, misfit


def _ratio(wanted: Vector, own: Vector) -> Vector:
    return np.divide(wanted, own, out=np.zeros_like(wanted), where=own > 0)


def significant_bits(matrix: Matrix) -> int:
    """Return how many significant bits the entries of a matrix have at most: 8 if they were bfloat16, 53 in float64."""
    mantissas = np.ldexp(np.frexp(matrix)[0], 53).astype(np.int64)
    word = int(np.bitwise_or.reduce(mantissas, axis=None))
    return 54 - (word & -word).bit_length() if word else 53


def _rounded(X: Matrix, bits: int) -> Matrix:
    """Round to so many significant bits."""
    mantissas, exponents = np.frexp(X)
    rounded: Matrix = np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits)
    return rounded
