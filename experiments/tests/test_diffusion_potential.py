"""Diffusion potentials and metric scaling, each against another derivation."""

import math

import numpy as np
import pytest
from hard_cases import Array
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from property_examples import examples
from scipy.optimize import minimize
from scipy.spatial.distance import pdist, squareform

from toposcope.errors import ToposcopeError
from toposcope.homology import classical_scaling
from toposcope_experiments.diffusion_potential.diffusion_potential import diffusion_potential
from toposcope_experiments.diffusion_potential.metric_scaling import metric_scaling

few = examples(15)
seeds = st.integers(0, 2**32)


def walk(n: int, d: int, seed: int = 0) -> Array:
    return np.cumsum(np.random.default_rng(seed).normal(size=(n, d)), axis=0)


def distances(points: Array) -> Array:
    return np.asarray(squareform(pdist(points)))


# Metric scaling


def test_metric_scaling_is_exact_on_a_plane() -> None:
    found = metric_scaling(distances(walk(30, 2)))
    assert found.converged
    assert found.stress < 1e-12


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


def test_metric_scaling_follows_the_unit_and_stands_points_that_are_equal() -> None:
    wanted = distances(walk(10, 4))
    assert_allclose(metric_scaling(wanted * 2.0**600).points, metric_scaling(wanted).points * 2.0**600, rtol=1e-9)
    assert not metric_scaling(np.zeros((4, 4))).points.any()
    assert metric_scaling(wanted).points.tobytes() == metric_scaling(wanted).points.tobytes()


def test_what_are_no_distances_is_refused() -> None:
    for function in (metric_scaling, diffusion_potential):
        with pytest.raises(ToposcopeError, match=r"distances: expected an \(n, n\) matrix of distances, got"):
            function(np.ones((3, 3)))


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


def test_no_more_neighbours_are_taken_than_there_are() -> None:
    D = distances(walk(4, 2))
    assert_array_equal(diffusion_potential(D, n_neighbours=9).operator, diffusion_potential(D, n_neighbours=3).operator)


@pytest.mark.parametrize("options", [{"decay": 0.0}, {"floor": 0.0}, {"time": 0}, {"n_neighbours": 0}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ToposcopeError, match=next(iter(options))):
        diffusion_potential(distances(walk(5, 2)), **options)  # type: ignore[arg-type]


def test_two_points_have_no_neighbourhoods() -> None:
    with pytest.raises(ToposcopeError, match="at least 3 points"):
        diffusion_potential(distances(walk(2, 2)))
