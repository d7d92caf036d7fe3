"""Correlations across runs, by permuting them: against independent implementations, and where all orders are known."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from scipy.stats import rankdata, spearmanr

from toposcope.analysis.permutations import correlate_across_runs, draw_permutations
from toposcope.typing import Matrix, Vector

ONE = np.zeros(12, dtype=np.int64)


def partial_by_least_squares(x: Vector, y: Vector, controls: Matrix) -> float:
    """Correlate residuals of ranks after regression on the ranks of the controls, and their squares while few."""
    ranked = np.array([rankdata(c) for c in controls])
    ranked = (ranked - ranked.mean(axis=1, keepdims=True)) / len(x)
    terms = np.concatenate([ranked, ranked**2, ranked**3])[: max(len(controls), len(x) // 3)]
    design = np.column_stack([np.ones(len(x)), *terms])
    left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (rankdata(x), rankdata(y))]
    return float(np.corrcoef(*left)[0, 1])


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(9, 30), st.integers(0, 3))
def test_correlations_are_those_of_other_implementations(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    features, target, controls = rng.standard_normal((2, n)), rng.standard_normal(n), rng.standard_normal((k, n))
    features[0] = features[0].round()  # ties
    if k:
        features[1] += controls[0]
    found = correlate_across_runs(features, target, np.zeros(n, dtype=np.int64), controls)
    for x, rho in zip(features, found.rho, strict=True):
        own = partial_by_least_squares(x, target, controls) if k else float(spearmanr(x, target).statistic)
        assert rho == pytest.approx(own, abs=1e-9)


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
    drawn = draw_permutations(strata, 200, 1)
    assert (drawn[0] == np.arange(7)).all()
    assert (strata[drawn] == strata).all()
    assert (np.sort(drawn, axis=1) == np.arange(7)).all()
    assert len(np.unique(drawn, axis=0)) == 24


def test_what_the_controls_determine_has_no_correlation() -> None:
    rng = np.random.default_rng(0)
    control, target = 1e9 * rng.standard_normal((1, 12)), rng.standard_normal(12)
    features = np.stack([control[0], 2 * control[0] + 7, np.full(12, 5.0), rng.standard_normal(12)])
    found = correlate_across_runs(features, target, ONE, control)
    assert np.isnan(found.rho[:3]).all()
    assert np.isfinite(found.rho[3])
    assert np.isnan(correlate_across_runs(features, control[0], ONE, control).p).all()
    assert np.isnan(correlate_across_runs(features, target, np.arange(12), control).p).all()
