"""Deep graph persistence against the (max, min) product of the layers and SciPy's spanning tree."""

from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from property_examples import examples
from weight_matrices import scipy_tree

from toposcope.errors import ToposcopeError
from toposcope.homology import deep_graph_persistence, neural_persistence, weight_variance

Layers = list[NDArray[Any]]
moderate = examples(100)


@st.composite
def networks(draw: st.DrawFn, most: int = 5) -> Layers:
    """Layers that fit, of entries in general position, few values, or mostly zeros."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=2, max_size=most + 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["general", "ties", "zeros"]))
    layers = [rng.normal(size=shape) for shape in pairwise(sizes)]
    if kind == "ties":
        return [np.round(2 * W) / 2 for W in layers]
    return [W * (rng.random(W.shape) < 0.4) for W in layers] if kind == "zeros" else layers


def product(layers: Layers) -> NDArray[np.float64]:
    """The (max, min) product of their magnitudes, as the authors' code makes it."""
    return reduce(lambda S, W: np.minimum(S[:, :, None], W[None]).max(axis=1), map(np.abs, layers))


def standardized(W: NDArray[Any]) -> NDArray[Any]:
    return np.zeros_like(W) if W.min() == W.max() else (W - W.mean()) / W.std()


@moderate
@given(networks())
def test_deaths_are_the_maximum_spanning_tree_of_the_product(layers: Layers) -> None:
    found, S = deep_graph_persistence(layers, standardize=False), product(layers)
    assert found.scale == S.max()
    assert_array_equal(found.deaths, scipy_tree(S) / S.max() if S.any() else np.ones(sum(S.shape) - 1))
    assert found.degenerate == (not S.any())
    by_product = neural_persistence(S)
    assert (found.mean, found.norm, found.normalized) == (by_product.mean, by_product.norm, by_product.normalized)


@moderate
@given(networks())
def test_layers_are_standardized_each_by_itself(layers: Layers) -> None:
    expected = neural_persistence(product([standardized(W) for W in layers]))
    assert_allclose(deep_graph_persistence(layers).deaths, expected.deaths, rtol=1e-9, atol=1e-12)


@moderate
@given(networks(most=1), st.sampled_from([1.0, 2.0, 3.5]), st.sampled_from(["drop", "count"]))
def test_of_one_matrix_it_is_neural_persistence(layers: Layers, p: float, essential: Any) -> None:
    found = deep_graph_persistence(layers, standardize=False, p=p, essential=essential)
    expected = neural_persistence(layers[0], p=p, essential=essential)
    assert_array_equal(found.deaths, expected.deaths)
    assert (found.norm, found.normalized, found.scale) == (expected.norm, expected.normalized, expected.scale)


def test_of_larger_layers() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((40, 160, 40), (30, 90, 120, 70)):
        layers = [rng.standard_t(3, shape).astype(np.float32) for shape in pairwise(sizes)]
        S = product([W.astype(np.float64) for W in layers])
        assert_array_equal(deep_graph_persistence(layers, standardize=False).deaths, scipy_tree(S) / S.max())


@given(networks())
def test_weight_variance(layers: Layers) -> None:
    weights = np.concatenate([np.abs(W).ravel() for W in layers])
    expected = np.var(weights / weights.max()) if weights.any() else 0.0
    assert weight_variance(layers) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert weight_variance([np.zeros((2, 3))]) == 0


def test_what_cannot_be_measured_is_refused() -> None:
    W = np.ones((3, 2))
    for matrices, words in (
        ([], "at least one"),
        ([W, W], r"matrices\[1\]: has 3 rows, but matrices\[0\] before it 2 columns"),
        ([W, np.array([[1.0], [np.nan]])], r"matrices\[1\]: 1 of 2 entries"),
        ([W, np.ones(2)], r"matrices\[1\]: expected a 2-D"),
    ):
        with pytest.raises(ToposcopeError, match=words):
            deep_graph_persistence(matrices)
    with pytest.raises(ToposcopeError, match="matrices: expected a list of matrices, got NoneType"):
        deep_graph_persistence(None)  # type: ignore[arg-type]
    with pytest.raises(ToposcopeError, match="names: expected one of each of the 1 matrices, got 2"):
        deep_graph_persistence([W], names=["first", "second"])
    with pytest.raises(ToposcopeError, match="essential"):
        deep_graph_persistence([W], essential="keep")  # type: ignore[arg-type]
