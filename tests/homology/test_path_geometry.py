"""Paths from their distances: random walks, classical scaling, each against another derivation."""

import numpy as np
import pytest
from hard_cases import Array
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.spatial import procrustes
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    classical_scaling,
    ph_dimension,
    principal_shares,
    random_walk_shares,
    random_walk_shares_of,
    step_cosines,
)

moderate = examples(60)
few = examples(15)
seeds = st.integers(0, 2**32)


def walk(n: int, d: int, seed: int = 0) -> Array:
    return np.cumsum(np.random.default_rng(seed).normal(size=(n, d)), axis=0)


def distances(points: Array) -> Array:
    return np.asarray(squareform(pdist(points)))


# Principal components and random walks


def test_the_null_is_the_spectrum_of_the_centred_sums() -> None:
    n = 30
    sums = np.tril(np.ones((n, n)))
    centred = sums - sums.mean(axis=0)
    variances = np.linalg.svd(centred, compute_uv=False)[: n - 1] ** 2
    assert_allclose(random_walk_shares(n), variances / variances.sum(), rtol=1e-10)


@moderate
@given(seeds, st.integers(2, 25))
def test_steps_of_different_lengths(seed: int, n: int) -> None:
    lengths = np.random.default_rng(seed).uniform(0.1, 3, n - 1)
    sums = np.vstack([np.zeros(n - 1), np.tril(np.ones((n - 1, n - 1))) * lengths])  # each step its own direction
    centred = sums - sums.mean(axis=0)
    variances = np.linalg.svd(centred, compute_uv=False)[: n - 1] ** 2
    assert_allclose(random_walk_shares_of(lengths), variances / variances.sum(), rtol=1e-8, atol=1e-12)


def test_equal_steps_are_a_case_of_steps_of_given_lengths() -> None:
    assert_allclose(random_walk_shares_of(np.full(99, 7.0)), random_walk_shares(100), rtol=1e-9)


@moderate
@given(seeds, st.integers(3, 20), st.integers(1, 8))
def test_shares_are_those_of_the_points(seed: int, n: int, d: int) -> None:
    points = walk(n, d, seed)
    sigma = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    expected = np.zeros(n - 1)
    expected[: min(n, d)][: n - 1] = (sigma**2 / (sigma**2).sum())[: n - 1]
    assert_allclose(principal_shares(distances(points)), expected, atol=1e-12)


@moderate
@given(seeds, st.integers(3, 12))
def test_angles_are_those_of_the_steps(seed: int, n: int) -> None:
    points = walk(n, 5, seed)
    steps = np.diff(points, axis=0)
    norms = np.linalg.norm(steps, axis=1)
    expected = (steps[1:] * steps[:-1]).sum(axis=1) / norms[1:] / norms[:-1]
    assert_allclose(step_cosines(distances(points)), expected, atol=1e-9)


def test_a_step_of_no_length_has_no_angle() -> None:
    cosines = step_cosines(distances(np.array([[0.0], [1.0], [1.0], [3.0], [2.0]])))
    assert_array_equal(cosines, [np.nan, np.nan, -1.0])


# Scalings


def test_classical_scaling_is_exact_on_a_plane() -> None:
    points = walk(30, 2)
    scaling = classical_scaling(distances(points))
    assert_allclose(distances(scaling.points), distances(points), atol=1e-12)
    assert scaling.stress < 1e-14
    assert procrustes(points, scaling.points)[2] < 1e-24


@moderate
@given(seeds, st.integers(3, 20), st.integers(1, 6))
def test_classical_scaling_is_principal_components(seed: int, n: int, d: int) -> None:
    points = walk(n, d, seed)
    centred = points - points.mean(axis=0)
    U, sigma, _ = np.linalg.svd(centred, full_matrices=False)
    expected = np.zeros((n, 2))
    shared = min(2, len(sigma))
    expected[:, :shared] = (U * sigma)[:, :shared]
    found = classical_scaling(distances(points)).points
    assert_allclose(np.abs(found), np.abs(expected), atol=1e-6 * sigma[0])
    far = found[np.abs(found).argmax(axis=0), [0, 1]]
    assert (far >= 0).all()


def test_scaling_follows_the_unit_and_stands_points_that_are_equal() -> None:
    wanted = distances(walk(10, 4))
    assert_allclose(classical_scaling(wanted * 2.0**600).points, classical_scaling(wanted).points * 2.0**600, rtol=1e-9)
    assert not classical_scaling(np.zeros((4, 4))).points.any()
    assert classical_scaling(wanted).points.tobytes() == classical_scaling(wanted).points.tobytes()


@pytest.mark.parametrize(
    "bad",
    [np.ones((3, 3)), np.array([[0.0, 1.0], [2.0, 0.0]]), np.zeros((2, 3)), -np.ones((2, 2)) + np.eye(2)],
    ids=["diagonal", "asymmetric", "shape", "negative"],
)
def test_what_are_no_distances_is_refused(bad: Array) -> None:
    for function in (classical_scaling, principal_shares, step_cosines):
        with pytest.raises(ToposcopeError, match=r"distances: expected an \(n, n\) matrix of distances, got"):
            function(bad)


# The dimension of a path


@few
@given(seeds, st.integers(1, 5))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distances_give_what_points_give(seed: int, d: int) -> None:
    points = np.random.default_rng(seed).normal(size=(60, d))
    plain, given = ph_dimension(points, n_draws=3), ph_dimension(distances(points), metric="precomputed", n_draws=3)
    assert_allclose(given.log_sums, plain.log_sums, rtol=1e-9, atol=1e-12)
