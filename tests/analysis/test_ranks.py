"""Partial rank correlations: against textbook formulas, and their p-values on series whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples
from scipy.signal import lfilter
from scipy.stats import rankdata, spearmanr

from toposcope.analysis.ranks import Correlations, dense_ranks, mid_ranks, partial, ranks

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


@pytest.mark.parametrize("n", [1, 2, 8, 16, 17])
def test_ranks_are_those_of_scipy_to_the_last_bit(n: int) -> None:
    rng = np.random.default_rng(n)
    values = np.round(rng.normal(size=(4, 30, n)) * 2) / 2
    values[0, 3] = np.nan
    values[1, 2, n // 2] = np.nan
    values[2, 1, 0] = np.inf
    expected = rankdata(values, axis=-1) - (n + 1) / 2
    np.testing.assert_array_equal(ranks(values), expected)
    np.testing.assert_array_equal(ranks(values[2, 1]), expected[2, 1])
