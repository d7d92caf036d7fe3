"""Power laws in size, ranks, and what five sizes can say."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from toposcope.analysis.scaling import SizeLaw, fit_size_law, rank_correlation

SIZES = np.array([2936.0, 7408, 20640, 46368, 97200])
LOSSES = np.array([2.466, 2.099, 1.853, 1.653, 1.468])


def law_of(sizes: np.ndarray, values: np.ndarray) -> SizeLaw:
    law = fit_size_law(sizes, values, seed=1)
    assert law is not None
    return law


@pytest.mark.parametrize("exponent", [-0.144, 0.204, 0.75])
def test_an_exact_power_law_is_recovered(exponent: float) -> None:
    law = law_of(SIZES, 3.0 * SIZES**exponent)
    assert [law.exponent, law.factor, law.r_squared] == pytest.approx([exponent, 3.0, 1.0])
    assert [law.low, law.high] == pytest.approx([exponent, exponent])
    assert [law.offset, law.offset_exponent] == pytest.approx([0.0, exponent], abs=1e-5)
    assert law.rho == pytest.approx(np.sign(exponent))


@pytest.mark.parametrize(("a", "b", "c"), [(20.0, -0.34, 1.7), (0.01, 0.5, 3.0), (1e6, -2.0, 5.0), (-30.0, -0.3, 4.0)])
def test_an_exact_law_with_offset_is_recovered(a: float, b: float, c: float) -> None:
    law = law_of(SIZES, a * SIZES**b + c)
    assert [law.offset, law.offset_exponent] == pytest.approx([c, b], rel=1e-4)


def test_the_law_with_offset_fits_no_worse_than_any_other_of_its_kind() -> None:
    law = law_of(SIZES, LOSSES)

    def left(b: float) -> float:
        x = np.column_stack([SIZES**b, np.ones(5)])
        return float(((LOSSES - x @ np.linalg.lstsq(x, LOSSES, rcond=None)[0]) ** 2).sum())

    assert left(law.offset_exponent) <= min(left(b) for b in np.linspace(-2, 2, 801) if b != 0) + 1e-12


def test_no_offset_from_three_sizes_or_a_logarithm_or_a_constant() -> None:
    """A logarithm is a power law of exponent 0 with an infinite offset."""
    for n, values in [(SIZES[:3], LOSSES[:3]), (SIZES, 10 - 0.5 * np.log(SIZES)), (SIZES, np.full(5, 2.0))]:
        law = law_of(n, values)
        assert math.isnan(law.offset)
        assert math.isnan(law.offset_exponent)


def test_published_loss_law() -> None:
    """The published exponent, R² and rank correlation (-0.144, 0.997, -1.0) from its five final losses."""
    law = law_of(SIZES, LOSSES)
    assert law.exponent == pytest.approx(-0.144, abs=0.001)
    assert law.r_squared == pytest.approx(0.997, abs=0.001)
    assert law.rho == pytest.approx(-1.0)
    assert law.p_exact == pytest.approx(2 / 120)


def test_published_p_of_h0_is_the_approximation() -> None:
    """Its five final H0 totals have rho = +0.9; the publication says p = .037, counting orders says .083."""
    values = np.array([1.0, 2.0, 3.0, 5.0, 4.0])
    assert spearmanr(SIZES, values).pvalue == pytest.approx(0.037, abs=0.0005)
    assert rank_correlation(SIZES, values) == pytest.approx((0.9, 10 / 120))


def test_published_p_of_neural_persistence() -> None:
    """Its mean neural persistence has rho = -0.3: p = .624 by the approximation, .683 exactly."""
    values = np.array([2.0, 4.0, 5.0, 3.0, 1.0])
    assert spearmanr(SIZES, values).pvalue == pytest.approx(0.624, abs=0.0005)
    assert rank_correlation(SIZES, values)[1] == pytest.approx(82 / 120)


@pytest.mark.parametrize(("n", "least"), [(3, 2 / 6), (4, 2 / 24), (5, 2 / 120), (6, 2 / 720)])
def test_the_least_p_that_sizes_allow(n: int, least: float) -> None:
    """Four sizes never reach .05; five do in perfect order only."""
    law = law_of(np.array([10.0**i for i in range(n)]), np.arange(n, 0, -1.0))
    assert law.min_p == pytest.approx(least)
    assert law.p_exact == pytest.approx(least)


def test_repeated_sizes_allow_less() -> None:
    law = law_of(np.array([1e3, 1e3, 1e4, 1e4, 1e5]), np.array([5.0, 4, 3, 2, 1]))
    assert law.min_p == law.p_exact == pytest.approx(8 / 120)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=6).filter(lambda v: len(set(v)) > 1))
def test_p_is_that_of_all_permutations(values: list[int]) -> None:
    x = [i // 2 for i in range(len(values))]
    a, b = _doubled_ranks(x), _doubled_ranks(values)
    own = abs(sum(i * j for i, j in zip(a, b, strict=True)))
    reached = [abs(sum(i * j for i, j in zip(a, order, strict=True))) >= own for order in permutations(b)]
    _, p = rank_correlation(np.array(x, dtype=np.float64), np.array(values, dtype=np.float64))
    assert p == pytest.approx(sum(reached) / len(reached))


def _doubled_ranks(values: list[int]) -> list[int]:
    """Centred mid-ranks times 2: whole numbers."""
    return [sum((v > w) - (v < w) for w in values) for v in values]


def test_beyond_eight_runs_p_is_students() -> None:
    x, y = np.arange(12.0), np.random.default_rng(0).normal(size=12)
    expected = spearmanr(x, y)
    assert rank_correlation(x, y) == pytest.approx((expected.statistic, expected.pvalue))


def test_no_law_from_two_sizes_or_negative_values() -> None:
    assert fit_size_law(np.array([1e3, 1e4, 1e4]), np.array([3.0, 2, 2]), seed=0) is None
    assert fit_size_law(np.array([1e3, 1e4, 1e5]), np.array([3.0, 2, -1]), seed=0) is None
