"""Distances between two diagrams, matching to the diagonal included, ground metric l-infinity (METHODS 4)."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.diagram import Diagram


def wasserstein(first: Diagram, second: Diagram, order: Literal[1, 2] = 2) -> float:
    """Return the exact Wasserstein distance of two diagrams of one dimension.

    Parameters
    ----------
    first, second : Diagram
        Finite points only; essential and truncated classes are not matched. Either may be empty: the distance is then
        that of the other to the diagonal.
    order : 1 or 2

    Notes
    -----
    The assignment problem on k x l points (a pair is matched only where that beats sending both to the diagonal),
    solved exactly; O(kl) memory, O(kl min(k, l)) time. Hera's auction is asymptotically faster but approximate, and
    does not return at all when the tolerance asked of it is near rounding error.
    """
    from scipy.optimize import linear_sum_assignment

    if order not in (1, 2):
        raise ToposcopeError(f"order: expected 1 or 2, got {order!r}")
    _check_dimensions(first, second)
    a, b = _positive(first), _positive(second)
    cost = np.maximum(np.abs(a[:, None, 0] - b[None, :, 0]), np.abs(a[:, None, 1] - b[None, :, 1])) ** order
    a_alone, b_alone = _to_diagonal(a) ** order, _to_diagonal(b) ** order
    gain = np.minimum(cost - a_alone[:, None] - b_alone[None, :], 0)
    rows, columns = linear_sum_assignment(gain)
    matched = gain[rows, columns] < 0
    rows, columns = rows[matched], columns[matched]
    # Summed from the costs and not from the gains, which would cancel between diagrams that are nearly equal.
    parts = (cost[rows, columns], np.delete(a_alone, rows), np.delete(b_alone, columns))
    return float(sum(part.sum() for part in parts) ** (1 / order))


def bottleneck(first: Diagram, second: Diagram) -> float:
    """Return the exact bottleneck distance of two diagrams of one dimension, finite points only."""
    import gudhi

    _check_dimensions(first, second)
    return float(gudhi.bottleneck_distance(_positive(first), _positive(second), 0.0))


def _check_dimensions(first: Diagram, second: Diagram) -> None:
    if first.dimension != second.dimension:
        raise ToposcopeError(
            f"diagrams: dimensions {first.dimension} and {second.dimension} differ; compare H0 with H0 and H1 with H1"
        )


def _positive(diagram: Diagram) -> NDArray[np.float64]:
    """Bars of positive length as (low, high): a zero bar lies on the diagonal and costs nothing to match there."""
    ends = np.sort(diagram.pairs, axis=1)
    return np.ascontiguousarray(ends[ends[:, 1] > ends[:, 0]])


def _to_diagonal(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance to the nearest point of the diagonal: half the lifetime."""
    return (points[:, 1] - points[:, 0]) / 2
