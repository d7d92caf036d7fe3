"""Plans for a budget against brute force, with the intervals and warnings they carry."""
# ruff: noqa: SIM300 - N and D are no constants

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import minimize_scalar

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.planner import (
    BORROWED,
    R_D,
    R_N,
    best_for_budget,
    cheapest_for_loss,
    optimal_parameters,
    optimal_split,
    over_training,
    plan,
    plan_repeated,
    repeated_loss,
    tokens_for,
    worth,
)
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law

LAW = ScalingLaw(1.8172, 477.8, 2143.0, 0.3473, 0.3672)
C = 1e21
FINE = np.geomspace(1e5, 1e13, 400_001)
"""Parameters; neighbours differ by 5e-5."""

laws = st.builds(
    lambda E, at_n, at_d, alpha, beta: ScalingLaw(E, at_n * 1e9**alpha, at_d * 2e10**beta, alpha, beta),
    st.floats(0.5, 2.5),
    st.floats(0.1, 1),
    st.floats(0.1, 1),
    st.floats(0.2, 0.7),
    st.floats(0.2, 0.7),
)


@pytest.fixture(scope="module")
def fitted() -> FittedScalingLaw:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(1e9, 3e11, 6)))
    loss = LAW.loss(N, D) * np.exp(np.random.default_rng(0).normal(0, 4e-3, len(N)))
    return scaling_law(Points(N, D, loss), resamples=200)


@given(laws, st.floats(18, 25))
@examples(30)
def test_the_closed_form_is_the_minimum(law: ScalingLaw, log_c: float) -> None:
    budget = 10**log_c
    N, D = optimal_split(law, budget)
    assert 6 * N * D == pytest.approx(budget)

    def loss(log_n: float) -> float:
        return float(law.loss(np.exp(log_n), budget / (6 * np.exp(log_n))))

    found = minimize_scalar(loss, bounds=(0, 45), method="bounded", options={"xatol": 1e-10})
    assert loss(np.log(N)) <= found.fun * (1 + 1e-14)
    assert np.log(N) == pytest.approx(found.x, abs=1e-4)
    assert float(law.score(N, D)) == pytest.approx(0, abs=1e-9)
    assert optimal_parameters(law, D) == pytest.approx(N)


def test_a_plan_carries_intervals_and_warnings(fitted: FittedScalingLaw) -> None:
    found = plan(fitted, C)
    N, D = optimal_split(fitted.law, C)
    assert (found.N.value, found.D.value, found.tokens_per_parameter.value) == (N, D, D / N)
    assert found.loss.value == fitted.law.loss(N, D)
    truth = optimal_split(LAW, C)
    for interval, true in ((found.N, truth[0]), (found.D, truth[1]), (found.loss, float(LAW.loss(*truth)))):
        assert interval.low < interval.value < interval.high
        assert interval.low < true < interval.high
    assert found.beyond == {"N": 1, "D": 1, "C": 1}
    assert found.remarks == ()
    narrow = plan(fitted, C, level=0.5)
    assert narrow.N.high - narrow.N.low < found.N.high - found.N.low


def test_extrapolation_is_told(fitted: FittedScalingLaw) -> None:
    far = plan(fitted, 1e25)
    assert far.beyond["C"] == pytest.approx(1e25 / (6 * 1e10 * 3e11))
    assert any(
        "extrapolated in compute: 1e+25 is 556 times beyond the points (up to 1.8e+22)" in r for r in far.remarks
    )
    assert any("a guess" in remark for remark in far.remarks)
    assert far.loss.high - far.loss.low > plan(fitted, C).loss.high - plan(fitted, C).loss.low
    small = plan(fitted, 1e17)
    assert small.beyond["C"] == pytest.approx(6 * 1e8 * 1e9 / 1e17)
    assert any("(from 6e+17)" in remark for remark in small.remarks)
    bare = plan(FittedScalingLaw(fitted.law, (), {}, 0.0, fitted.points), C)
    assert np.isnan(bare.loss.low)
    assert "no interval" in bare.remarks[-1]


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0, 4.0])
def test_over_training(k: float) -> None:
    N, D = optimal_split(LAW, C)
    found = over_training(LAW, C, k)
    assert found.N == N / k
    assert float(LAW.loss(found.N, found.D_same_loss)) == pytest.approx(float(LAW.loss(N, D)))
    assert found.extra_compute == pytest.approx(6 * found.N * found.D_same_loss / C - 1)
    assert 6 * found.N * found.D_same_compute == pytest.approx(C)
    assert found.extra_loss == pytest.approx(float(LAW.loss(found.N, k * D) - LAW.loss(N, D)))
    if k == 1:
        assert (found.extra_compute, found.extra_loss) == pytest.approx((0, 0), abs=1e-9)
    else:
        assert found.extra_compute > 0
        assert found.extra_loss > 0


def test_a_model_too_small_never_has_the_loss() -> None:
    assert over_training(LAW, C, 100).extra_compute == np.inf
    assert tokens_for(LAW, 1e6, 2.0) == np.inf


def test_repeated_tokens_are_worth_less_and_less() -> None:
    assert worth(1e9, 2e9, R_D) == 1e9
    assert worth(2e9, 1e9, R_D) == pytest.approx(1e9 + 1e9 * R_D * (1 - np.exp(-1 / R_D)))
    assert worth(1e15, 1e9, R_D) == pytest.approx(1e9 * (1 + R_D))
    assert worth(4e9, 1e9, R_D) > 0.9 * 4e9  # four epochs are nearly as good as fresh data
    assert repeated_loss(LAW, 1e8, 1e10, 1e10) == pytest.approx(float(LAW.loss(1e8, 1e10)))


@given(laws, st.floats(19, 23), st.floats(-3, -0.05))
@examples(25)
def test_repeated_data_by_brute_force(law: ScalingLaw, log_c: float, log_share: float) -> None:
    budget = 10**log_c
    unique = optimal_split(law, budget)[1] * 10**log_share
    found = plan_repeated(law, budget, unique)
    N = np.geomspace(found.N / 30, found.N * 30, 4001)
    losses = np.array([repeated_loss(law, float(n), budget / (6 * float(n)), unique) for n in N])
    assert found.loss <= losses.min() * (1 + 1e-12)
    assert losses.min() == pytest.approx(found.loss, rel=1e-5)
    assert 6 * found.N * found.D == pytest.approx(budget)
    assert found.epochs == pytest.approx(found.D / unique)
    assert found.epochs > 1
    assert found.loss > found.loss_of_fresh_data
    assert found.remarks == (BORROWED,)


def test_enough_unique_tokens_change_nothing() -> None:
    N, D = optimal_split(LAW, C)
    found = plan_repeated(LAW, C, 2 * D)
    assert (found.N, found.D, found.epochs) == pytest.approx((N, D, 0.5))
    assert found.remarks == ()
    assert plan_repeated(LAW, C, D * (1 - 1e-9)).N == pytest.approx(N, rel=1e-6)
    assert worth(2.0, 1.0, R_N) < worth(2.0, 1.0, R_D)


@given(laws, st.floats(19, 23), st.floats(8, 13))
@examples(25)
def test_inference_within_a_budget_by_brute_force(law: ScalingLaw, log_c: float, log_used: float) -> None:
    budget, used = 10**log_c, 10**log_used
    found = best_for_budget(law, budget, used)
    D = (budget / FINE - 2 * used) / 6
    losses = law.loss(FINE[D > 0], D[D > 0])
    assert found.flops == pytest.approx(budget)
    assert found.loss <= losses.min() * (1 + 1e-12)
    assert losses.min() == pytest.approx(found.loss, rel=1e-6)
    assert found.N < optimal_split(law, budget)[0]


@given(laws, st.floats(19, 23), st.floats(8, 13))
@examples(25)
def test_inference_for_a_loss_by_brute_force(law: ScalingLaw, log_c: float, log_used: float) -> None:
    used = 10**log_used
    best = optimal_split(law, 10**log_c)
    loss = float(law.loss(*best))
    found = cheapest_for_loss(law, loss, used)
    left = loss - law.E - law.A * FINE**-law.alpha
    N = FINE[left > 0]
    D = (left[left > 0] / law.B) ** (-1 / law.beta)
    costs = 6 * N * D + 2 * N * used
    assert found.loss == pytest.approx(loss)
    assert found.flops <= costs.min() * (1 + 1e-9)
    assert costs.min() == pytest.approx(found.flops, rel=1e-4)
    assert found.N < best[0]
    assert found.flops <= 10**log_c + 2 * best[0] * used


def test_without_inference_it_is_the_plain_optimum() -> None:
    N, D = optimal_split(LAW, C)
    within, cheapest = best_for_budget(LAW, C, 0), cheapest_for_loss(LAW, float(LAW.loss(N, D)), 0)
    assert (within.N, within.D) == pytest.approx((N, D))
    assert (cheapest.N, cheapest.D) == pytest.approx((N, D))


def test_impossible_wishes_are_told(fitted: FittedScalingLaw) -> None:
    for wish, why in (
        (lambda: plan(fitted, -1), "budget: -1 given"),
        (lambda: plan(fitted, C, level=1), "level: 1 given"),
        (lambda: over_training(LAW, C, 0), "k: 0 given"),
        (lambda: plan_repeated(LAW, C, np.nan), "unique tokens: nan given"),
        (lambda: cheapest_for_loss(LAW, 1.8, 1e9), "no model gets below E = 1.817"),
        (lambda: best_for_budget(LAW, C, -1), "inference tokens: -1 given"),
    ):
        with pytest.raises(ToposcopeError, match=why):
            wish()
