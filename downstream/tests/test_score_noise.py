"""The noise of a score at the end of a run is recovered, whatever its trend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope_downstream.ladder import spread_about_line


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=9),
    st.floats(-1, 1),
    st.floats(-2, 2),
    st.floats(0.1, 1e9),
)
@examples(100)
def test_it_is_that_of_least_squares_and_no_line_changes_it(
    values: list[float], level: float, slope: float, scale: float
) -> None:
    D, y = np.arange(1.0, len(values) + 1), np.array(values)
    last = min(len(y), 5)
    line = np.polynomial.Polynomial.fit(D[-last:], y[-last:], 1)
    expected = np.sqrt(((y[-last:] - line(D[-last:])) ** 2).sum() / (last - 2))
    assert spread_about_line(D, y) == pytest.approx(expected, abs=1e-9)
    assert spread_about_line(scale * D, y + level + slope * D) == pytest.approx(expected, abs=1e-9)


def test_noise_is_recovered() -> None:
    rng = np.random.default_rng(0)
    D = np.arange(1.0, 6.0)
    spreads = [spread_about_line(D, 0.4 + 0.05 * D + 0.01 * rng.standard_normal(5)) for _ in range(4000)]
    assert np.sqrt(np.mean(np.square(spreads))) == pytest.approx(0.01, rel=0.03)


def test_too_few_values_and_gaps() -> None:
    assert np.isnan(spread_about_line(np.arange(3.0), np.array([0.1, 0.2, 0.1])))
    D, values = np.arange(7.0), np.array([9.0, 0.1, np.nan, 0.3, np.nan, 0.2, 0.4])
    assert spread_about_line(D, values, 4) == spread_about_line(D[[1, 3, 5, 6]], values[[1, 3, 5, 6]])
