"""First differences of two runs: found where they are, and rarely where there are none."""

from collections.abc import Callable

import numpy as np
import pytest

from toposcope.analysis.first_difference import LEVEL, FirstDifference, first_differences, noise, threshold

Draw = Callable[[np.random.Generator, int], np.ndarray]


def white(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.normal(size=n)


def correlated(generator: np.random.Generator, n: int) -> np.ndarray:
    values = generator.normal(size=n)
    for i in range(1, n):
        values[i] = 0.6 * values[i - 1] + 0.8 * values[i]
    return values


def heavy(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.standard_t(3, size=n)


def loud_early(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.asarray(generator.normal(size=n) * np.exp(-3 * np.arange(n) / n))


def compare(steps: np.ndarray, a: np.ndarray, b: np.ndarray) -> FirstDifference:
    return first_differences(steps, {"x": a}, {"x": b})["x"]


@pytest.mark.parametrize("n", [12, 31, 51])
@pytest.mark.parametrize("draw", [white, correlated, heavy, loud_early])
@pytest.mark.parametrize("n_series", [1, 20])
def test_noisy_copies_differ_in_at_most_5_percent(n: int, draw: Draw, n_series: int) -> None:
    """Of 300 pairs at the true rate of 5% more than 24 alarms have a probability below 1%."""
    generator = np.random.default_rng([n, n_series])
    trend, steps, n_pairs = 3 - 0.02 * np.arange(n), 10 * np.arange(n), 300 if n_series == 1 else 60
    alarms = 0
    for _ in range(n_pairs):
        a, b = ({str(k): trend + 0.05 * draw(generator, n) for k in range(n_series)} for _ in range(2))
        alarms += any(found.step is not None for found in first_differences(steps, a, b).values())
    assert alarms <= (24 if n_series == 1 else 8)


@pytest.mark.parametrize(("shift", "least"), [(5.0, 0.9), (12.0, 0.98)])
def test_a_shift_is_found_where_it_is(shift: float, least: float) -> None:
    generator, hits, n = np.random.default_rng(1), 0, 51
    for _ in range(200):
        a, b = generator.normal(size=(2, n))
        b[25:] += shift * np.sqrt(2)
        found = compare(np.arange(n), a, b)
        hits += found.step is not None and abs(found.step - 25) <= 1
    assert hits >= least * 200


def test_a_shared_trend_of_any_shape_is_no_difference() -> None:
    generator, n = np.random.default_rng(2), 40
    trend = 3 + 5 * np.exp(-np.arange(n) / 3)
    alarms = sum(
        compare(np.arange(n), *(trend + generator.normal(0, 0.02, (2, n)))).step is not None for _ in range(200)
    )
    assert alarms <= 10


def test_from_the_start_never_and_from_some_step_on() -> None:
    generator, n = np.random.default_rng(3), 30
    steps, a = 10 * np.arange(n), generator.normal(size=n)
    same = compare(steps, a, a.copy())
    assert (same.step, same.differs_from, same.units, same.from_start) == (None, None, 0.0, False)
    apart = compare(steps, a, generator.normal(size=n) + 20)
    assert (apart.step, apart.differs_from, apart.from_start) == (0, 0, True)
    assert apart.largest >= apart.units > apart.threshold
    b = a.copy()
    b[10:] += 1e-6
    hair = compare(steps, a, b)
    assert (hair.step, hair.differs_from) == (None, 100), "unequal, and far within the noise"


def test_few_checkpoints_and_values_that_are_not_finite() -> None:
    n = 14
    a, b = np.random.default_rng(4).normal(size=(2, n))
    a[:5] = np.nan
    assert first_differences(np.arange(n), {"x": a}, {"x": b}) == {}
    a[:5], a[3], b[2] = 0.0, np.nan, np.inf
    assert compare(np.arange(n), a, b + 50).step == 0
    assert first_differences(np.arange(n), {"x": a}, {"y": b}) == {}


def test_noise_and_threshold() -> None:
    values = np.random.default_rng(5).normal(size=(50, 200))
    assert np.median(noise(values)) == pytest.approx(1, abs=0.1)
    # a straight line has no noise
    assert noise(np.arange(20.0)) == pytest.approx(np.zeros(20), abs=1e-10)
    assert threshold(30, LEVEL) < threshold(30, LEVEL / 10) < threshold(30, LEVEL / 100)
    assert threshold(30, LEVEL) == threshold.__wrapped__(30, LEVEL)
