"""Ensembles against the moments and laws that define them."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from toposcope.errors import ToposcopeError
from toposcope.homology.matrix_controls import DENSITY, ENSEMBLES, TAIL_DEGREES, Ensemble, random_matrix

every_ensemble = pytest.mark.parametrize("ensemble", ENSEMBLES)


@every_ensemble
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 9), (9, 5)], ids=str)
def test_shape_dtype_and_seed(ensemble: Ensemble, shape: tuple[int, int]) -> None:
    W = random_matrix(ensemble, shape, seed=1)
    assert W.shape == shape
    assert W.dtype == np.float64
    assert W.flags.c_contiguous
    assert_array_equal(W, random_matrix(ensemble, shape, seed=1))
    if W.size > 1:
        assert (random_matrix(ensemble, shape, seed=3) != W).any()


@pytest.mark.parametrize(
    ("ensemble", "law"),
    [
        ("gaussian", stats.norm()),
        ("uniform", stats.uniform(-1, 2)),
        ("heavy_tailed", stats.t(TAIL_DEGREES)),
        # Entries of a Haar matrix: (w + 1) / 2 is Beta((n - 1) / 2, (n - 1) / 2); one entry of each of many matrices.
        ("orthogonal", stats.beta(5.5, 5.5, loc=-1, scale=2)),
    ],
)
def test_laws_of_the_entries(ensemble: Ensemble, law: Any) -> None:
    if ensemble == "orthogonal":
        entries = np.array([random_matrix(ensemble, (12, 12), seed)[0, 0] for seed in range(2000)])
    else:
        entries = random_matrix(ensemble, (100, 200), seed=0).ravel()
    assert stats.kstest(entries, law.cdf).pvalue > 0.01


def test_sparse_entries() -> None:
    W = random_matrix("sparse", (300, 200), seed=0)
    assert stats.binomtest(int((W != 0).sum()), W.size, DENSITY).pvalue > 0.01
    assert stats.kstest(W[W != 0], stats.norm().cdf).pvalue > 0.01


@pytest.mark.parametrize(("m", "n"), [(8, 8), (12, 5), (5, 12)])
def test_the_shorter_side_is_orthonormal(m: int, n: int) -> None:
    Q = random_matrix("orthogonal", (m, n), seed=0)
    product = Q.T @ Q if m >= n else Q @ Q.T
    assert_allclose(product, np.eye(min(m, n)), atol=1e-14)


def test_orthogonal_matrices_are_haar() -> None:
    """The trace of a Haar matrix has variance 1 (Diaconis & Shahshahani 1994); without the signs of R it has not."""
    traces = np.array([np.trace(random_matrix("orthogonal", (6, 6), seed)) for seed in range(3000)])
    assert traces.mean() == pytest.approx(0, abs=0.06)
    assert traces.var() == pytest.approx(1, abs=0.08)


def test_what_there_is_not_is_refused() -> None:
    name: Any = "cauchy"
    with pytest.raises(ToposcopeError, match=r"ensemble: expected one of gaussian, .* got 'cauchy'"):
        random_matrix(name, (2, 2), 0)
    with pytest.raises(ToposcopeError, match="shape: expected a whole number of at least 1"):
        random_matrix("gaussian", (0, 2), 0)
