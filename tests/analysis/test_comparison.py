"""Comparing correlations: levels on series whose truth is known, and values written out."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from toposcope.analysis.comparison import against, fisher_z, williams

RNG = np.random.default_rng(3)


def test_williams_keeps_its_level_and_finds_a_difference() -> None:
    def p(weight: float) -> float:
        y = RNG.normal(size=40)
        a, b = y + RNG.normal(size=40), weight * y + RNG.normal(size=40)
        r = np.corrcoef([a, b, y])
        return williams(r[0, 2], r[1, 2], r[0, 1], 40).p

    alike, different = np.array([p(1.0) for _ in range(1500)]), np.array([p(0.0) for _ in range(300)])
    assert 0.035 < np.mean(alike < 0.05) < 0.065
    assert np.mean(different < 0.05) > 0.8


def test_williams_compares_strengths_whatever_the_signs() -> None:
    mirrored, plain = williams(-0.6, 0.4, -0.3, 30), williams(0.6, 0.4, 0.3, 30)
    assert mirrored.p == pytest.approx(plain.p)
    assert williams(0.6, 0.4, 0.3, 30).difference == pytest.approx(0.2)


def test_a_copy_is_no_stronger() -> None:
    y, x = RNG.normal(size=(2, 40))
    found = against(np.exp(x)[None], x[None], y, seed=1)
    assert np.isnan(found["Williams"].at(0, 0).p)
    assert found["block bootstrap"].at(0, 0).difference == pytest.approx(0)
    assert found["block bootstrap"].at(0, 0).p == 1
    assert found["Fisher z"].at(0, 0).p == 1


def test_a_stronger_feature_is_found_and_a_weaker_one() -> None:
    rng = np.random.default_rng(7)  # its own: which tests drew before depends on the process
    y = rng.normal(size=60)
    step = (y + rng.normal(size=60))[None]
    features = np.array([y + 0.2 * rng.normal(size=60), y + 5 * rng.normal(size=60)])
    found = against(features, step, y, seed=1)
    assert all(told.difference[0] > 0 > told.difference[1] for told in found.values())
    blocks = found["block bootstrap"]
    assert blocks.low[0] > 0
    assert blocks.p[0] < 0.05
    assert blocks.high[1] < 0


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
            np.testing.assert_allclose(found.at(i, j), alone[test].at(0, 0), rtol=1e-12)
    assert np.isfinite(together["block bootstrap"].p).all()


def test_fisher_z_of_pairs_is_that_of_independent_runs() -> None:
    x, other, y = RNG.normal(size=(3, 25))
    found = against(x[None], other[None], y, seed=1)["Fisher z"].at(0, 0)
    first, second = (abs(spearmanr(v, y)[0]) for v in (x, other))
    assert found.p == pytest.approx(fisher_z(second, 25, first, 25).p)
    assert found.difference == pytest.approx(first - second)


def test_fisher_z_keeps_its_level() -> None:
    def p() -> float:
        rho = []
        for n in (30, 60):
            y = RNG.normal(size=n)
            rho.append(float(np.corrcoef(rankdata(y), rankdata(y + RNG.normal(size=n)))[0, 1]))
        return fisher_z(rho[0], 30, rho[1], 60).p

    assert 0.03 < np.mean([p() < 0.05 for _ in range(1500)]) < 0.075


def test_fisher_z_needs_more_than_three_checkpoints_worth() -> None:
    assert np.isnan(fisher_z(0.5, 3.0, 0.9, 50).p)
    assert fisher_z(-0.5, 20, -0.9, 50).difference == pytest.approx(-0.4)
    assert fisher_z(0.5, 20, 0.9, 50).low > 0
