"""Association within a run: against SciPy, against known answers, and on series whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from scipy.stats.mstats import spearmanr as masked_spearmanr

from toposcope.analysis.association import associate, bootstrap_interval, holm, partial_spearman, verdict

RNG = np.random.default_rng(7)


def test_rho_and_p_are_scipys() -> None:
    x, y = RNG.normal(size=40), RNG.normal(size=40)
    found = associate(x, y, {"step": np.arange(40.0)}, seed=1)
    rho, p = spearmanr(x, y)
    assert [found.rho, found.p, found.n] == pytest.approx([rho, p, 40])
    assert found.clocks["step"] == pytest.approx(masked_spearmanr(np.arange(40), y)[0])


def test_one_control_is_the_textbook_formula() -> None:
    x, y, z = RNG.normal(size=(3, 60))
    xy, xz, yz = (spearmanr(a, b)[0] for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    assert partial_spearman(x, y, [z]).rho == pytest.approx(expected)


def test_two_controls_are_the_inverse_correlation_matrix() -> None:
    data = RNG.normal(size=(4, 60))
    precision = np.linalg.inv(spearmanr(data.T)[0])
    expected = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    assert partial_spearman(data[0], data[1], [data[2], data[3]]).rho == pytest.approx(expected)


def test_a_repeated_control_changes_nothing() -> None:
    x, y, z = RNG.normal(size=(3, 30))
    once, twice = partial_spearman(x, y, [z]), partial_spearman(x, y, [z, 2 * z + 1])
    assert [twice.rho, twice.p] == pytest.approx([once.rho, once.p])


def test_a_feature_that_is_the_clock_has_no_partial_correlation() -> None:
    step = np.arange(30.0)
    found = partial_spearman(np.exp(step / 10), RNG.normal(size=30), [step])
    assert np.isnan(found.rho)
    assert np.isnan(found.p)


@given(st.integers(0, 2**32 - 1), st.integers(8, 40))
@settings(max_examples=30, deadline=None)
def test_monotone_maps_change_nothing(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, z = rng.normal(size=(3, n))
    plain, mapped = partial_spearman(x, y, [z]), partial_spearman(np.exp(x), y**3, [2 * z])
    assert mapped.rho == pytest.approx(plain.rho)


@pytest.mark.parametrize(("noise", "highest"), [(1.0, 0.11), (20.0, 0.07)])
def test_partial_p_values_without_association(noise: float, highest: float) -> None:
    """The level is nominal where the trend is weak, and up to twice that where it is strong, as the docstring says."""
    step = np.arange(51.0)
    rng = np.random.default_rng(3)
    draws = noise * rng.normal(size=(2000, 2, 51))
    p = np.array([partial_spearman(step + a, -step + b, [step]).p for a, b in draws])
    assert 0.03 < np.mean(p < 0.05) < highest


def test_bootstrap_interval_holds_the_point_and_repeats() -> None:
    x = RNG.normal(size=50)
    y = x + RNG.normal(size=50)
    low, high = bootstrap_interval(x, y, seed=5)
    assert low < spearmanr(x, y)[0] < high
    assert bootstrap_interval(x, y, seed=5) == (low, high)
    assert bootstrap_interval(x, y, seed=6) != (low, high)


def test_unknown_checkpoints_are_left_out() -> None:
    x, y = RNG.normal(size=(2, 20))
    x[3] = y[7] = np.nan
    known = np.isfinite(x) & np.isfinite(y)
    found = associate(x, y, {"step": np.arange(20.0), "weight_norm": np.full(20, np.nan)}, seed=0)
    assert found.n == 18
    assert found.rho == pytest.approx(spearmanr(x[known], y[known])[0])
    assert set(found.clocks) == {"step"}


@pytest.mark.parametrize("feature", [np.ones(20), np.full(20, np.nan)])
def test_constant_and_unknown_features_have_no_rho(feature: np.ndarray) -> None:
    assert np.isnan(associate(feature, RNG.normal(size=20), {"step": np.arange(20.0)}, seed=0).rho)


def test_holm_by_hand() -> None:
    found = holm(np.array([0.01, np.nan, 0.04, 0.03]))
    np.testing.assert_allclose(found, [0.03, np.nan, 0.06, 0.06])


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((4, 0.9, 0.01, 0.01, 0.01), "too few"),
        ((9, np.nan, np.nan, np.nan, np.nan), "constant"),
        ((9, 0.1, 0.6, 0.01, 0.01), "none"),
        ((9, 0.9, 0.001, np.nan, np.nan), "trend only"),
        ((9, 0.9, 0.001, 0.01, 0.2), "trend only"),
        ((9, 0.9, 0.001, 0.01, 0.02), "undecided"),
    ],
)
def test_the_rule(numbers: tuple[int, float, float, float, float], expected: str) -> None:
    assert verdict(*numbers) == expected


def test_a_clock_is_trend_and_information_is_not() -> None:
    """The two must not be confused: a drifting feature, and one that follows the loss around its drift."""
    rng = np.random.default_rng(11)
    step = np.arange(51.0)
    wiggle = rng.normal(size=51)
    loss = -step / 10 + wiggle
    clock, informed = step + rng.normal(size=51), step / 10 + wiggle + 0.1 * rng.normal(size=51)
    found = [associate(f, loss, {"step": step}, seed=0) for f in (clock, informed)]
    verdicts = [verdict(a.n, a.rho, a.p, a.given_step.p, a.given_all.p) for a in found]
    assert verdicts[0] == "trend only"
    assert found[1].given_step.p < 1e-10
