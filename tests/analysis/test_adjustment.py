"""p-values adjusted for many tests, and the pairing of features with other runs' losses: by hand, and their level."""

import itertools
import math

import numpy as np
import pytest

from toposcope.analysis.adjustment import adjusted, pairing_p

RNG = np.random.default_rng(11)


def test_all_pairings_are_counted() -> None:
    square = RNG.uniform(size=(4, 4))
    sums = [sum(square[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(4))]
    assert pairing_p(square, 0) == pytest.approx(np.mean(np.array(sums) >= sums[0]))
    assert pairing_p(np.eye(5), 0) == pytest.approx(1 / 120)
    assert pairing_p(np.ones((5, 5)), 0) == 1


def test_too_few_runs_say_nothing() -> None:
    assert math.isnan(pairing_p(np.eye(3), 0))
    gap = np.eye(4)
    gap[0, 1] = math.nan
    assert math.isnan(pairing_p(gap, 0))
    assert math.isnan(pairing_p(np.empty((0, 0)), 0))


def test_runs_that_cannot_be_compared_are_excluded() -> None:
    square = np.eye(6)
    square[5, :5] = math.nan
    assert pairing_p(square, 0) == pytest.approx(1 / 120)


@pytest.mark.parametrize("n", [4, 5, 9])
def test_level_where_no_pairing_is_special(n: int) -> None:
    p = np.array([pairing_p(RNG.uniform(size=(n, n)), seed) for seed in range(400)])
    assert np.mean(p <= 0.05) <= 0.08


def test_adjustment_by_hand() -> None:
    p = np.array([0.04, np.nan, 0.01, 0.03])
    np.testing.assert_allclose(adjusted(p), [0.06, np.nan, 0.03, 0.06])
    np.testing.assert_allclose(adjusted(p, "bonferroni"), [0.12, np.nan, 0.03, 0.09])
    np.testing.assert_allclose(adjusted(p, "bh"), [0.04, np.nan, 0.03, 0.04])
    assert len(adjusted(np.empty(0))) == 0


def test_benjamini_hochberg_is_scipys() -> None:
    from scipy.stats import false_discovery_control

    p = RNG.uniform(size=200) ** 3
    np.testing.assert_allclose(adjusted(p, "bh"), false_discovery_control(p))
