"""Distances between diagrams by exhaustive means: every pairing's cost in one matrix, SciPy's assignment solver."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from toposcope.homology import Diagram, bottleneck, diagram_distances, wasserstein

Pairs = NDArray[np.float64]


def pairing_costs(first: Pairs, second: Pairs) -> NDArray[np.float64]:
    """Square matrix: k points and l copies of the diagonal against l points and k copies of the diagonal."""
    a, b = np.sort(first, axis=1), np.sort(second, axis=1)
    k = len(a)
    matrix = np.zeros((k + len(b), len(b) + k))
    matrix[:k, : len(b)] = np.abs(a[:, None] - b[None]).max(axis=2, initial=0)
    matrix[:k, len(b) :] = (a[:, 1:] - a[:, :1]) / 2
    matrix[k:, : len(b)] = (b[:, 1] - b[:, 0]) / 2
    return matrix


def exact_wasserstein(first: Pairs, second: Pairs, order: float) -> float:
    """Cost of the best assignment."""
    matrix = pairing_costs(first, second)
    # The largest cost is the unit, so that no power underflows that would not vanish in the sum.
    unit = float(matrix.max(initial=0)) or 1.0
    powers = (matrix / unit) ** order
    return float(unit * math.fsum(powers[linear_sum_assignment(powers)].tolist()) ** (1 / order))


def exact_bottleneck(first: Pairs, second: Pairs) -> float:
    """Least cost such that a perfect matching uses no dearer pairing, by bisection over the costs there are."""
    matrix = pairing_costs(first, second)
    levels = np.unique(matrix)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        too_dear = (matrix > levels[middle]).astype(float)
        if too_dear[linear_sum_assignment(too_dear)].any():
            low = middle + 1
        else:
            high = middle
    return float(levels[low]) if len(levels) else 0.0


def rounding(*several: Diagram) -> float:
    """Error that no arithmetic on the coordinates avoids."""
    return 1e-15 * max(float(np.abs(diagram.pairs).max(initial=0)) for diagram in several)


def assert_exact(first: Diagram, second: Diagram, *, rel: float = 1e-14, tolerance: float | None = None) -> None:
    """All three distances, one by one and together, from either side."""
    slack = rounding(first, second) if tolerance is None else tolerance
    together = diagram_distances(first, second)
    for order in (1, 2):
        expected = exact_wasserstein(first.pairs, second.pairs, order)
        assert wasserstein(first, second, order=order) == pytest.approx(expected, rel=rel, abs=slack)
        # of matchings that cost the same, another may be found
        assert wasserstein(second, first, order=order) == pytest.approx(expected, rel=2 * rel, abs=2 * slack)
        assert together[order - 1] == pytest.approx(expected, rel=2 * rel, abs=2 * slack)
    least = pytest.approx(exact_bottleneck(first.pairs, second.pairs), rel=1e-15, abs=slack)
    assert bottleneck(first, second) == least
    assert bottleneck(second, first) == together.bottleneck == least
