"""The clustering coefficient against networkx, and against a count of cycles and paths one by one."""

import itertools
import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from networkx.algorithms import bipartite
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology import matrix_controls as clustering
from toposcope.homology.matrix_controls import clustering_coefficient

Array = NDArray[np.float64]


def graph_of(W: Array) -> Any:
    """The bipartite graph of what is not zero; rows are (0, i), columns (1, j)."""
    graph = nx.Graph()
    graph.add_nodes_from([(0, i) for i in range(W.shape[0])])
    graph.add_nodes_from([(1, j) for j in range(W.shape[1])])
    scale = np.abs(W).max()
    for i, j in zip(*np.nonzero(W), strict=True):
        graph.add_edge((0, int(i)), (1, int(j)), weight=abs(float(W[i, j])) / scale)
    return graph


def weight(graph: Any, nodes: list[Any]) -> float:
    return float(math.prod(graph.edges[edge]["weight"] for edge in itertools.pairwise(nodes)))


def one_by_one(W: Array) -> float:
    """Four times the weight of cycles of four by the weight of paths of three, each found by networkx."""
    graph = graph_of(W)
    cycles = math.fsum(weight(graph, [*c, c[0]]) for c in nx.simple_cycles(graph, length_bound=4))
    ends = itertools.product([node for node in graph if node[0] == 0], [node for node in graph if node[0] == 1])
    paths = (path for a, b in ends for path in nx.all_simple_paths(graph, a, b, cutoff=3) if len(path) == 4)
    total = math.fsum(weight(graph, path) for path in paths)
    return 4 * cycles / total if total else 0.0


@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (6, 4), (5, 5)], ids=str)
@pytest.mark.parametrize("density", [0.4, 0.8, 1.0])
def test_weighted_cycles_and_paths(shape: tuple[int, int], density: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        W = np.where(rng.random(shape) < density, rng.normal(size=shape), 0.0)
        W[0, 0] = 1.5
        assert clustering_coefficient(W) == pytest.approx(one_by_one(W), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("density", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("shape", [(12, 9), (8, 20)], ids=str)
def test_without_weights_it_is_that_of_robins_and_alexander(shape: tuple[int, int], density: float) -> None:
    for seed in range(4):
        W = (np.random.default_rng(seed).random(shape) < density).astype(float)
        expected = bipartite.robins_alexander_clustering(graph_of(W))
        assert clustering_coefficient(0.3 * W) == pytest.approx(expected, rel=1e-12, abs=1e-15)


matrices = arrays(
    np.float64,
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    elements=st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-6 else x),
)


@pytest.mark.slow
@given(matrices, st.sampled_from([2.0**-40, -1.0, 1e6]))
def test_bounds_scale_and_transposition(W: Array, factor: float) -> None:
    found = clustering_coefficient(W)
    assert 0 <= found <= 1
    for other in (factor * W, W.T, W[::-1, ::-1]):
        assert clustering_coefficient(other) == pytest.approx(found, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("shape", [(2, 2), (4, 9), (30, 3)], ids=str)
def test_equal_weights_close_every_path(shape: tuple[int, int]) -> None:
    assert clustering_coefficient(np.full(shape, -0.7)) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize(
    "W", [np.ones((1, 5)), np.ones((5, 1)), np.ones((1, 1)), np.zeros((4, 3)), np.eye(5), np.diag([1e-200, 1.0])]
)
def test_without_paths_it_is_zero(W: Array) -> None:
    assert clustering_coefficient(W) == 0


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    W = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    whole = clustering_coefficient(W)
    monkeypatch.setattr(clustering, "BLOCK_ENTRIES", 90)
    assert clustering_coefficient(W) == pytest.approx(whole, rel=1e-13)
    assert clustering_coefficient(W.T) == pytest.approx(whole, rel=1e-13)


def test_what_is_no_finite_matrix_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="layer a: 1 of 4 entries are NaN"):
        clustering_coefficient(np.array([[1.0, np.nan], [0.0, 2.0]]), name="layer a")
