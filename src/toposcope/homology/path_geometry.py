"""The path of a run through its weights, from the distances between its checkpoints: components, random walks, angles.

Principal components of a path look meaningful even where there is nothing but noise: those of a random walk are
cosines, and the first holds 61% of the variance. What a path shows is to be read beside the walk's shares.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count
from toposcope.homology.multidimensional_scaling import as_distances, inner_products
from toposcope.typing import Matrix, Vector

RELATIVE_ZERO = 1e-7
"""Of two steps in a row, one below this share of the other has no direction: rounding of the distances decides it."""


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
    matrix = as_distances(distances)
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
    matrix = as_distances(distances)
    steps, skips = np.diagonal(matrix, 1), np.diagonal(matrix, 2)
    a, b = steps[:-1], steps[1:]
    # Factored, nothing cancels but what is small beside both steps.
    defined = np.minimum(a, b) > RELATIVE_ZERO * np.maximum(a, b)
    safe_a, safe_b, safe_skip = (np.where(defined, values, 1.0) for values in (a, b, skips))
    difference = safe_a - safe_b
    cosines = ((safe_skip - difference) * (safe_skip + difference)) / (2 * safe_a * safe_b) - 1
    return np.where(defined, np.clip(cosines, -1, 1), np.nan)


def _shares(products: Matrix) -> Vector:
    variances = np.maximum(np.linalg.eigvalsh(products)[:0:-1], 0)
    return np.asarray(variances / variances.sum())
