"""Three ways to the exponents of compute-optimal models, on points of a known law."""

import numpy as np
import pytest

from toposcope.forecasting.decision.figure import budgets_of, isoflop
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.scaling.frontier import by_envelope, by_law, by_parabolas
from toposcope.forecasting.scaling.planner import optimal_split
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law

LAW = ScalingLaw(1.8, 400, 2000, 0.34, 0.40)
A = 0.40 / 0.74
"""Of N* ~ C^a."""


def equal_compute(noise: float = 0.0, uneven: float = 0.0) -> Points:
    """Points of nine sizes around the best one at each of five budgets."""
    random = np.random.default_rng(0)
    budgets = np.repeat(np.geomspace(1e19, 1e21, 5), 9)
    best = np.array([optimal_split(LAW, c)[0] for c in budgets])
    N = best * np.tile(np.geomspace(1 / 4, 4, 9), 5) * 1.3
    C = budgets * np.exp(uneven * random.uniform(-1, 1, len(N)))
    D = C / (6 * N)
    return Points(N, D, LAW.loss(N, D) * np.exp(noise * random.normal(size=len(N))))


def curves() -> Points:
    """Training curves of fifteen sizes."""
    N = np.repeat(np.geomspace(2e7, 2e10, 15), 60)
    D = np.tile(np.geomspace(1e8, 1e12, 60), 15)
    return Points(N, D, LAW.loss(N, D), np.repeat(np.arange(15).astype(str), 60))


def test_all_three_find_the_exponents() -> None:
    ways = (
        by_law(scaling_law(equal_compute(2e-3), resamples=200)),
        by_parabolas(equal_compute(2e-3), resamples=200),
        by_envelope(curves(), resamples=200),
    )
    assert [way.approach for way in ways] == ["law", "parabolas", "envelope"]
    for way in ways:
        assert way.a.value == pytest.approx(A, abs=0.04)
        assert way.a.low < A < way.a.high
        assert way.a.value + way.b.value == pytest.approx(1)
        assert (way.b.low, way.b.high) == pytest.approx((1 - way.a.high, 1 - way.a.low))
        N = optimal_split(LAW, 1e20)[0]
        assert way.optimal_parameters(1e20) == pytest.approx(N, rel=0.2)


def test_parabolas_allow_for_compute_that_is_not_quite_equal() -> None:
    exact, uneven = (by_parabolas(equal_compute(uneven=u), resamples=0) for u in (0.0, 0.08))
    assert uneven.a.value == pytest.approx(exact.a.value, abs=0.01)
    assert len(uneven.C) == 5
    assert np.isnan(uneven.a.low)


def test_parabolas_are_those_of_polyfit() -> None:
    points = equal_compute(2e-3)
    x = np.log(points.N).reshape(5, 9)
    bends = [np.polyfit(row, loss, 2) for row, loss in zip(x, points.loss.reshape(5, 9), strict=True)]
    vertices = [np.exp(-slope / (2 * bend)) for bend, slope, _ in bends]
    np.testing.assert_allclose(by_parabolas(points, resamples=0).N, vertices, rtol=1e-6)


def test_what_the_points_do_not_show_is_refused() -> None:
    with pytest.raises(RefusedError, match="no run has more than one point"):
        by_envelope(equal_compute())
    full = equal_compute()
    small = full.where(np.tile(np.arange(9) < 4, 5))
    with pytest.raises(RefusedError, match="0 budgets have points of equal compute on both sides"):
        by_parabolas(small)
    three = curves()
    with pytest.raises(RefusedError, match="1 sizes are best"):
        by_envelope(three.where(np.isin(three.run, ["4", "6", "8"])))


def test_resamples_without_an_exponent_are_told() -> None:
    few = equal_compute(2e-3).where(np.repeat(np.arange(5) < 3, 9) & np.tile(np.arange(9) % 2 == 0, 5))
    found = by_parabolas(few, resamples=100)
    assert np.isnan(found.a.low)
    assert "there is no interval" in found.remarks[0]


@pytest.fixture(scope="module")
def fitted() -> FittedScalingLaw:
    return scaling_law(equal_compute(2e-3), resamples=100)


def test_a_curve_is_the_law_at_equal_compute(fitted: FittedScalingLaw) -> None:
    found = isoflop(fitted, 1e20)
    N, loss, low, high = (column.to_numpy() for column in found.curve)
    np.testing.assert_allclose(loss, fitted.law.loss(N, 1e20 / (6 * N)))
    lowest = int(loss.argmin())
    assert N[lowest - 1] < found.best.N.value < N[lowest + 1]
    assert (low <= loss).all()
    assert (loss <= high).all()
    assert len(found.points) == 9
    by_hand = np.percentile([float(law.loss(N[7], 1e20 / (6 * N[7]))) for law in fitted.bootstrap], 97.5)
    assert high[7] == pytest.approx(by_hand)


def test_curves_span_the_points(fitted: FittedScalingLaw) -> None:
    budgets = budgets_of(fitted.points)
    assert budgets == pytest.approx(np.geomspace(1e19, 1e21, 5), rel=0.05)
    assert [isoflop(fitted, budget).best.budget_flops for budget in budgets] == list(budgets)
    bare = isoflop(FittedScalingLaw(fitted.law, (), {}, 0.0, fitted.points), 1e20)
    assert bare.curve["low"].is_nan().all()
