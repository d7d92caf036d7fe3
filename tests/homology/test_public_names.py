"""What `toposcope.homology` shows of itself: its names, and one line for each result."""

import subprocess
import sys

import numpy as np
import pytest

import toposcope
from toposcope import homology
from toposcope.homology import (
    Diagram,
    Moments,
    critical_points,
    longest_loops,
    neural_persistence,
    ph_dimension,
    rips,
    sublevel_grid,
)

ANGLES = np.arange(6) * np.pi / 3
HEXAGON = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])
GRID = np.array([[0.0, 3.0, 1.0]])


def test_homology_is_an_attribute_of_the_package_and_loaded_on_first_use() -> None:
    code = (
        "import sys, toposcope as ts; before = 'toposcope.homology' in sys.modules; "
        "print(before, ts.homology.bottleneck.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "bottleneck"]
    assert toposcope.homology is homology


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (rips(HEXAGON)[1], "Diagram(H1: 1 finite bars, longest 0.7321, 0 essential)"),
        (Diagram(np.empty((0, 2)), 2, n_truncated=3), "Diagram(H2: 0 finite bars, 0 essential, 3 truncated)"),
        (
            neural_persistence(np.diag([1.0, 0.5])),
            "NeuralPersistence(mean=0.5, norm=1.118, normalized=0.6455, scale=1, 3 deaths)",
        ),
        (longest_loops(HEXAGON)[0], "Loop(birth=1, death=1.732, 6 points)"),
        (sublevel_grid(GRID), "Sublevel(1 minima that die, 1 essential)"),
        (critical_points(np.add.outer(GRID[0], [0.0, 1.0])), "CriticalPoints(2 minima, 1 saddles, 0 maxima)"),
        (Moments(3), "Moments(dimension=3, n_points=0)"),
    ],
)
def test_a_result_is_shown_in_one_short_line(result: object, line: str) -> None:
    assert repr(result) == line


def test_a_dimension_is_shown_with_its_interval() -> None:
    shown = repr(ph_dimension(np.random.default_rng(0).normal(size=(60, 2))))
    assert shown.startswith("PHDimension(")
    assert "interval=(" in shown
    assert len(shown) < 100
