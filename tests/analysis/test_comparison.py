"""Comparing correlations: levels on series whose truth is known, and values written out."""

import numpy as np
import pytest
from scipy.stats import rankdata

from toposcope.analysis.comparison import against_step, fisher_z, williams

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
    ((by_williams, by_blocks),) = against_step(np.exp(x)[None], x, y, seed=1)
    assert np.isnan(by_williams.p)
    assert by_blocks.difference == pytest.approx(0)
    assert by_blocks.p == 1


def test_a_stronger_feature_is_found_and_a_weaker_one() -> None:
    y = RNG.normal(size=60)
    step = y + RNG.normal(size=60)
    features = np.array([y + 0.2 * RNG.normal(size=60), y + 5 * RNG.normal(size=60)])
    stronger, weaker = against_step(features, step, y, seed=1)
    assert all(found.difference > 0 for found in stronger)
    assert stronger[1].low > 0
    assert stronger[1].p < 0.05
    assert weaker[1].high < 0
    assert against_step(features[:1], step, y, seed=1)[0] == stronger


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
