"""R-hat and the effective size against their definitions, written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from property_examples import examples

from toposcope.typing import Matrix
from toposcope_experiments.learning_coefficient.learning_coefficient import effective_size, split_r_hat


def by_definition(draws: Matrix) -> tuple[float, float]:
    """Gelman et al. 2013, (11.1) to (11.8), by loops; pairs as in Geyer 1992."""
    n = draws.shape[1] // 2
    halves = [half for chain in draws for half in (chain[-2 * n : -n], chain[-n:])]
    m = len(halves)
    means = [sum(half) / n for half in halves]
    between = n / (m - 1) * sum((mean - sum(means) / m) ** 2 for mean in means)
    within = sum(sum((half - mean) ** 2) / (n - 1) for half, mean in zip(halves, means, strict=True)) / m
    total = (n - 1) / n * within + between / n
    rho = []
    for lag in range(n):
        covariance = 0.0
        for half, mean in zip(halves, means, strict=True):
            covariance += sum((half[i] - mean) * (half[i + lag] - mean) for i in range(n - lag)) / (n - 1) / m
        rho.append(1 - (within - covariance) / total)
    sums: list[float] = []
    for k in range(n // 2):
        pair = rho[2 * k] + rho[2 * k + 1]
        if pair <= 0:
            break
        sums.append(min([pair, *sums[-1:]]))
    return math.sqrt(total / within), m * n / max(1.0, 2 * sum(sums) - 1)


@examples(60)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(4, 41), st.floats(-0.9, 0.99), st.floats(0, 3))
def test_the_definition(seed: int, chains: int, n: int, memory: float, apart: float) -> None:
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(chains, n))
    for i in range(1, n):
        draws[:, i] += memory * draws[:, i - 1]
    draws += apart * np.arange(chains)[:, None]
    r_hat, size = by_definition(draws)
    assert split_r_hat(draws) == pytest.approx(r_hat, rel=1e-9)
    assert effective_size(draws) == pytest.approx(size, rel=1e-6)
    assert effective_size(1e3 * draws + 7) == pytest.approx(size, rel=1e-6)


def test_an_autoregression_has_the_size_that_is_known() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 50_000))
    draws = np.empty_like(noise)
    draws[:, 0] = noise[:, 0]
    for i in range(1, draws.shape[1]):
        draws[:, i] = 0.8 * draws[:, i - 1] + 0.6 * noise[:, i]
    assert effective_size(draws) == pytest.approx(draws.size * 0.2 / 1.8, rel=0.05)
    assert split_r_hat(draws) == pytest.approx(1, abs=0.002)


def test_chains_that_disagree_or_drift_are_seen() -> None:
    noise = np.random.default_rng(0).normal(size=(4, 200))
    assert split_r_hat(noise) < 1.02
    assert split_r_hat(noise + np.array([[0], [0], [0], [5]])) > 1.5
    assert split_r_hat(noise + np.linspace(0, 8, 200)) > 1.5
    assert effective_size(noise + np.linspace(0, 8, 200)) < 20


def test_draws_that_do_not_vary() -> None:
    same = np.ones((2, 8))
    assert math.isnan(split_r_hat(same))
    assert math.isnan(effective_size(same))
    assert split_r_hat(same * np.array([[1], [2]])) == math.inf
    assert_allclose(effective_size(same * np.array([[1], [2]])), 1, atol=3)
