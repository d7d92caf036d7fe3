"""Pairing features with the losses of other runs: counted by hand, and its level where all runs share the cause."""

import itertools
import math

import numpy as np
import pytest

from toposcope.analysis.adjustment import pairing_p

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


def test_runs_that_cannot_be_asked_are_left_out() -> None:
    square = np.eye(6)
    square[5, :5] = math.nan
    assert pairing_p(square, 0) == pytest.approx(1 / 120)


@pytest.mark.parametrize("n", [4, 5, 9])
def test_level_where_no_pairing_is_special(n: int) -> None:
    p = np.array([pairing_p(RNG.uniform(size=(n, n)), seed) for seed in range(400)])
    assert np.mean(p <= 0.05) <= 0.08
