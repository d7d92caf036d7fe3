"""Plans for a budget against brute force, with the intervals and warnings they carry."""
# ruff: noqa: SIM300 - N and D are no constants

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import minimize_scalar

from toposcope.errors import ToposcopeError
from toposcope.forecasting.scaling.planner import (
    optimal_split,
    plan,
)
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law

LAW = ScalingLaw(1.8172, 477.8, 2143.0, 0.3473, 0.3672)
C = 1e21

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


def test_the_best_size_allows_for_what_the_law_misses() -> None:
    N, D = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e8, 1e10, 8), np.geomspace(1e9, 3e11, 6)))
    bent = LAW.loss(N, D) + 0.02 * np.sin(1.5 * np.log(D))  # common to all points of equal tokens: no run shows it
    fitted = scaling_law(Points(N, D, bent), resamples=100)
    found, alone = plan(fitted, C), plan(replace(fitted, parts=()), C)
    assert found.loss == alone.loss
    assert np.log(found.N.high / found.N.low) > 2 * np.log(alone.N.high / alone.N.low)
    assert found.N.low < optimal_split(LAW, C)[0] < found.N.high
    assert (found.D.low, found.D.high) == pytest.approx((C / 6 / found.N.high, C / 6 / found.N.low))
    exact = scaling_law(Points(N, D, LAW.loss(N, D)), resamples=20)
    assert plan(exact, C).N.high / plan(exact, C).N.low == pytest.approx(1, abs=1e-3)


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


def test_impossible_wishes_are_told(fitted: FittedScalingLaw) -> None:
    with pytest.raises(ToposcopeError, match="budget: -1 given"):
        plan(fitted, -1)
    with pytest.raises(ToposcopeError, match="level: 1 given"):
        plan(fitted, C, level=1)
