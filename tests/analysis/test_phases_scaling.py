"""The published rule for phases, and power laws in size."""

import json
from pathlib import Path

import numpy as np
import pytest

from toposcope.analysis.phases import Phases, phases
from toposcope.analysis.scaling import power_law


@pytest.mark.reference
@pytest.mark.parametrize("size", ["tiny-3k", "med-21k"])
def test_published_phases(published_study: Path, size: str) -> None:
    rows = json.loads((published_study / "features.json").read_bytes())[size]
    expected = json.loads((published_study / "analysis.json").read_bytes())["transitions"][size]
    found = phases(np.array([r["step"] for r in rows]), np.array([r["neural_persistence_mean"] for r in rows]))
    assert found == Phases(expected["max_change_step"], expected["diminishing_step"])


def test_a_single_jump_is_found() -> None:
    steps = np.arange(0, 3000, 100)
    found = phases(steps, np.where(steps < 1000, 0.0, 1.0))
    assert found.largest_change is not None
    assert abs(found.largest_change - 1000) <= 200  # the moving average spreads the jump over its window
    assert found.diminishing_returns is not None
    assert 1000 <= found.diminishing_returns <= 1300


@pytest.mark.parametrize("values", [np.ones(20), np.arange(4.0), np.linspace(0, 1, 30)])
def test_no_phase_where_there_is_none(values: np.ndarray) -> None:
    found = phases(np.arange(len(values)), values)
    assert found.diminishing_returns is None


@pytest.mark.parametrize("exponent", [-0.144, 0.204, 0.75])
def test_an_exact_power_law_is_recovered(exponent: float) -> None:
    n = np.array([2936.0, 7408, 20640, 46368, 97200])
    law = power_law(n, 3.0 * n**exponent, seed=1)
    assert law is not None
    assert [law.exponent, law.factor, law.r_squared] == pytest.approx([exponent, 3.0, 1.0])
    assert law.low == pytest.approx(exponent)
    assert law.high == pytest.approx(exponent)


def test_published_loss_law() -> None:
    """The paper's exponent and R2 (-0.144, 0.997) from its five final losses."""
    n = np.array([2936.0, 7408, 20640, 46368, 97200])
    law = power_law(n, np.array([2.466, 2.099, 1.853, 1.653, 1.468]), seed=1)
    assert law is not None
    assert law.exponent == pytest.approx(-0.144, abs=0.001)
    assert law.r_squared == pytest.approx(0.997, abs=0.001)


def test_no_law_from_two_sizes_or_negative_values() -> None:
    assert power_law(np.array([1e3, 1e4, 1e4]), np.array([3.0, 2, 2]), seed=0) is None
    assert power_law(np.array([1e3, 1e4, 1e5]), np.array([3.0, 2, -1]), seed=0) is None
