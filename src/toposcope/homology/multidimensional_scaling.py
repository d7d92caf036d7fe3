"""Points known by their distances alone: in few dimensions, and as a path with its components and angles."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.point_cloud import as_distances
from toposcope.typing import Matrix, Vector

RELATIVE_ZERO = 1e-7
"""Of two steps in a row, one below this share of the other has no direction: rounding of the distances decides it."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Points in few dimensions.

    Attributes
    ----------
    points : ndarray, shape (n, d), float64
        Centred, along their principal axes, those of the largest variance first; of the two directions of an axis, the
        one in which the point farthest from the origin is positive.
    stress : float
        Kruskal's stress-1: sqrt(sum (e - d)^2 / sum d^2) over all pairs, d the given distances and e those of the
        points. 0 if they are equal.
    """

    points: Matrix
    stress: float

    def __repr__(self) -> str:
        n, d = self.points.shape
        return f"Scaling({n} points in {d} dimensions, stress={self.stress:.3g})"


def classical_scaling(distances: ArrayLike | Any, n_dimensions: int = 2) -> Scaling:
    """Return the principal components of points, from their distances alone.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        Symmetric, at least 0, zeros on the diagonal.
    n_dimensions : int
        At least 1; coordinates beyond n - 1 are 0.

    Returns
    -------
    Scaling
        Exact if the distances are Euclidean ones of at most this dimension.

    Raises
    ------
    ToposcopeError
        If `distances` are not as described.

    Notes
    -----
    The doubly centred matrix -J D^2 J / 2 of Euclidean distances is that of the inner products of the centred points.
    O(n^3) time. Source: Torgerson 1952; Gower 1966.

    Examples
    --------
    >>> import numpy as np
    >>> square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> distances = np.linalg.norm(square[:, None] - square, axis=2)
    >>> scaling = classical_scaling(distances)
    >>> bool(np.allclose(np.linalg.norm(scaling.points[:, None] - scaling.points, axis=2), distances))
    True
    """
    matrix, d = as_distances(distances, "distances"), as_count(n_dimensions, "n_dimensions", 1)
    unit = float(matrix.max()) or 1.0
    values, vectors = np.linalg.eigh(inner_products(matrix / unit))
    points = np.zeros((len(matrix), d))
    axes = np.argsort(-values, kind="stable")[:d]
    points[:, : len(axes)] = vectors[:, axes] * np.sqrt(np.maximum(values[axes], 0)) * unit
    points = _directed(points)
    return Scaling(points, _stress(pairwise_distances(points), matrix))


def inner_products(distances: Matrix) -> Matrix:
    """Return the inner products of the centred points with these Euclidean distances, shape (n, n)."""
    squares = distances**2
    means = squares.mean(axis=0)
    return np.asarray((means[:, None] + means - squares - means.mean()) / 2)


def pairwise_distances(points: Matrix) -> Matrix:
    """Return the Euclidean distances of points, shape (n, n)."""
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(points)))


def _directed(points: Matrix) -> Matrix:
    """Return points with every axis in the direction of its farthest point."""
    far = points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])]
    return points * np.where(far < 0, -1.0, 1.0)


def _stress(reached: Matrix, wanted: Matrix) -> float:
    largest = float(wanted.max())
    if not largest:
        return 0.0
    return float(np.linalg.norm((reached - wanted) / largest) / np.linalg.norm(wanted / largest))


def principal_shares(distances: ArrayLike | Any) -> Vector:
    """Return the share of the variance of points along each of their principal components, descending.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        Euclidean, between the points.

    Returns
    -------
    ndarray, shape (n - 1,)
        Their sum is 1.

    Raises
    ------
    ToposcopeError
        If `distances` are not distances, or all are 0.
    """
    matrix = as_distances(distances, "distances")
    if not matrix.any():
        raise ToposcopeError(f"distances: all {len(matrix)} points are equal; they have no principal components")
    return _shares(inner_products(matrix / matrix.max()))


def random_walk_shares(n: int) -> Vector:
    """Return the shares of the principal components of a random walk of equal steps, in infinitely many dimensions.

    Parameters
    ----------
    n : int
        Positions, at least 2: the walk seen after each of n steps.

    Returns
    -------
    ndarray, shape (n - 1,)
        Descending: proportional to 1 / (4 sin^2(pi k / 2n)), for k from 1.

    Notes
    -----
    In d dimensions the shares scatter about these by about (2 / d)^(1/2) of themselves. Source: Antognini &
    Sohl-Dickstein 2018, arXiv:1806.08805, section 3.

    Examples
    --------
    >>> random_walk_shares(200)[:3].round(7)
    array([0.6079548, 0.1519981, 0.0675616])
    """
    size = as_count(n, "n", 2)
    variances = 1 / (4 * np.sin(np.pi * np.arange(1, size) / (2 * size)) ** 2)
    return np.asarray(variances / variances.sum())


def random_walk_shares_of(lengths: ArrayLike | Any) -> Vector:
    """Return the same of a random walk whose steps have given lengths and independent directions.

    Parameters
    ----------
    lengths : array-like, shape (n - 1,)
        Of the steps between n positions; not all 0.

    Returns
    -------
    ndarray, shape (n - 1,)

    Raises
    ------
    ToposcopeError
        If there is no step of positive length.

    Notes
    -----
    Squared distances between positions are expected to be the sums of the squared lengths between them; in many
    dimensions they are. O(n^3) time.
    """
    squares = np.asarray(lengths, dtype=np.float64) ** 2
    if squares.ndim != 1 or not squares.any():
        raise ToposcopeError("lengths: expected those of at least one step, not all 0")
    times = np.concatenate([[0.0], np.cumsum(squares / squares.sum())])
    return _shares(inner_products(np.sqrt(np.abs(times[:, None] - times))))


def step_cosines(distances: ArrayLike | Any) -> Vector:
    """Return the cosine of the angle between every two steps in a row: 1 straight on, 0 at right angles, -1 back.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        Euclidean, between positions in their order; n at least 3.

    Returns
    -------
    ndarray, shape (n - 2,)
        NaN where one of the steps is shorter than 1e-7 of the other.
    """
    matrix = as_distances(distances, "distances")
    steps, skips = np.diagonal(matrix, 1), np.diagonal(matrix, 2)
    a, b = steps[:-1], steps[1:]
    # Factored, nothing cancels but what is small next to both steps.
    defined = np.minimum(a, b) > RELATIVE_ZERO * np.maximum(a, b)
    safe_a, safe_b, safe_skip = (np.where(defined, values, 1.0) for values in (a, b, skips))
    difference = safe_a - safe_b
    cosines = ((safe_skip - difference) * (safe_skip + difference)) / (2 * safe_a * safe_b) - 1
    return np.where(defined, np.clip(cosines, -1, 1), np.nan)


def _shares(products: Matrix) -> Vector:
    variances = np.maximum(np.linalg.eigvalsh(products)[:0:-1], 0)
    return np.asarray(variances / variances.sum())
