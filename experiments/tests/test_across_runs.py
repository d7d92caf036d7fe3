"""Correlations across runs, by permuting them: against independent implementations, and where all orders are known."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.stats import spearmanr

from toposcope_experiments.regularisation.across_runs import correlate_across_runs, draw_permutations

ONE = np.zeros(12, dtype=np.int64)


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(9, 30))
def test_correlations_are_those_of_scipy(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    features, target = rng.standard_normal((2, n)), rng.standard_normal(n)
    features[0] = features[0].round()  # ties
    found = correlate_across_runs(features, target, np.zeros(n, dtype=np.int64))
    np.testing.assert_allclose(found.rho, [spearmanr(x, target).statistic for x in features], atol=1e-9)
    assert np.isnan(correlate_across_runs(np.ones((1, n)), target, np.zeros(n, dtype=np.int64)).rho).all()
    assert np.isnan(correlate_across_runs(features, target, np.arange(n)).p).all()


def test_few_runs_have_the_exact_p() -> None:
    target = np.random.default_rng(3).standard_normal(6)
    features = np.stack([target, target[[1, 0, 2, 3, 4, 5]]])
    found = correlate_across_runs(features, target, np.zeros(6, dtype=np.int64))
    everyone = np.array([abs(spearmanr(features[1], target[list(o)]).statistic) for o in permutations(range(6))])
    assert found.p[0] == pytest.approx(2 / 720)
    assert found.p[1] == pytest.approx((everyone >= everyone[0] - 1e-9).mean())


def test_drawn_permutations_are_as_good_as_all() -> None:
    """Twelve runs, p by 20,000 draws against Student's."""
    rng = np.random.default_rng(5)
    target = rng.standard_normal(12)
    features = target + rng.standard_normal((20, 12))
    found = correlate_across_runs(features, target, ONE)
    np.testing.assert_allclose(found.p, [spearmanr(x, target).pvalue for x in features], atol=0.02)


def test_permutations_stay_within_strata() -> None:
    strata = np.array([0, 1, 0, 1, 2, 2, 0])
    drawn = draw_permutations(strata, 200)
    assert (drawn[0] == np.arange(7)).all()
    assert (strata[drawn] == strata).all()
    assert (np.sort(drawn, axis=1) == np.arange(7)).all()
    assert len(np.unique(drawn, axis=0)) == 24
