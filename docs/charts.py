"""Make the pictures of ``charts.md``: ``python docs/charts.py``, or into another folder, named behind it."""

import sys
from pathlib import Path

import numpy as np

from toposcope import neural_persistence, rips
from toposcope.charts import Chart
from toposcope.charts.contour import contour
from toposcope.homology import critical_points, profile_grid, sublevel_grid


def charts() -> dict[str, Chart]:
    """Return the charts of the page by the names of their files."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 200)
    circle = np.column_stack([np.cos(angles), np.sin(angles)]) + rng.normal(0, 0.12, (200, 2))
    h0, h1 = rips(circle, threshold=0.9)
    side = np.linspace(-6, 6, 41)
    first, second = np.meshgrid(side, side, indexing="ij")
    himmelblau = (first**2 + second - 11) ** 2 + (first + second**2 - 7) ** 2
    branches = sublevel_grid(himmelblau, connectivity="freudenthal").branches()
    saddles = critical_points(himmelblau).saddles
    return {
        "persistence-diagram": h0.plot(h1),
        "neural-persistence": neural_persistence(rng.normal(size=(60, 40))).diagram.plot(),
        "barcode": h0.barcode(h1),
        "contour": contour(
            himmelblau, side, side, branches[1:], branches.minima, saddles, value="value of the function"
        ),
        "profile": profile_grid(himmelblau, connectivity="freudenthal").plot(),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images" / "charts"
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts().items():
        chart.save(str(folder / f"{name}.svg"))
