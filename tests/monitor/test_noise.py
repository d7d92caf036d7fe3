"""The noise model of the alerts: the probability of a value is the one whose limit it is."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from toposcope.monitor.alerts.noise import MIN_OVER_LARGEST, Tail

STREAMS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "Gaussian": lambda rng, n: np.abs(rng.normal(size=n)),
    "Student t, 2": lambda rng, n: np.abs(rng.standard_t(2, n)),
    "log-normal": lambda rng, n: rng.lognormal(size=n),
    "constant": lambda _, n: np.full(n, 2.0),
}


@given(st.sampled_from(list(STREAMS)), st.integers(1, 6000), st.floats(-9, -2), st.integers(0, 999))
def test_the_probability_of_a_limit_is_the_one_it_was_asked_for(family: str, n: int, log: float, seed: int) -> None:
    values = STREAMS[family](np.random.default_rng(seed), n)
    tail = Tail()
    for value in values.tolist():
        tail.add(value)
    limit = tail.limit(10**log)
    lower, here, higher = tail.exceedance(np.array([limit / 1.1, limit, limit * 1.1]))
    assert higher <= here <= lower <= 1
    largest, _ = tail._fits()
    if limit > 1.01 * MIN_OVER_LARGEST * largest:
        assert here == pytest.approx(0.9 * 10**log, rel=1e-6)  # a limit is cached for smaller probabilities
    else:
        assert here >= 1 / tail.count or here <= 10**log


def test_without_values_nothing_is_improbable() -> None:
    assert (Tail().exceedance(np.array([0.0, 1e9])) == 1).all()
