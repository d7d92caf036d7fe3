"""The engine of H2 against GUDHI's simplex tree and its Rips engine."""

import gudhi
import numpy as np
import pytest
from gudhi.sklearn import RipsPersistence
from hard_cases import Array
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from property_examples import examples
from scipy.spatial.distance import cdist, squareform

from toposcope.homology import voids
from toposcope.homology.voids import void_diagram

thorough = examples(400)
moderate = examples(100)
lengths = st.sampled_from([0.0, 1.0, 1.0, 1.0, np.nextafter(1.0, 2), 1.5, 2.0, 2.0, 2.0, np.inf])
matrices = st.integers(1, 13).flatmap(
    lambda n: st.lists(
        st.one_of(lengths, st.floats(1e-3, 1e3)), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2
    ).map(lambda upper: np.asarray(squareform(np.array(upper))) if upper else np.zeros((1, 1)))
)
"""Symmetric matrices of no metric; some distances zero, infinite, equal or one digit apart."""


def cross_polytopes(seed: int) -> Array:
    """Distances in a graph of several hollow spheres, of 2 and more dimensions, some of them moved by a little."""
    rng = np.random.default_rng(seed)
    parts = [np.vstack([np.eye(5)[:d], -np.eye(5)[:d]]) + 3 * k * (k + seed % 2) for k, d in enumerate((3, 3, 4))]
    points = np.concatenate(parts)[: 6 + int(rng.integers(0, 15))]
    return np.asarray(cdist(*[points + (seed % 3) * 0.05 * rng.normal(size=points.shape)] * 2))


def random_matrix(n: int, seed: int) -> Array:
    upper = np.random.default_rng(seed).random(n * (n - 1) // 2)
    return np.asarray(squareform(upper))


def sphere(n: int, seed: int) -> Array:
    points = np.random.default_rng(seed).normal(size=(n, 3))
    points /= np.linalg.norm(points, axis=1)[:, None]
    return np.asarray(cdist(points, points))


def voids_of_simplex_tree(matrix: Array, cap: float = np.inf) -> tuple[Array, int]:
    """Bars of H2 of positive length over Z/2, sorted, and how many never end."""
    n, tree = len(matrix), gudhi.SimplexTree()
    tree.insert_batch(np.arange(n)[None, :], np.zeros(n))
    ends = np.argwhere(np.tril(np.isfinite(matrix) & (matrix <= cap), -1))
    if len(ends):
        tree.insert_batch(ends.T, matrix[tuple(ends.T)])
    tree.expansion(3)
    tree.compute_persistence(homology_coeff_field=2, persistence_dim_max=True)
    bars = tree.persistence_intervals_in_dimension(2).reshape(-1, 2)
    is_open = np.isinf(bars[:, 1])
    return in_order(bars[~is_open]), int(is_open.sum())


def in_order(bars: Array) -> Array:
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


@thorough
@given(
    st.one_of(
        matrices,
        st.integers(0, 10**6).map(cross_polytopes),
        st.builds(random_matrix, st.just(14), st.integers(0, 10**6)),
    )
)
@example(np.zeros((0, 0)))
@example(np.full((8, 8), np.inf))
def test_voids_are_those_of_the_simplex_tree(matrix: Array) -> None:
    bars, n_open = voids_of_simplex_tree(matrix)
    found = void_diagram(matrix)
    assert_array_equal(in_order(found.pairs), bars)
    assert (found.n_essential, found.n_truncated) == (n_open, 0)


@moderate
@given(st.one_of(matrices, st.integers(0, 10**6).map(cross_polytopes)), st.data())
def test_a_cap_leaves_open_what_it_cuts(matrix: Array, data: st.DataObject) -> None:
    cap = data.draw(st.sampled_from(sorted({0.5, *matrix[np.isfinite(matrix)].tolist()})))
    bars, n_open = voids_of_simplex_tree(matrix, cap)
    found = void_diagram(matrix, cap)
    assert_array_equal(in_order(found.pairs), bars)
    is_capped = cap < matrix[np.isfinite(matrix)].max()
    assert (found.n_essential, found.n_truncated) == ((0, n_open) if is_capped else (n_open, 0))


@pytest.mark.parametrize("seed", range(3))
def test_many_voids_at_once(seed: int) -> None:
    matrix = random_matrix(60, seed)
    assert len(void_diagram(matrix).pairs) > 64
    assert_array_equal(void_diagram(matrix).pairs, voids_of_engine(matrix))


def test_in_what_parts_edges_enter_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = void_diagram(sphere(60, 0))
    monkeypatch.setattr(voids, "EDGES_AT_ONCE", 7)
    assert_array_equal(void_diagram(sphere(60, 0)).pairs, whole.pairs)


@pytest.mark.filterwarnings("error")
def test_sums_of_distances_may_be_beyond_the_range() -> None:
    matrix = sphere(50, 0)
    assert_array_equal(void_diagram(8e307 * matrix).pairs, 8e307 * void_diagram(matrix).pairs)


@pytest.mark.parametrize("n", [50, 64, 65, 150])
def test_a_sphere_has_one_void(n: int) -> None:
    found = void_diagram(sphere(n, n))
    assert_array_equal(found.pairs, voids_of_engine(sphere(n, n)))
    assert np.sum(found.lifetimes > 0.3) == 1


def voids_of_engine(matrix: Array) -> Array:
    """Bars of H2, by GUDHI's engine for Rips complexes."""
    engine = RipsPersistence(homology_dimensions=[2], input_type="full distance matrix", homology_coeff_field=2)
    bars = np.asarray(engine.fit_transform([matrix])[0][0]).reshape(-1, 2)
    return in_order(bars[bars[:, 1] > bars[:, 0]])
