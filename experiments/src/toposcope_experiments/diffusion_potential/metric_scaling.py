"""Metric scaling: points of a plane whose distances come near given ones, by scikit-learn."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.extend import Matrix, as_count, as_distances
from toposcope.homology import classical_scaling

MAX_ITERATIONS = 3000
TOLERANCE = 1e-12  # of the squared stress in an iteration, where the sum of the squared distances is 1


@dataclass(frozen=True, eq=False)
class MetricScaling:
    """Points in few dimensions.

    Attributes
    ----------
    points : ndarray, shape (n, d), float64
        Centred, along their principal axes, each in the direction in which the point farthest from the origin is
        positive.
    stress : float
        Kruskal's stress-1: sqrt(sum (e - d)^2 / sum d^2) over all pairs, d the given distances and e those of the
        points. 0 if they are equal.
    converged : bool
        Whether the last iteration lowered the squared stress by less than 1e-12.
    """

    points: Matrix
    stress: float
    converged: bool

    def __repr__(self) -> str:
        n, d = self.points.shape
        return f"MetricScaling({n} points in {d} dimensions, stress={self.stress:.3g})"


def metric_scaling(
    distances: ArrayLike | Any, n_dimensions: int = 2, *, max_iterations: int = MAX_ITERATIONS
) -> MetricScaling:
    """Return points whose distances come near the given ones, in the sum of squared differences.

    Parameters
    ----------
    distances : array-like, shape (n, n)
        Symmetric, at least 0, zeros on the diagonal; they need not be Euclidean.
    n_dimensions : int
    max_iterations : int

    Returns
    -------
    MetricScaling
        A local minimum of the stress, found from the classical scaling; there may be lower ones.

    Raises
    ------
    ToposcopeError
        If an argument is not as described.

    Notes
    -----
    By SMACOF (de Leeuw 1977; Borg & Groenen 2005, section 8.6), with equal weights, as scikit-learn has it. On nearly
    straight paths it creeps: after 3,000 iterations the stress may still be some percent above the minimum. O(n^2 d)
    time an iteration.
    """
    from scipy.spatial.distance import pdist, squareform
    from sklearn.manifold import smacof

    matrix = as_distances(distances, "distances")
    start = classical_scaling(matrix, n_dimensions)
    limit = as_count(max_iterations, "max_iterations", 1)
    unit = float(matrix.max())
    if not unit:
        return MetricScaling(start.points, 0.0, converged=True)
    options = {"init": start.points / unit, "n_init": 1, "max_iter": limit, "eps": TOLERANCE, "return_n_iter": True}
    points, _, n_iterations = smacof(matrix / unit, n_components=start.points.shape[1], **options)
    points = classical_scaling(squareform(pdist(points)), n_dimensions).points  # along their principal axes
    wanted = squareform(matrix / unit, checks=False)
    stress = float(np.linalg.norm(pdist(points) - wanted) / np.linalg.norm(wanted))
    return MetricScaling(points * unit, stress, converged=n_iterations < limit)
