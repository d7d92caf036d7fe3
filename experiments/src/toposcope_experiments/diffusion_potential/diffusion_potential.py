"""Diffusion potentials: points compared by where random walks over their neighbourhoods lead (Moon et al. 2019)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.extend import Matrix, ToposcopeError, Vector, as_count, as_distances, as_number

MAX_TIME = 100  # longest diffusion time that is looked at
FLOOR = 1e-7
"""Probabilities below this count as this: their logarithms are of nearly impossible walks, and would outweigh all."""


@dataclass(frozen=True, eq=False)
class DiffusionPotential:
    """Walks between points, and their potentials.

    Attributes
    ----------
    operator : ndarray, shape (n, n), float64
        P; row i holds the probabilities of one step of a walk from point i.
    potential : ndarray, shape (n, n), float64
        -log of the rows of P^t, in nats.
    time : int
        t, the number of steps.
    entropies : ndarray, shape (100,), float64
        Von Neumann entropy of P^t in nats, for t from 1, whose knee is the time that is chosen.
    n_floored : int
        Entries of P^t below the floor.
    """

    operator: Matrix
    potential: Matrix
    time: int
    entropies: Vector
    n_floored: int

    def __repr__(self) -> str:
        return f"DiffusionPotential({len(self.operator)} points, time={self.time}, n_floored={self.n_floored})"

    def distances(self) -> Matrix:
        """Return the Euclidean distances between the rows of the potential, shape (n, n): what is embedded."""
        from scipy.spatial.distance import pdist, squareform

        return np.asarray(squareform(pdist(self.potential)))


def diffusion_potential(
    distances: ArrayLike | Any,
    *,
    n_neighbours: int = 5,
    decay: float = 40.0,
    time: int | None = None,
    floor: float = FLOOR,
) -> DiffusionPotential:
    """Return the diffusion operator of points and the potentials of its walks.

    With e_i the distance of point i to its neighbour number `n_neighbours`, the affinity of two points is
    K_ij = (exp(-(d_ij / e_i)^decay) + exp(-(d_ij / e_j)^decay)) / 2, and P is K with its rows divided by their sums.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        n at least 3.
    n_neighbours : int
        Without the point itself; at most n - 1 are used.
    decay : float
        Above 0.
    time : int, optional
        Steps of the walks; by default the knee of the von Neumann entropy.
    floor : float
        Above 0. See `FLOOR`.

    Raises
    ------
    ToposcopeError
        If an argument is out of range.

    Notes
    -----
    O(n^3) time. Source: Moon et al. 2019, "Visualizing structure and transitions in high-dimensional biological data",
    Nature Biotechnology 37, 1482, with the defaults of its authors and the logarithmic potential. The knee is that of
    two straight lines. Where as many duplicates as neighbours lie on a point, e is 0, and only they are near it.
    """
    matrix = as_distances(distances, "distances")
    n = len(matrix)
    if n < 3:
        raise ToposcopeError(f"distances: expected those of at least 3 points, got {n}")
    k, power = as_count(n_neighbours, "n_neighbours", 1), as_number(decay, "decay", 0)
    low = as_number(floor, "floor", 0)
    if not 0 < power < float("inf") or not 0 < low < 1:
        raise ToposcopeError(
            f"decay, floor: expected a finite decay above 0 and a floor in (0, 1), got {decay}, {floor}"
        )
    affinity = _affinity(matrix, min(k, n - 1), power)
    degrees = affinity.sum(axis=1)
    operator = affinity / degrees[:, None]
    entropies = _entropies(affinity / np.sqrt(np.outer(degrees, degrees)))
    steps = _knee(entropies) if time is None else as_count(time, "time", 1)
    walked = np.linalg.matrix_power(operator, steps)
    return DiffusionPotential(
        operator, -np.log(np.maximum(walked, low)), steps, entropies, int(np.count_nonzero(walked < low))
    )


def _affinity(distances: Matrix, k: int, decay: float) -> Matrix:
    """Return the affinities of points, k at most n - 1."""
    widths = np.sort(distances, axis=1)[:, k, None]  # the first is the point itself
    # A width of 0 leaves the ratio 0 for the point and its duplicates, and infinite for the others.
    with np.errstate(divide="ignore", over="ignore"):
        ratios = np.divide(distances, widths, out=np.where(distances > 0, np.inf, 0.0), where=widths > 0)
        one_sided = np.exp(-(ratios**decay))
    return np.asarray((one_sided + one_sided.T) / 2)


def _entropies(conjugate: Matrix) -> Vector:
    """Return the von Neumann entropy of the powers of a symmetric matrix of the operator's eigenvalues."""
    sizes = np.abs(np.linalg.eigvalsh(conjugate))
    powers = (sizes / sizes.max()) ** np.arange(1, MAX_TIME + 1)[:, None]
    shares = powers / powers.sum(axis=1, keepdims=True)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logs).sum(axis=1))


def _knee(values: Vector) -> int:
    """Return the place, from 1, where two straight lines fit best: one up to it, one from it on, by least squares."""
    before, after = _line_errors(values), _line_errors(values[::-1])[::-1]
    return int(np.argmin((before + after)[1:-1])) + 2


def _line_errors(values: Vector) -> Vector:
    """Return the sum of squared residuals of the line through the first 1, 2, ... of some values."""
    counts = np.arange(1.0, len(values) + 1)
    x, y = counts, values - values[0]  # less cancels
    sxx = np.cumsum(x * x) - np.cumsum(x) ** 2 / counts
    sxy = np.cumsum(x * y) - np.cumsum(x) * np.cumsum(y) / counts
    syy = np.cumsum(y * y) - np.cumsum(y) ** 2 / counts
    explained = np.divide(sxy**2, sxx, out=np.zeros_like(sxx), where=sxx > 0)
    return np.asarray(np.maximum(syy - explained, 0))
