"""Intrinsic dimension of clouds as large as those of hidden states: toposcope beside scikit-dimension.

    python benchmarks/intrinsic_dimension.py [--quick]

Both must first give the same dimension. scikit-dimension is what `benchmarks/other_tools.py` installs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bench import AGAINST, against, command, show, write
from hidden_states import DIMENSION, Matrix, Row, cloud
from other_tools import use
from toposcope.homology import ph_dimension, spectral_measures, two_nn

TOOL, TITLE = "scikit-dimension", "Dimension of a cloud"
SIZES, DRAWS = np.ceil(np.linspace(125, 500, 8)).astype(int).tolist(), 10
"""Of the random subsets for the PH dimension; scikit-dimension spaces them so."""
SAMPLING = 0.1
"""How far, relatively, PH dimensions of other subsets may be off: above their 95% interval's half width, 0.08."""


@command("intrinsic_dimension", "the smaller cloud, 1 repeat", repeats=3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Compare estimates, then time them: ratios above 1 favour toposcope."""
    installed, absent = use(TOOL)
    repeats = 1 if quick else repeats
    rows: list[Row] = []
    with threadpool_limits(1):
        for n in ((1000,) if quick else (1000, 10_000)) if installed else ():
            rows += compared(cloud(n).astype(np.float64), repeats)
    show(rows, AGAINST, TITLE)
    facts = {
        "samples": f"{repeats} of each contestant in turn; one thread; median (lowest-highest)",
        "cloud": f"normal points in {DIMENSION} dimensions, covariance eigenvalues 1/i, float64",
        "TwoNN": "the line of Facco et al. 2017, a tenth discarded; equal within 1e-6",
        "participation ratio": "of the covariance, equal within 1e-6; ours comes with all other spectral measures",
        "PH dimension": f"alpha 1, {DRAWS} random subsets of each of {len(SIZES)} sizes, {SIZES[0]} to {SIZES[-1]} "
        f"points; each draws its own, so that dimensions may differ by {SAMPLING:.0%}; scikit-dimension computes the "
        "distances of all points once",
    }
    packages = ("toposcope", "numpy", "scipy", "numba", "scikit-learn", *installed)
    write("intrinsic-dimension", out, facts | absent, {TITLE: (rows, AGAINST)}, packages)


def compared(points: Matrix, repeats: int) -> list[Row]:
    """Time the estimators on one cloud."""
    from skdim import id as estimators

    def fit(estimator: Any) -> float:
        return float(estimator.fit(points).dimension_)

    n = len(points)
    near = (1 - SAMPLING, 1 + SAMPLING)
    same = (1 - 1e-6, 1 + 1e-6)
    subsets = {"n_range_min": SIZES[0], "n_range_max": SIZES[-1], "range_type": "num", "nsteps": len(SIZES)}
    works: dict[str, tuple[Callable[[], float], Any, tuple[float, float]]] = {
        "TwoNN": (lambda: two_nn(points).dimension, estimators.TwoNN(), same),
        "participation ratio": (
            lambda: spectral_measures(points).participation_ratio,
            estimators.lPCA(ver="participation_ratio"),
            same,
        ),
    }
    if n <= 1000:
        works["PH dimension"] = (
            lambda: ph_dimension(points, alpha=1.0, sizes=SIZES, n_draws=DRAWS).dimension,
            estimators.PH(**subsets, subsamples=DRAWS, random_state=0),
            near,
        )
    return [
        row
        for work, (ours, theirs, bounds) in works.items()
        for row in against(f"{work}, {n} x {DIMENSION}", ours, {TOOL: partial(fit, theirs)}, repeats, bounds)
    ]


if __name__ == "__main__":
    main()
