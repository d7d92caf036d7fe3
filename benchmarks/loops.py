"""H1 and H2 of point clouds: toposcope beside RedZeD, GUDHI, tda, ripser, giotto-ph, holos and canns-lib; births.

    python benchmarks/loops.py [--quick]

All contestants use one thread, and must give the bars of toposcope: GUDHI to the last bit, those that compute in
float32 within its precision. What `benchmarks/other_tools.py` installs is used from there.
"""

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

# Before NumPy loads its BLAS; a contestant's own processes inherit it.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy.spatial.distance import cdist

from bench import Column, alone, command, distance_pass, show, with_memory, write
from other_tools import use
from rips_engines import (
    ALL,
    CANNS,
    COLUMNS,
    GIOTTO,
    GUDHI,
    HOLOS,
    MAX_BYTES,
    MAX_SECONDS,
    OURS,
    REDZED,
    RIPSER,
    SLOW,
    TDA,
    Engine,
    contest,
    normal,
    of_matrix,
)
from toposcope.homology import farthest_points, h1_births
from toposcope.kernels.pairwise import distance_matrix

Vector = NDArray[np.float64]
Row = dict[str, object]

BIRTHS = (
    Column("points", "points"),
    Column("births", "births"),
    Column("distance pass, s", "floor"),
    Column("toposcope, s", "seconds"),
    Column("toposcope / pass", "ratio"),
    Column("peak extra memory, MB", "megabytes"),
)

Cloud = tuple[int, int, int]
"""Points, dimensions, and how many farthest-point landmarks of them are taken; 0 for all points."""
SMALL = ((1000, 2, 0), (2000, 2, 0), (1000, 3, 0), (2000, 3, 0), (1000, 50, 0), (2000, 50, 0), (4000, 50, 0))
WIDE = ((3072, 768, 1000), (3072, 768, 2000), (20_000, 768, 1000))
LARGE = ((8192, 2048, 0), (10_000, 10, 0), (10_000, 512, 0), (50_257, 768, 2000))


@command("loops", "small clouds", repeats=3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure H1, H2, their memory, and births, and write the results."""
    installed, absent = use(REDZED, TDA, GIOTTO, HOLOS, CANNS)
    named_all = [name for name in ALL if name in (OURS, GUDHI, RIPSER, *installed)]
    fast = [name for name in named_all if name in (OURS, REDZED)]
    h1: list[Row] = []
    if quick:
        h1 += on_matrices([(200, 2, 0), (300, 64, 100)], 1, named_all, repeats)
    else:
        h1 += on_matrices(SMALL, 1, named_all, repeats) + on_circle(1000, named_all, repeats)
        h1 += on_matrices(WIDE, 1, [name for name in named_all if name in (OURS, REDZED, GUDHI)], repeats)
        h1 += on_matrices(LARGE, 1, fast, 1)
    voids = on_spheres((50,) if quick else (300, 500, 1000), named_all, repeats)
    gaussian = [(60, 3, 0)] if quick else [(300, 3, 0), (500, 3, 0), (1000, 3, 0), (500, 20, 0)]
    voids += on_matrices(gaussian, 2, [name for name in named_all if name in (OURS, REDZED, GUDHI)], repeats)
    largest = [(2000, 50)] if quick else [(20_000, 50), (50_000, 512)]
    tables = {
        "H1 of a matrix of distances": (h1, COLUMNS),
        "H2 of a matrix of distances": (voids, COLUMNS),
        "Births without distances": ([alone(births, n, d) for n, d in largest], BIRTHS),
    }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn, 1 beyond {SLOW:g} s and of the largest clouds; median "
        "(lowest-highest)",
        "clouds": "standard normal points; landmarks are farthest points of such a cloud; spheres and circle are "
        "uniform, the circle with 5% noise",
        "engines": "one thread each, given the full matrix of distances; field of two elements; GUDHI's is "
        "the engine of its scikit-learn interface; RedZeD, tda, ripser, giotto-ph and canns-lib compute in float32",
        "memory": "growth of the resident set, each contestant in a process of its own, the input not counted",
        "left out": f"beyond {MAX_SECONDS} s or {MAX_BYTES >> 30} GB; on the largest clouds those that would be",
        "pass": "all squared distances in float32 by BLAS, 512 rows at a time, nothing else done with them",
    }
    write("loops", out, facts | absent, tables, ("toposcope", "numpy", "numba", "gudhi", "ripser", *installed))


def on_matrices(clouds: Sequence[Cloud], dimension: int, names: list[str], repeats: int) -> list[Row]:
    """Time engines on the distances of clouds."""
    return [
        row
        for cloud in track(clouds, description=f"H{dimension}")
        for row in on(named(cloud), distances_of(*cloud), of_matrix(dimension, names), repeats)
    ]


def on_circle(n: int, names: list[str], repeats: int) -> list[Row]:
    """Time engines on one loop that lives long."""
    points = circle(n)
    return on(f"noisy circle, {n}", np.asarray(cdist(points, points)), of_matrix(1, names), repeats)


def on_spheres(sizes: tuple[int, ...], names: list[str], repeats: int) -> list[Row]:
    """Time engines on one void that lives long; those that would take too long on the small one are left out."""
    rows: list[Row] = []
    for n in track(sizes, description="spheres"):
        points = normal(n, 3)
        points /= np.linalg.norm(points, axis=1)[:, None]
        chosen = names if n < 100 else [name for name in names if name in (OURS, REDZED, GUDHI)]
        rows += on(f"sphere, {n}", np.asarray(cdist(points, points)), of_matrix(2, chosen), repeats)
    return rows


def on(cloud: str, given: Vector, engines: dict[str, Engine], repeats: int) -> list[Row]:
    """Time engines on an array, which they read from a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.npy"
        np.save(file, given)
        return contest(cloud, file, engines, repeats)


def births(n: int, d: int) -> Row:
    """Time the births of a cloud beside one pass over its distances."""
    h1_births(normal(1000, d))
    points = normal(n, d)
    begin = perf_counter()
    distance_pass(points)
    floor = perf_counter() - begin
    seconds, megabytes, found = with_memory(partial(h1_births, points))
    return {
        "points": f"{n} x {d}",
        "births": len(found),
        "floor": f"{floor:.2f}",
        "seconds": f"{seconds:.2f}",
        "ratio": f"{seconds / floor:.2f}",
        "megabytes": round(megabytes),
    }


def circle(n: int) -> Vector:
    """Make points near a circle, always the same."""
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, n)
    return np.column_stack([np.cos(angles), np.sin(angles)]) + 0.05 * normal(n, 2)


def distances_of(n: int, d: int, landmarks: int) -> Vector:
    """Make the distances of a cloud, or of its landmarks."""
    points = normal(n, d)
    if landmarks:
        points = points[farthest_points(points, landmarks)[0]]
    return distance_matrix(points)


def named(cloud: Cloud) -> str:
    """Return how the tables call a cloud."""
    n, d, landmarks = cloud
    return f"{landmarks} landmarks of {n} x {d}" if landmarks else f"{n} x {d}"


if __name__ == "__main__":
    main()
