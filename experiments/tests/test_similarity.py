"""Linear CKA and Procrustes against SciPy, kernels by definition, and what they are invariant to."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hard_cases import Array
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import minimize
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import ortho_group

from toposcope.errors import ToposcopeError
from toposcope_experiments.similarity.similarity import linear_cka, procrustes

moderate = examples(60)
seeds = st.integers(0, 2**32)
numbers = st.integers(2, 30)
widths = st.integers(1, 40)


def pair(seed: int, n: int, d: int, e: int, noise: float = 1.0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d))
    return X, X @ generator.normal(size=(d, e)) + noise * generator.normal(size=(n, e))


def padded(X: Array, Y: Array) -> tuple[Array, Array]:
    width = max(X.shape[1], Y.shape[1])
    return np.pad(X, ((0, 0), (0, width - X.shape[1]))), np.pad(Y, ((0, 0), (0, width - Y.shape[1])))


def moved(X: Array, seed: int, scale: float) -> Array:
    generator = np.random.default_rng(seed)
    d = X.shape[1]
    rotation = ortho_group.rvs(d, random_state=seed % 2**32) if d > 1 else -np.ones((1, 1))
    turned: Array = X @ rotation * scale + generator.normal(size=d)
    return turned


# By definition, and against SciPy


@moderate
@given(seeds, numbers, widths, widths)
def test_alignment_of_kernels(seed: int, n: int, d: int, e: int) -> None:
    X, Y = pair(seed, n, d, e)
    H = np.eye(n) - 1 / n
    K, L = H @ X @ X.T @ H, H @ Y @ Y.T @ H
    assert linear_cka(X, Y) == pytest.approx(np.trace(K @ L) / math.sqrt(np.trace(K @ K) * np.trace(L @ L)), rel=1e-9)


@moderate
@given(seeds, st.integers(3, 30), widths, widths)
def test_disparity_of_scipy(seed: int, n: int, d: int, e: int) -> None:
    X, Y = pair(seed, n, d, e)
    nuclear = math.sqrt(1 - scipy_procrustes(*padded(X, Y))[2])
    assert procrustes(X, Y) ** 2 == pytest.approx(2 - 2 * nuclear, abs=1e-7)


def test_no_rotation_does_better() -> None:
    X, Y = pair(0, 12, 2, 2)
    X, Y = (P - P.mean(axis=0) for P in (X, Y))
    X, Y = (P / np.linalg.norm(P) for P in (X, Y))

    def distance(angle: Any, flip: int) -> float:
        c, s = math.cos(angle[0]), math.sin(angle[0])
        return float(np.linalg.norm(X - Y @ np.array([[c, -s], [flip * s, flip * c]])))

    best = min(minimize(distance, [start], (flip,)).fun for start in (0, 2, 4) for flip in (1, -1))
    assert procrustes(X, Y) == pytest.approx(best, abs=1e-6)


def test_known_values() -> None:
    # Two orthogonal centred columns, and one of them.
    X = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert linear_cka(X, X[:, :1]) == pytest.approx(1 / math.sqrt(2))
    assert procrustes(X, X[:, :1]) == pytest.approx(math.sqrt(2 - math.sqrt(2)))
    # Nothing in common.
    assert linear_cka(X[:, :1], X[:, 1:]) == pytest.approx(0, abs=1e-15)
    assert procrustes(X[:, :1], X[:, 1:]) == pytest.approx(math.sqrt(2))


def test_unrelated_gaussian_points() -> None:
    generator = np.random.default_rng(0)
    n, d, e = 200, 100, 50
    value = linear_cka(generator.normal(size=(n, d)), generator.normal(size=(n, e)))
    assert value == pytest.approx(math.sqrt(d * e / ((n + d) * (n + e))), rel=0.05)


# Invariance


@moderate
@given(seeds, numbers, widths, widths, st.floats(1e-3, 1e3))
def test_shift_scale_rotation_and_order(seed: int, n: int, d: int, e: int, scale: float) -> None:
    X, Y = pair(seed, n, d, e)
    order = np.random.default_rng(seed).permutation(n)
    other = moved(X, seed, scale)[order]
    assert linear_cka(other, Y[order]) == pytest.approx(linear_cka(X, Y), abs=1e-9)
    assert procrustes(other, Y[order]) == pytest.approx(procrustes(X, Y), abs=1e-7)
    assert linear_cka(X, moved(X, seed, scale)) == pytest.approx(1, abs=1e-12)
    assert procrustes(X, moved(X, seed, scale)) == pytest.approx(0, abs=1e-6)


@moderate
@given(seeds, numbers, widths, widths)
def test_symmetry_bounds_and_padding(seed: int, n: int, d: int, e: int) -> None:
    X, Y = pair(seed, n, d, e)
    for measure, top in ((linear_cka, 1.0), (procrustes, math.sqrt(2))):
        value = measure(X, Y)
        assert 0 <= value <= top
        assert measure(Y, X) == pytest.approx(value, abs=1e-7)
        assert measure(*padded(X, Y)) == pytest.approx(value, abs=1e-7)


@moderate
@given(seeds, numbers, widths, widths, widths)
def test_triangle_inequality(seed: int, n: int, d: int, e: int, f: int) -> None:
    X, Y = pair(seed, n, d, e)
    Z = pair(seed + 1, n, e, f)[1]
    assert procrustes(X, Z) <= procrustes(X, Y) + procrustes(Y, Z) + 1e-7


@pytest.mark.parametrize("d", [3, 200])
def test_values_follow_the_noise(d: int) -> None:
    found = [pair(0, 100, d, d, noise * d**0.5) for noise in (0, 0.1, 1, 10)]
    turned = [(X, X + (Y - pair(0, 100, d, d, 0)[1])) for X, Y in found]
    alike, apart = ([measure(X, Y) for X, Y in turned] for measure in (linear_cka, procrustes))
    assert alike == sorted(alike, reverse=True)
    assert apart == sorted(apart)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", [-1000, -500, 500, 1000])
def test_tiny_and_huge_points(exponent: int) -> None:
    X, Y = pair(0, 20, 3, 4)
    for measure in (linear_cka, procrustes):
        assert measure(np.ldexp(X, exponent), Y) == pytest.approx(measure(X, Y), rel=1e-12)
        assert measure(X, Y + 1e6) == pytest.approx(measure(X, Y), rel=1e-6)


def test_dtypes() -> None:
    X, Y = (P.astype(np.float16) for P in pair(0, 20, 3, 4))
    for measure in (linear_cka, procrustes):
        wanted = measure(X.astype(np.float64), Y.astype(np.float64))
        assert measure(X, Y) == wanted
        assert measure(torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)) == wanted


# Bad input


@pytest.mark.parametrize("measure", [linear_cka, procrustes])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((4, 2), 0.1), r"all 4 points are equal, shape \(4, 2\)"),
        (np.zeros((4, 2)), "all 4 points are equal"),
        (np.full((4, 2), np.nan), "8 of 8 entries are NaN"),
        (np.ones(4), "2-D"),
        (np.ones((0, 2)), "empty"),
    ],
)
def test_bad_points_are_refused(measure: Any, values: Any, message: str) -> None:
    good = np.random.default_rng(0).normal(size=(4, 2))
    with pytest.raises(ToposcopeError, match=rf"\AX: [^\n]*{message}[^\n]*\Z"):
        measure(values, good)
    with pytest.raises(ToposcopeError, match=rf"\AY: [^\n]*{message}[^\n]*\Z"):
        measure(good, values)
    with pytest.raises(ToposcopeError, match=r"\AY: [^\n]*\(4, 2\)[^\n]*\(3, 2\)[^\n]*\Z"):
        measure(good, good[:3])
