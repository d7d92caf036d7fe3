"""The recalibration: monotone, neutral where the bootstrap is right, and mending where it is too sure."""

import numpy as np
import pytest
import scipy.special  # noqa: F401 - imported where it is used, which would count as the time of a first example
from hypothesis import given
from hypothesis import strategies as st

from toposcope.forecasting.decision.calibration import ASSUMED, Calibration, calibration_of
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import ScalingLaw, scaling_law

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)
margins = st.lists(st.floats(-1, 1), min_size=2, max_size=20)


def test_without_a_blur_it_is_the_share_of_the_laws() -> None:
    found = np.array([[0.1, 0.2, -0.1, 0.3], [-1, -1, -1, 0]])
    assert Calibration(0.0).probability(found).tolist() == [0.75, 0.125]
    assert Calibration(1e-9).probability([0.1, 0.2, -0.1, 0.3]) == pytest.approx(0.75)


def test_a_larger_blur_is_less_sure() -> None:
    said = [float(Calibration(blur).probability([0.02, 0.03])) for blur in (0, 0.01, 0.1, 1.0)]
    assert said == sorted(said, reverse=True)
    assert said[-1] == pytest.approx(0.5, abs=0.02)


def runs_off_the_law(n: int, scatter: float, seed: int = 0) -> Points:
    """Runs of one point; each is off the law by its own error."""
    draw = np.random.default_rng(seed)
    N = np.exp(draw.uniform(np.log(2e7), np.log(3e9), n))
    D = N * np.exp(draw.uniform(np.log(3), np.log(300), n))
    return Points(N, D, LAW.loss(N, D) + scatter * draw.normal(size=n))


@pytest.mark.parametrize("scatter", [0.003, 0.03, 0.1])
def test_the_scatter_of_runs_shows_in_their_residuals(scatter: float) -> None:
    found = [calibration_of(scaling_law(runs_off_the_law(60, scatter, s), resamples=0)).scatter for s in range(3)]
    assert np.median(found) == pytest.approx(scatter, rel=0.25)


def test_the_blur_shrinks_with_the_number_of_runs() -> None:
    """Of runs that lie on their law: at 7 it is mostly assumed, at 60 there is hardly any."""
    found = [calibration_of(scaling_law(runs_off_the_law(n, 1e-5), resamples=0)) for n in (7, 12, 20, 60)]
    blurs = [each.blur for each in found]
    assert ASSUMED.blur > blurs[0] > blurs[1] > blurs[2] > blurs[3]
    assert blurs[3] < 0.2 * ASSUMED.blur
    assert [each.degrees_of_freedom for each in found] == pytest.approx([4, 9, 17, 57], abs=1e-6)


def test_some_runs_far_off_the_law_do_not_widen_the_blur_of_all() -> None:
    points = runs_off_the_law(60, 0.005)
    loss = points.loss.copy()
    loss[::7] += 0.2
    far = calibration_of(scaling_law(Points(points.N, points.D, loss), resamples=0))
    assert far.scatter < 0.01  # by the mean of the absolute values it would be 0.04


def test_points_along_few_runs_show_the_scatter_of_the_runs() -> None:
    """Ten runs of twenty points, each run off the law by 0.04 nats: not two hundred free residuals."""
    draw = np.random.default_rng(0)
    N, D = np.repeat(np.geomspace(5e7, 2e9, 10), 20), np.tile(np.geomspace(4e9, 4e11, 20), 10)
    off = np.repeat(0.04 * draw.normal(size=10), 20)
    names = np.repeat([f"run {i}" for i in range(10)], 20)
    found = calibration_of(scaling_law(Points(N, D, LAW.loss(N, D) + off, names), resamples=0))
    assert 5 < found.degrees_of_freedom - ASSUMED.degrees_of_freedom < 10
    assert found.scatter == pytest.approx(0.04, rel=0.5)


@given(margins, st.floats(0, 1), st.sampled_from([5.0, np.inf]), st.floats(0, 1), st.integers(0, 19), st.floats(0, 1))
def test_a_probability_rises_with_the_margins_and_treats_both_arms_alike(
    found: list[float], blur: float, freedom: float, narrowing: float, place: int, more: float
) -> None:
    calibration = Calibration(blur, freedom, narrowing)
    higher = np.array(found)
    higher[place % len(found)] += more
    assert calibration.probability(found) <= calibration.probability(higher) + 1e-12
    assert calibration.probability(np.negative(found)) == pytest.approx(1 - calibration.probability(found))


def test_a_bootstrap_is_narrowed_less_the_more_runs_there_are() -> None:
    found = [calibration_of(scaling_law(runs_off_the_law(n, 0.01), resamples=0)).narrowing for n in (7, 10, 40)]
    assert found == pytest.approx([np.sqrt((n - 5) / n) for n in (7, 10, 40)])


def test_few_runs_leave_heavy_tails() -> None:
    few, many = Calibration(0.02, 4.0), Calibration(0.02)
    assert float(few.probability([0.08])) < float(many.probability([0.08])) - 0.005


@pytest.mark.slow
@pytest.mark.parametrize("scatter", [0.004, 0.03])
@pytest.mark.parametrize("n", [10, 40])
def test_probabilities_hold_on_runs_that_were_not_seen(n: int, scatter: float) -> None:
    """Pairs of other runs, the larger on no more compute; never surer than right by more than chance."""
    sets = []
    for seed in range(6):
        points = runs_off_the_law(n + 60, scatter, seed)
        seen = np.arange(len(points)) < n
        fitted = scaling_law(points.where(seen), resamples=60)
        others = points.where(~seen)
        size, compute = others.N / others.N[:, None], others.C / others.C[:, None]
        one, other = np.nonzero((size >= 1.3) & (compute <= 1) & (compute >= 0.05))
        losses = np.stack([law.loss(others.N, others.D) for law in fitted.bootstrap], axis=1)
        won = others.loss[one] > others.loss[other]
        sets.append((calibration_of(fitted).probability(losses[one] - losses[other]), won))
    p, won = (np.concatenate(column) for column in zip(*sets, strict=True))
    surely = np.maximum(p, 1 - p)
    right = (p > 0.5) == won
    for low, high in ((0.6, 0.8), (0.8, 0.95), (0.95, 1.01)):
        inside = (surely >= low) & (surely < high)
        assert right[inside].mean() > surely[inside].mean() - 0.1, (low, right[inside].mean())
