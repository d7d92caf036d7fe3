"""Point clouds, functions and diagrams: toposcope beside GUDHI, ripser, SciPy and one bare BLAS pass.

    python benchmarks/point_clouds.py [--quick]

Every contestant must first give the same result as toposcope, within its own precision.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import click
import numpy as np
from gudhi import CubicalComplex
from gudhi.hera import wasserstein_distance
from gudhi.sklearn import RipsPersistence
from numpy.typing import NDArray
from rich.progress import track
from ripser import ripser
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from bench import AGAINST, Column, against, alone, command, distance_pass, milliseconds, ratio, show, with_memory, write
from result_files import Spread
from toposcope.homology import Diagram, rips, sublevel_grid, wasserstein

Vector = NDArray[np.float64]
Row = dict[str, object]

OURS = "toposcope"
DIMENSION = 50
CELLS: dict[Literal["4", "8"], str] = {"4": "vertices", "8": "top_dimensional_cells"}
"""What GUDHI's cubical complex is built from, by the neighbours that a vertex then has."""

LARGE = (
    Column("points", "points"),
    Column("contestant", "contestant"),
    Column("seconds", "seconds"),
    Column("peak extra memory, MB", "megabytes"),
    Column("time / toposcope", "time_ratio"),
    Column("memory / toposcope", "memory_ratio"),
)
PASS = (
    Column("points", "points"),
    Column("distance pass, ms", "floor"),
    Column("toposcope, ms", "ours"),
    Column("toposcope / pass", "ratio"),
)


@command("point_clouds", "small clouds, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure H0 of point clouds, sublevel persistence, and the Wasserstein distance.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    repeats = 3 if quick else repeats
    large = 1500 if quick else 10_000
    clouds = [(2000, 50)] if quick else [(20_000, 50), (4096, 4096), (50_000, 50)]
    side, points = (201, 300) if quick else (1001, 2000)
    tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
        "H0 of a large cloud": (large_cloud(large), LARGE),
        "H0 against one pass over all distances": (against_a_pass(clouds, min(repeats, 5)), PASS),
        "H0 of small clouds": (small_clouds((200,) if quick else (200, 1000, 2000), repeats), AGAINST),
        "Sublevel persistence": (sublevel(side, min(repeats, 5)), AGAINST),
        "Wasserstein distance": (distances(points, min(repeats, 3)), AGAINST),
    }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest); slow ones fewer",
        "large cloud": f"standard normal points in {DIMENSION} dimensions, once each, every contestant in a process of "
        "its own; memory is the growth of its resident set",
        "pass": "|x|^2 + |y|^2 - 2 x.y of all pairs in float32, 512 rows at a time, nothing else done with it",
        "sublevel": "merge tree with its saddles, against GUDHI's cubical complex, which computes every dimension; "
        "built from vertices it is 4-connected, from top cells 8-connected",
        "Wasserstein": "order 2, of two H0 diagrams of a cloud before and after a small move; gudhi.hera with its own "
        "tolerance of 1%, toposcope exact",
    }
    write("point-clouds", out, facts, tables, ("toposcope", "numpy", "scipy", "numba", "gudhi", "ripser"))


def cloud(n: int, d: int) -> Vector:
    """Make standard normal points, always the same."""
    return np.random.default_rng(0).standard_normal((n, d))


def our_deaths(points: Vector) -> Vector:
    """H0 by toposcope."""
    return rips(points, max_dimension=0)[0].pairs[:, 1]


def gudhi_deaths(points: Vector) -> Vector:
    """H0 by GUDHI from the coordinates."""
    return _finite(RipsPersistence(homology_dimensions=0).fit_transform([points])[0])


def ripser_deaths(points: Vector) -> Vector:
    """H0 by ripser from the coordinates."""
    return _finite(ripser(points, maxdim=0)["dgms"][0])


def scipy_deaths(points: Vector) -> Vector:
    """H0 by SciPy: all distances, then its minimum spanning tree."""
    return np.asarray(np.sort(minimum_spanning_tree(squareform(pdist(points))).data))


CONTESTANTS: dict[str, Callable[[Vector], Vector]] = {
    OURS: our_deaths,
    "GUDHI": gudhi_deaths,
    "ripser": ripser_deaths,
    "SciPy": scipy_deaths,
}


def large_cloud(n: int) -> list[Row]:
    """Time each contestant once, in a process of its own, and see how its memory grows."""
    found: dict[str, tuple[float, float, Vector]] = {}
    for name in track(CONTESTANTS, description="large cloud"):
        found[name] = alone(measured_alone, name, n)
    seconds, megabytes, exact = found[OURS]
    for name, (_, _, deaths) in found.items():
        if not np.allclose(deaths, exact, rtol=1e-5, atol=0):
            raise click.ClickException(f"{n} points: {name} does not agree with {OURS}")
    return [
        {
            "points": f"{n} x {DIMENSION}",
            "contestant": name,
            "seconds": round(its_seconds, 3),
            "megabytes": round(its_megabytes, 1),
            "time_ratio": round(its_seconds / seconds, 1),
            "memory_ratio": round(its_megabytes / megabytes, 1),
        }
        for name, (its_seconds, its_megabytes, _) in found.items()
    ]


def measured_alone(name: str, n: int) -> tuple[float, float, Vector]:
    """Return seconds, growth of the resident set in MB, and the deaths; warmed up on a small cloud."""
    run = CONTESTANTS[name]
    run(cloud(1200, DIMENSION))
    return with_memory(partial(run, cloud(n, DIMENSION)))


def against_a_pass(shapes: list[tuple[int, int]], repeats: int) -> list[Row]:
    """Time H0 beside one pass over the distances, with as many BLAS threads each."""
    rows: list[Row] = []
    for n, d in track(shapes, description="distance pass"):
        points = cloud(n, d)
        taken = milliseconds({"floor": partial(distance_pass, points), "ours": partial(our_deaths, points)}, repeats)
        rows.append(
            {
                "points": f"{n} x {d}",
                **{key: Spread.of(values) for key, values in taken.items()},
                "ratio": ratio(taken["ours"], taken["floor"]),
            }
        )
    return rows


def small_clouds(sizes: tuple[int, ...], repeats: int) -> list[Row]:
    """Time H0 of clouds that every library can take."""
    rows: list[Row] = []
    for n in track(sizes, description="small clouds"):
        points = cloud(n, DIMENSION)
        others = {name: partial(run, points) for name, run in CONTESTANTS.items() if name != OURS}
        rows += against(
            f"{n} x {DIMENSION}",
            partial(our_deaths, points),
            others,
            repeats,
            (1 - 1e-5, 1 + 1e-5),
        )
    return rows


def sublevel(side: int, repeats: int) -> list[Row]:
    """Time a smooth function and noise on a square grid."""
    x = np.linspace(-5.12, 5.12, side)
    wave = 10 + x**2 - 10 * np.cos(2 * np.pi * x)
    rows: list[Row] = []
    for name, values in {
        "Rastrigin": wave[:, None] + wave,
        "white noise": np.random.default_rng(0).standard_normal((side, side)),
    }.items():
        for neighbours, cells in CELLS.items():
            rows += against(
                f"{name}, {side} x {side}, {neighbours} neighbours",
                partial(_our_lifetimes, values, neighbours),
                {f"GUDHI CubicalComplex({cells})": partial(_cubical_lifetimes, values, cells)},
                repeats,
            )
    return rows


def distances(n: int, repeats: int) -> list[Row]:
    """Time the distance of two H0 diagrams of n points."""
    rng = np.random.default_rng(n)
    points = rng.standard_normal((n + 1, DIMENSION))
    rows: list[Row] = []
    for name, move in (("small move", 0.01), ("ten times as wide", 10.0)):
        before, after = (
            rips(p, max_dimension=0)[0] for p in (points, points + move * rng.standard_normal(points.shape))
        )
        rows += against(
            f"{name}, {n} points",
            partial(wasserstein, before, after, order=2),
            {"gudhi.hera": partial(_hera, before, after)},
            repeats,
            (1 - 1e-9, 1.01 + 1e-9),
        )
    return rows


def _hera(first: Diagram, second: Diagram) -> float:
    return float(wasserstein_distance(first.pairs, second.pairs, order=2, internal_p=np.inf))


def _our_lifetimes(values: Vector, neighbours: Literal["4", "8"]) -> Vector:
    return sublevel_grid(values, connectivity=neighbours).diagram.lifetimes


def _cubical_lifetimes(values: Vector, cells: str) -> Vector:
    complex = CubicalComplex(**{cells: values})
    complex.compute_persistence()
    births, deaths = complex.persistence_intervals_in_dimension(0).T
    lifetimes = deaths - births
    return np.asarray(lifetimes[np.isfinite(lifetimes)])


def _finite(bars: NDArray[np.floating]) -> Vector:
    deaths = np.asarray(bars, dtype=np.float64)[:, 1]
    return np.sort(deaths[np.isfinite(deaths)])


if __name__ == "__main__":
    main()
