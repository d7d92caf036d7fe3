"""Comparing correlations: levels on series whose truth is known, and values written out."""

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from toposcope.analysis.comparison import against, williams

RNG = np.random.default_rng(3)


def test_williams_keeps_its_level_and_finds_a_difference() -> None:
    def p(weight: float) -> float:
        y = RNG.normal(size=40)
        a, b = y + RNG.normal(size=40), weight * y + RNG.normal(size=40)
        r = np.corrcoef([a, b, y])
        return float(williams(r[0, 2:], r[1, 2:], r[:1, 1:2], 40)[0, 0])

    alike, different = np.array([p(1.0) for _ in range(1500)]), np.array([p(0.0) for _ in range(300)])
    assert 0.035 < np.mean(alike < 0.05) < 0.065
    assert np.mean(different < 0.05) > 0.8


def test_williams_compares_strengths_whatever_the_signs() -> None:
    first, second, between = np.array([[0.6], [0.4], [0.3]])
    plain, mirrored = williams(first, second, between[None], 30), williams(-first, second, -between[None], 30)
    assert mirrored == pytest.approx(plain)


def test_a_copy_is_no_stronger() -> None:
    y, x = RNG.normal(size=(2, 40))
    found = against(np.exp(x)[None], x[None], y, seed=1)
    williams_test, blocks, fisher = (found[test][0, 0] for test in found)
    assert np.isnan(williams_test[3])
    assert blocks[0] == pytest.approx(0)
    assert blocks[3] == 1
    assert fisher[3] == 1


def test_a_stronger_feature_is_found_and_a_weaker_one() -> None:
    rng = np.random.default_rng(7)  # its own: which tests drew before depends on the process
    y = rng.normal(size=60)
    step = (y + rng.normal(size=60))[None]
    features = np.array([y + 0.2 * rng.normal(size=60), y + 5 * rng.normal(size=60)])
    found = against(features, step, y, seed=1)
    assert all(values[0, 0, 0] > 0 > values[1, 0, 0] for values in found.values())
    stronger, weaker = found["block bootstrap"][:, 0]
    assert stronger[1] > 0
    assert stronger[3] < 0.05
    assert weaker[2] < 0


def test_each_pair_is_compared_as_if_it_were_alone() -> None:
    """Whatever block lengths and gaps in resamples the other pairs have."""
    y = RNG.normal(size=30).cumsum()
    rare = np.where(np.arange(30) == 4, 1.0, 0.0)  # many resamples hold one value of it only
    features = np.array([y + RNG.normal(size=30), RNG.normal(size=30).cumsum(), rare])
    others = np.array([RNG.normal(size=30), RNG.normal(size=30).cumsum(), y**2])
    together = against(features, others, y, seed=3)
    for i, j in np.ndindex(3, 3):
        alone = against(features[[i]], others[[j]], y, seed=3)
        for test, found in together.items():
            np.testing.assert_allclose(found[i, j], alone[test][0, 0], rtol=1e-12)
    assert np.isfinite(together["block bootstrap"]).all()


def test_fisher_z_of_pairs_is_that_of_independent_runs() -> None:
    x, other, y = RNG.normal(size=(3, 25))
    difference, *_, p = against(x[None], other[None], y, seed=1)["Fisher z"][0, 0]
    first, second = (abs(spearmanr(v, y)[0]) for v in (x, other))
    z = (np.arctanh(first) - np.arctanh(second)) / np.sqrt(2 * 1.06 / 22)
    assert p == pytest.approx(2 * norm.sf(abs(z)))
    assert difference == pytest.approx(first - second)
