"""The fit of L(N, D): known laws found again, from any start, whatever the order and the units, or a refusal."""

from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import approx_fprime

from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling import law_search
from toposcope.forecasting.scaling.law_search import Problem, descend, optima, starts
from toposcope.forecasting.scaling.planner import optimal_split, plan
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import NAMES, FittedScalingLaw, ScalingLaw, scaling_law

TRUE = ScalingLaw(1.8, 400, 2000, 0.34, 0.37)
SIZES, TOKENS = np.geomspace(1e8, 1e10, 8), np.geomspace(1e9, 3e11, 5)


def grid(law: ScalingLaw = TRUE, noise: float = 0.0, seed: int = 0) -> Points:
    N, D = (axis.ravel() for axis in np.meshgrid(SIZES, TOKENS))
    error = np.random.default_rng(seed).normal(0, 1, len(N))
    return Points(N, D, law.loss(N, D) * np.exp(noise * error))


def as_row(law: ScalingLaw) -> list[float]:
    return [getattr(law, name) for name in NAMES]


def fitted(points: Points, resamples: int = 0) -> FittedScalingLaw:
    return scaling_law(points, resamples=resamples)


@pytest.mark.slow
@given(
    E=st.floats(0.1, 3),
    at_n=st.floats(0.05, 1),
    at_d=st.floats(0.05, 1),
    alpha=st.floats(0.1, 0.9),
    beta=st.floats(0.1, 0.9),
)
@examples(40)
def test_laws_are_found_again(E: float, at_n: float, at_d: float, alpha: float, beta: float) -> None:
    law = ScalingLaw(E, at_n * 1e9**alpha, at_d * 2e10**beta, alpha, beta)
    assert as_row(fitted(grid(law)).law) == pytest.approx(as_row(law), rel=1e-5)


def test_a_wide_range_is_no_trouble() -> None:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e3, 1e13, 12), np.geomspace(1e3, 1e15, 12)))
    assert as_row(fitted(Points(N, D, TRUE.loss(N, D))).law) == pytest.approx(as_row(TRUE), rel=1e-6)


def test_outliers_hardly_move_it() -> None:
    points = grid(noise=1e-3)
    loss = points.loss.copy()
    loss[[3, 17, 30]] *= 1.5
    moved = fitted(Points(points.N, points.D, loss)).law
    assert as_row(moved)[3:] == pytest.approx(as_row(TRUE)[3:], abs=0.03)


@pytest.mark.slow
def test_any_start_leads_to_the_same_optimum() -> None:
    points = grid(noise=5e-3)
    problem, even = Problem.of(points.N, points.D, points.loss), np.ones(len(points))
    everywhere = descend(problem, starts(problem, even).reshape(-1, 5), even[None])
    best = problem.coefficients(optima(problem, even).theta)[0]
    assert everywhere.converged.all()
    np.testing.assert_allclose(problem.coefficients(everywhere.theta), np.tile(best, (400, 1)), rtol=1e-6)


def test_derivatives_are_those_of_the_objective() -> None:
    points = grid(noise=2e-3)
    problem, weights = Problem.of(points.N, points.D, points.loss), np.arange(40.0)[None]
    theta = np.array([-0.5, -1.4, -1.5, 0.3, 0.4])
    _, gradient, hessian = law_search._derivatives(problem, theta[None], weights)

    def slope(at: np.ndarray) -> np.ndarray:
        row: np.ndarray = law_search._derivatives(problem, at[None], weights)[1][0]
        return row

    numeric = approx_fprime(theta, lambda at: float(law_search.values(problem, at[None], weights)[0]), 1e-8)
    np.testing.assert_allclose(gradient[0], numeric, rtol=1e-5)
    np.testing.assert_allclose(hessian[0], approx_fprime(theta, slope, 1e-9), rtol=1e-3, atol=1e-4)


def test_the_gradient_vanishes_at_the_optimum() -> None:
    points = grid(noise=5e-3)
    problem, even = Problem.of(points.N, points.D, points.loss), np.ones((1, len(points)))
    found = optima(problem, even[0])
    gradient = law_search._derivatives(problem, found.theta[:1], even)[1]
    at_start = law_search._derivatives(problem, starts(problem, even[0])[0, :1], even)[1]
    assert np.abs(gradient).max() < 1e-6 * np.abs(at_start).max()


def test_order_names_and_copies_are_immaterial() -> None:
    points = grid(noise=5e-3)
    shuffled = np.random.default_rng(1).permutation(len(points))
    there = fitted(points, 50)
    other = Points(points.N[shuffled], points.D[shuffled], points.loss[shuffled])
    again = fitted(other, 50)
    assert again.law == there.law
    assert again.bootstrap == there.bootstrap
    twice = Points(np.tile(points.N, 2), np.tile(points.D, 2), np.tile(points.loss, 2))
    assert as_row(fitted(twice).law) == pytest.approx(as_row(there.law), rel=1e-6)


def test_units_only_change_the_coefficients() -> None:
    points = grid(noise=5e-3)
    law = fitted(points).law
    other = fitted(Points(points.N / 1e6, points.D / 1e9, points.loss / np.log(2))).law
    there = [law.E / np.log(2), law.A * 1e6**-law.alpha / np.log(2), law.B * 1e9**-law.beta / np.log(2)]
    assert as_row(other) == pytest.approx([*there, law.alpha, law.beta], rel=1e-6)


@pytest.mark.slow
def test_standard_errors_are_those_of_new_data() -> None:
    laws = np.array([as_row(fitted(grid(noise=5e-3, seed=seed)).law) for seed in range(40)])
    errors = np.array([fitted(grid(noise=5e-3, seed=seed), 200).standard_errors["alpha"] for seed in range(3)])
    assert 0.6 < np.median(errors) / laws[:, 3].std(ddof=1) < 1.6


@pytest.mark.slow
def test_runs_are_resampled_whole() -> None:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 12), TOKENS))
    random = np.random.default_rng(2)
    offset = np.tile(0.01 * random.normal(size=12), len(TOKENS))  # what all points of a run share
    loss, run = TRUE.loss(N, D) * np.exp(5e-3 * random.normal(size=60) + offset), np.tile(np.arange(12), len(TOKENS))
    by_run = fitted(Points(N, D, loss, run.astype(str)), 300)
    by_point = fitted(Points(N, D, loss), 300)
    assert by_run.standard_errors["alpha"] > 1.3 * by_point.standard_errors["alpha"]
    assert any("only 12 runs" in remark for remark in by_run.remarks)
    assert any("without a cool-down" in remark for remark in by_run.remarks)


def test_no_floor_is_told() -> None:
    found = fitted(grid(ScalingLaw(0, 400, 2000, 0.34, 0.37)))
    assert found.law.E == 0
    assert as_row(found.law)[1:] == pytest.approx(as_row(TRUE)[1:], rel=1e-6)
    assert any("do not show a floor" in remark for remark in found.remarks)
    N, D = grid().N, grid().D
    sinking = fitted(Points(N, D, 6 - 0.08 * np.log(N) - 0.1 * np.log(D)))  # the best law would have E < 0
    assert sinking.law.E == 0


def few_runs(n: int, scatter: float, seed: int) -> tuple[ScalingLaw, Points]:
    """Return a law, and losses of a few runs about it."""
    random = np.random.default_rng([n, seed, round(1e5 * scatter)])
    alpha, beta = random.uniform(0.22, 0.5, 2).tolist()
    law = ScalingLaw(random.uniform(0.8, 2.2), np.exp(random.uniform(3, 7)), np.exp(random.uniform(4, 8)), alpha, beta)
    N = 5e7 * 2.0 ** np.concatenate([[0, 2, 4], random.integers(0, 5, n - 3)])[:n]
    D = N * np.exp(random.uniform(np.log(5), np.log(150), n))
    return law, Points(N, D, law.loss(N, D) + scatter * random.normal(size=n))


@pytest.mark.slow
def test_few_runs_give_intervals_that_hold_or_a_reason() -> None:
    held: dict[float, list[tuple[bool, ...]]] = {0.001: [], 0.005: [], 0.02: []}
    for scatter, n, seed in product(held, range(3, 9), range(5)):
        law, points = few_runs(n, scatter, seed)
        try:
            found = fitted(points, 200)
        except RefusedError as refusal:
            assert n >= 5 or "it needs 5" in str(refusal)  # noqa: PT017
            continue
        assert n >= 5
        assert np.isfinite([*found.standard_errors.values()]).all()
        best = plan(found, 30 * points.C.max())
        N, D = optimal_split(law, best.budget_flops)
        truth = (N, D, float(law.loss(N, D)), D / N)
        intervals = (best.N, best.D, best.loss, best.tokens_per_parameter)
        held[scatter].append(tuple(each.low <= true <= each.high for each, true in zip(intervals, truth, strict=True)))
        assert ("not identifiable" in best.undetermined) == (best.N.high > 30 * best.N.low)
    assert all(len(each) >= 12 for each in held.values())
    assert (np.mean([*chain(*held.values())], axis=0) >= 0.9).all()
    assert all((np.mean(each, axis=0) >= 0.7).all() for each in held.values())  # of four times the assumed scatter, too


def test_where_resamples_determine_no_law_a_posterior_does() -> None:
    N, D = np.array([[1e8, 1e9], [1e9, 1e10], [1e10, 1e11], [1e8, 1e11], [1e10, 1e9]]).T
    found = fitted(Points(N, D, TRUE.loss(N, D)), 100)
    assert found.is_posterior
    assert len(found.bootstrap) == 100
    alphas = np.quantile([law.alpha for law in found.bootstrap], (0.05, 0.95))
    assert alphas[0] < TRUE.alpha < alphas[1]
    assert any("five points for five parameters" in remark for remark in found.remarks)
    assert any("only 5 runs: intervals are of laws that agree with them" in remark for remark in found.remarks)
    # as many runs as a bootstrap takes, but ten of them at one place
    again = np.concatenate([np.zeros(10, dtype=int), np.arange(1, 5)])
    assert fitted(Points(N[again], D[again], TRUE.loss(N, D)[again]), 100).is_posterior
    assert not fitted(grid(noise=5e-3), 20).is_posterior


@pytest.mark.slow
def test_few_noisy_points_are_no_trouble() -> None:
    for seed in range(2):
        random = np.random.default_rng(seed)
        N = np.exp(random.uniform(np.log(5e7), np.log(1e10), 9))
        D = N * np.exp(random.uniform(0, 5, 9))
        try:
            found = fitted(Points(N, D, TRUE.loss(N, D) * np.exp(0.03 * random.standard_t(3, 9))), 100)
        except RefusedError:
            continue
        assert np.isfinite([as_row(law) for law in found.bootstrap]).all()
        assert any("only 9 runs" in remark for remark in found.remarks)


N8 = np.geomspace(1e8, 1e10, 8)


@pytest.mark.parametrize(
    ("N", "D", "why"),
    [
        (N8[:4], N8[:4], "only 4 different points"),
        (np.tile(N8[:2], 4), np.tile(N8[:2], 4), "only 2 different points"),
        (np.full(8, 1e9), N8, "only 1 size:"),
        (np.repeat(N8[:2], 4), np.tile(N8[:4], 2), "only 2 sizes:"),
        (N8, np.full(8, 1e10), "only 1 number of tokens"),
        (N8, 20 * N8, "cannot be separated"),
        (N8, np.round(20 * N8**1.1), "cannot be separated"),
    ],
)
def test_points_that_cannot_tell_are_refused(N: np.ndarray, D: np.ndarray, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        fitted(Points(N, D, TRUE.loss(N, D)))


def test_losses_that_follow_no_law_are_refused() -> None:
    points = grid()
    for loss, why in [
        (np.full(40, 3.0), "the same at every point"),
        (TRUE.E + TRUE.B * points.D**-TRUE.beta + 0.01 * np.log(points.N), "does not fall as a power of parameters"),
        (TRUE.E + TRUE.A * points.N**-TRUE.alpha + 0.01 * np.log(points.D), "does not fall as a power of tokens"),
        (TRUE.E + TRUE.B * points.D**-TRUE.beta + (points.N / 1e8) ** -6, "at the smallest ones only"),
    ]:
        with pytest.raises(RefusedError, match=why):
            fitted(Points(points.N, points.D, loss))


def test_families_are_not_mixed() -> None:
    points = grid()
    mixed = Points(points.N, points.D, points.loss, family=np.array(["one", "other"] * 20))
    with pytest.raises(RefusedError, match="2 families"):
        fitted(mixed)
    one = fitted(mixed.where(mixed.family == "one"))
    assert as_row(one.law) == pytest.approx(as_row(TRUE), rel=1e-6)


def test_score_is_nought_where_parameters_and_tokens_bring_the_same() -> None:
    N, D = 1e9, 2e10
    more_n, more_d = TRUE.loss(N * 1.0001, D), TRUE.loss(N, D * 1.0001)
    assert (TRUE.score(N, D) > 0) == (more_n < more_d)
    ratio = (TRUE.loss(N, D) - more_n) / (TRUE.loss(N, D) - more_d)
    assert float(TRUE.score(N, D)) == pytest.approx(float(np.log(ratio)), abs=1e-3)
