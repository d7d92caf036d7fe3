"""Paths from their distances: random walks, scalings, diffusion potentials, each against another derivation."""

import math

import numpy as np
import pytest
from hard_cases import Array
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.optimize import minimize
from scipy.spatial import procrustes
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    classical_scaling,
    diffusion_potential,
    metric_scaling,
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


def test_a_random_walk_of_200_steps() -> None:
    assert_allclose(random_walk_shares(200)[:3], [0.6079548, 0.1519981, 0.0675617], rtol=0, atol=1e-7)
    assert random_walk_shares(200).sum() == pytest.approx(1)


def test_the_null_is_the_spectrum_of_the_centred_sums() -> None:
    n = 30
    sums = np.tril(np.ones((n, n)))
    centred = sums - sums.mean(axis=0)
    variances = np.linalg.svd(centred, compute_uv=False)[: n - 1] ** 2
    assert_allclose(random_walk_shares(n), variances / variances.sum(), rtol=1e-10)


def test_a_walk_in_many_dimensions_has_these_shares() -> None:
    """Their standard deviation is about (2 / d)^(1/2) of themselves."""
    shares = principal_shares(distances(walk(60, 20_000)))
    assert_allclose(shares[:3], random_walk_shares(60)[:3], rtol=6 * math.sqrt(2 / 20_000))


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
    metric = metric_scaling(distances(points))
    assert metric.converged
    assert metric.stress < 1e-12


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


@few
@given(seeds)
def test_metric_scaling_is_a_minimum_of_the_stress(seed: int) -> None:
    """A minimiser that knows no gradient and starts there finds nothing better."""
    wanted = distances(walk(8, 6, seed))
    found = metric_scaling(wanted)
    assert found.converged
    assert found.stress <= classical_scaling(wanted).stress + 1e-12

    def loss(flat: Array) -> float:
        return float(((pdist(flat.reshape(-1, 2)) - wanted[np.triu_indices(8, 1)]) ** 2).sum())

    start = loss(found.points.ravel())
    assert found.stress == pytest.approx(math.sqrt(start / (wanted[np.triu_indices(8, 1)] ** 2).sum()))
    assert minimize(loss, found.points.ravel()).fun == pytest.approx(start, rel=1e-6)
    assert not metric_scaling(wanted, max_iterations=1).converged


def test_scalings_follow_the_unit_and_stand_points_that_are_equal() -> None:
    wanted = distances(walk(10, 4))
    for scale in (classical_scaling, metric_scaling):
        assert_allclose(scale(wanted * 2.0**600).points, scale(wanted).points * 2.0**600, rtol=1e-9)
        assert not scale(np.zeros((4, 4))).points.any()
        assert scale(wanted).points.tobytes() == scale(wanted).points.tobytes()


@pytest.mark.parametrize(
    "bad",
    [np.ones((3, 3)), np.array([[0.0, 1.0], [2.0, 0.0]]), np.zeros((2, 3)), -np.ones((2, 2)) + np.eye(2)],
    ids=["diagonal", "asymmetric", "shape", "negative"],
)
def test_what_are_no_distances_is_refused(bad: Array) -> None:
    for function in (classical_scaling, metric_scaling, diffusion_potential, principal_shares, step_cosines):
        with pytest.raises(ToposcopeError, match=r"distances: expected an \(n, n\) matrix of distances, got"):
            function(bad)


# Diffusion potentials


def by_the_paper(points: Array, k: int, alpha: float, t: int) -> tuple[list[list[float]], list[list[float]]]:
    """Operator and potential of Moon et al. 2019, entry by entry: no matrix is multiplied or divided by another."""
    n = len(points)
    d = [[math.dist(x, y) for y in points] for x in points]
    epsilon = [sorted(row)[k] for row in d]
    K = [
        [
            0.5 * math.exp(-((d[i][j] / epsilon[i]) ** alpha)) + 0.5 * math.exp(-((d[i][j] / epsilon[j]) ** alpha))
            for j in range(n)
        ]
        for i in range(n)
    ]
    P = [[value / math.fsum(row) for value in row] for row in K]
    walked = P
    for _ in range(t - 1):
        walked = [[math.fsum(row[m] * P[m][j] for m in range(n)) for j in range(n)] for row in walked]
    return P, [[-math.log(max(value, 1e-7)) for value in row] for row in walked]


@pytest.mark.parametrize(("k", "alpha", "t"), [(5, 40.0, 7), (3, 10.0, 1), (5, 2.0, 20)])
def test_operator_and_potential_are_those_of_the_paper(k: int, alpha: float, t: int) -> None:
    points = walk(40, 10)
    operator, potential = by_the_paper(points, k, alpha, t)
    found = diffusion_potential(distances(points), n_neighbours=k, decay=alpha, time=t)
    assert_allclose(found.operator, operator, rtol=0, atol=1e-12)
    assert_allclose(found.potential, potential, rtol=0, atol=1e-9)
    assert found.n_floored == np.count_nonzero(np.array(potential) == -math.log(1e-7))
    assert_allclose(found.distances(), distances(np.array(potential)), atol=1e-7)


def test_the_entropies_are_those_of_the_powers_and_the_time_is_their_knee() -> None:
    found = diffusion_potential(distances(walk(40, 10)))
    eigenvalues = np.abs(np.linalg.eigvals(found.operator))
    for t in (1, 5, 100):
        shares = eigenvalues**t / (eigenvalues**t).sum()
        assert found.entropies[t - 1] == pytest.approx(
            -(shares[shares > 0] * np.log(shares[shares > 0])).sum(), abs=1e-9
        )
    times = np.arange(1.0, 101)

    def error(x: Array, y: Array) -> float:
        return float(((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2).sum())

    errors = {
        t: error(times[:t], found.entropies[:t]) + error(times[t - 1 :], found.entropies[t - 1 :])
        for t in range(2, 100)
    }
    assert found.time == min(errors, key=lambda t: errors[t])


def test_a_straight_path_is_embedded_as_a_curve_in_its_order() -> None:
    D = distances(np.arange(30.0)[:, None])
    first = metric_scaling(diffusion_potential(D).distances()).points[:, 0]
    assert (np.diff(first) > 0).all() or (np.diff(first) < 0).all()


def test_duplicates_are_near_each_other_only() -> None:
    points = np.repeat([[0.0], [1.0], [3.0]], 7, axis=0)
    found = diffusion_potential(distances(points))
    assert_allclose(found.operator, np.kron(np.eye(3), np.full((7, 7), 1 / 7)), atol=1e-15)
    assert np.isfinite(found.potential).all()


@pytest.mark.parametrize("options", [{"decay": 0.0}, {"floor": 0.0}, {"time": 0}, {"n_neighbours": 0}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ToposcopeError, match=next(iter(options))):
        diffusion_potential(distances(walk(5, 2)), **options)  # type: ignore[arg-type]


def test_two_points_have_no_neighbourhoods() -> None:
    with pytest.raises(ToposcopeError, match="at least 3 points"):
        diffusion_potential(distances(walk(2, 2)))


# The dimension of a path


@few
@given(seeds, st.integers(1, 5))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distances_give_what_points_give(seed: int, d: int) -> None:
    points = np.random.default_rng(seed).normal(size=(60, d))
    plain, given = ph_dimension(points, n_draws=3), ph_dimension(distances(points), metric="precomputed", n_draws=3)
    assert_allclose(given.log_sums, plain.log_sums, rtol=1e-9, atol=1e-12)
