"""H3 and up against GUDHI's simplex tree of all edges, by either of GUDHI's engines."""

import sys

import gudhi
import numpy as np
import pytest
from hard_cases import assert_same_pairs
from numpy.testing import assert_array_equal
from scipy.spatial.distance import cdist

from toposcope.homology import higher, rips
from toposcope.typing import Matrix


def hard_distances(kind: str, seed: int) -> Matrix:
    """Distances of few points: in general position, with many ties, of no metric, and with pairs that have none."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(1, 15)), int(random.integers(3, 7))
    if kind == "tied":
        points = random.integers(0, 3, (n, d)).astype(float)
    elif kind == "polytope":
        points = np.vstack([np.eye(d), -np.eye(d)])
    else:
        points = random.normal(size=(n, d))
    matrix: Matrix = cdist(points, points)
    if kind == "no metric":
        matrix = random.integers(1, 4, (n, n)).astype(float)
    if kind == "infinite":
        matrix[random.random(matrix.shape) < 0.1] = np.inf
    matrix = np.minimum(matrix, matrix.T) if kind == "no metric" else np.maximum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0)
    return matrix


@pytest.mark.parametrize("engine", ["ripser", "simplex tree"])
@pytest.mark.parametrize("kind", ["normal", "tied", "polytope", "no metric", "infinite"])
def test_bars_are_those_of_all_simplices(kind: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "simplex tree":
        monkeypatch.setitem(sys.modules, "gudhi._ripser_ext", None)
    for seed in range(12):
        matrix = hard_distances(kind, seed)
        finite = matrix[np.isfinite(matrix)]
        for threshold in (np.inf, float(np.median(finite))):
            cap = min(threshold, float(finite.max()))
            tree = gudhi.RipsComplex(distance_matrix=matrix, max_edge_length=cap).create_simplex_tree(max_dimension=5)
            tree.compute_persistence(homology_coeff_field=2, min_persistence=0, persistence_dim_max=True)
            for k, found in enumerate(rips(matrix, metric="precomputed", max_dimension=4, threshold=threshold)[3:], 3):
                bars = tree.persistence_intervals_in_dimension(k).reshape(-1, 2)
                closed = bars[np.isfinite(bars[:, 1])]
                assert_array_equal(found.pairs, closed[np.lexsort((closed[:, 1], closed[:, 0]))])
                assert found.n_essential + found.n_truncated == len(bars) - len(closed)


def test_simplices_that_no_number_of_128_bits_can_name_go_by_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.vstack([np.eye(4), -np.eye(4)])
    expected = rips(points, max_dimension=4)
    monkeypatch.setattr(higher, "N_CODES", 1)
    monkeypatch.setitem(sys.modules, "gudhi._ripser_ext", type("Ripser", (), {"_sparse": None}))
    assert_same_pairs(rips(points, max_dimension=4), expected)
    assert_array_equal(expected[3].pairs, [[np.sqrt(2), 2.0]])
