"""Ranks, partial correlations, effective sizes and blocks: against formulas written out, and on known processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from scipy.signal import lfilter
from scipy.stats import rankdata, spearmanr

from toposcope.analysis.ranks import (
    Correlations,
    autocorrelation,
    block_draws,
    block_length,
    dense_ranks,
    effective_size,
    mid_ranks,
    partial,
    ranks,
    single_draws,
)
from toposcope.kernels.resampled_ranks import RANK_LANES, resampled_spearman

RNG = np.random.default_rng(7)
Vector = NDArray[np.float64]


def given_controls(x: Vector, y: Vector, *controls: Vector) -> Correlations:
    return partial(np.atleast_2d(ranks(x)), ranks(y), ranks(np.array(controls)))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
@examples(40)
def test_ranks_are_scipys(n: int, distinct: int, seed: int) -> None:
    """With ties, and with unknown values, which are not ranked."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, distinct, (2, 3, n)).astype(float)
    values[0, 0, 0] = np.inf
    gaps = np.where(rng.random(values.shape) < 0.2, np.nan, values)
    np.testing.assert_array_equal(mid_ranks(gaps), rankdata(gaps, axis=-1, nan_policy="omit"))
    np.testing.assert_array_equal(dense_ranks(values), rankdata(values, method="dense", axis=-1) - 1)
    np.testing.assert_array_equal(ranks(gaps), rankdata(gaps, axis=-1) - (n + 1) / 2)


def test_one_control_is_the_textbook_formula() -> None:
    x, y, z = RNG.normal(size=(3, 60))
    xy, xz, yz = (spearmanr(a, b)[0] for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    assert given_controls(x, y, z).rho[0] == pytest.approx(expected)


def test_two_controls_are_the_inverse_correlation_matrix() -> None:
    data = RNG.normal(size=(4, 60))
    precision = np.linalg.inv(spearmanr(data.T)[0])
    expected = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    assert given_controls(data[0], data[1], data[2], data[3]).rho[0] == pytest.approx(expected)


def test_a_repeated_control_changes_nothing() -> None:
    x, y, z = RNG.normal(size=(3, 30))
    once, twice = given_controls(x, y, z), given_controls(x, y, z, 2 * z + 1)
    assert [*twice.rho, *twice.p] == pytest.approx([*once.rho, *once.p])


def test_a_feature_that_is_the_clock_has_no_partial_correlation() -> None:
    step = np.arange(30.0)
    found = given_controls(np.exp(step / 10), RNG.normal(size=30), step)
    assert np.isnan(found.rho[0])
    assert np.isnan(found.p[0])


@given(st.integers(0, 2**32 - 1), st.integers(8, 40))
@examples(30)
def test_monotone_maps_change_nothing(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, z = rng.normal(size=(3, n))
    plain, mapped = given_controls(x, y, z), given_controls(np.exp(x), y**3, 2 * z)
    assert mapped.rho[0] == pytest.approx(plain.rho[0])


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.7, 0.9])
def test_p_values_without_association_keep_their_level(phi: float) -> None:
    """Also where what is left of both drifts: independent checkpoints would reject up to five times too often."""
    step = np.arange(51.0)
    noise = lfilter([1], [1, -phi], RNG.normal(size=(2, 1500, 80)), axis=-1)[:, :, -51:]
    p = np.array([given_controls(step / 5 + a, -step / 5 + b, step).p[0] for a, b in zip(*noise, strict=True)])
    assert 0.02 < np.mean(p < 0.05) < 0.075


def test_features_at_once_are_features_one_by_one() -> None:
    x, y, z = RNG.normal(size=(6, 40)), RNG.normal(size=40), RNG.normal(size=(2, 40))
    together = partial(ranks(x), ranks(y), ranks(z))
    for i, row in enumerate(x):
        alone = given_controls(row, y, *z)
        assert [together.rho[i], together.p[i]] == pytest.approx([alone.rho[0], alone.p[0]])


def persistent(phi: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A stationary AR(1) process along the last axis."""
    start = RNG.normal(size=(*shape[:-1], 1)) / np.sqrt(1 - phi**2)
    noise = np.concatenate([start, RNG.normal(size=(*shape[:-1], shape[-1] - 1))], axis=-1)
    return np.asarray(lfilter([1], [1, -phi], noise, axis=-1))


def test_autocorrelation_is_the_textbook_sum() -> None:
    x = RNG.normal(size=30).cumsum()
    d = x - x.mean()
    expected = [(d[: 30 - k] * d[k:]).sum() / (d**2).sum() for k in range(30)]
    np.testing.assert_allclose(autocorrelation(x[None])[0], expected, atol=1e-12)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_effective_size_of_a_known_process(phi: float) -> None:
    """Two independent AR(1) series of n values are worth n (1 - phi^2) / (1 + phi^2)."""
    n = 4000
    found = effective_size(persistent(phi, (40, n)), persistent(phi, (40, n)))
    assert np.median(found) == pytest.approx(n * (1 - phi**2) / (1 + phi**2), rel=0.15)


def test_two_trends_of_51_checkpoints_are_worth_about_four() -> None:
    step = np.arange(51.0)
    assert 2 <= effective_size(step[None], -step[None])[0] <= 6


def _by_hand(x: NDArray[np.float64]) -> float:
    """Politis & White 2004, section 3.2, with the constant of the correction of 2009, one lag at a time."""
    n, d = len(x), x - x.mean()
    r = [float(sum(d[i] * d[i + k] for i in range(n - k)) / n) for k in range(n)]
    window, bound = max(5, int(np.ceil(np.log10(n)))), 2 * np.sqrt(np.log10(n) / n)
    furthest = min(n - 1, int(np.ceil(np.sqrt(n))) + window)
    m = 0
    while any(abs(r[k] / r[0]) >= bound for k in range(m + 1, min(m + window, furthest) + 1)):
        m += 1
    bandwidth = min(2 * max(m, 1), furthest)
    slope = density = 0.0
    for k in range(-bandwidth, bandwidth + 1):
        weight = 1.0 if abs(k) <= bandwidth / 2 else 2 * (1 - abs(k) / bandwidth)
        slope += weight * abs(k) * r[abs(k)]
        density += weight * r[abs(k)]
    return float((2 * slope**2 / (4 / 3 * density**2)) ** (1 / 3) * n ** (1 / 3))


@pytest.mark.parametrize(("phi", "n"), [(0.0, 51), (0.5, 200), (0.8, 400), (0.9, 1000)])
def test_block_length_is_the_published_rule(phi: float, n: int) -> None:
    for x in persistent(phi, (5, n)):
        least, most = int(np.ceil(np.sqrt(n))), n // 3
        assert block_length(x[None])[0] == np.clip(np.ceil(_by_hand(x)), least, most)


@given(st.integers(5, 80), st.integers(0, 1000))
@examples(40)
def test_blocks_are_at_least_the_root_and_draws_are_blocks(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = int(block_length(rng.normal(size=(1, n)).cumsum(axis=1))[0])
    assert np.sqrt(n) <= length <= max(np.sqrt(n) + 1, n / 3)
    draws = block_draws(n, length, 20, seed)
    assert draws.shape == (20, n)
    assert draws.min() >= 0
    assert draws.max() < n
    steps = np.diff(draws, axis=1)
    inside = np.arange(1, n) % length != 0
    assert (steps[:, inside] == 1).all()
    np.testing.assert_array_equal(draws, block_draws(n, length, 20, seed))


@given(st.integers(5, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
@examples(40)
def test_resampled_rho_is_scipys(n: int, distinct: int, seed: int) -> None:
    """With ties in feature and target, and those that drawing makes."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, distinct, (2, n)).astype(np.int64), rng.integers(0, distinct + 3, n).astype(np.int64)
    dense = np.array([np.unique(row, return_inverse=True)[1] for row in (*x, y)], dtype=np.int64)
    draws = single_draws(n, RANK_LANES + 3, seed)
    found = resampled_spearman(dense[:2], dense[2], draws)
    for f in range(2):
        for r, drawn in [*enumerate(draws)][:: RANK_LANES // 8]:
            a, b = x[f][drawn], y[drawn]
            if np.ptp(a) == 0 or np.ptp(b) == 0:
                assert np.isnan(found[f, r])
            else:
                assert found[f, r] == pytest.approx(spearmanr(a, b)[0], abs=1e-12)
