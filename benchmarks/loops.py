"""H1 of point clouds: toposcope beside GUDHI, ripser and giotto-ph, memory beside time; births of large clouds.

    python benchmarks/loops.py [--quick]

All contestants use one thread, and must give the bars of toposcope: GUDHI to the last bit, those that compute in
float32 within its precision. giotto-ph is what `benchmarks/other_tools.py` installs.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

# Before NumPy loads its BLAS; a contestant's own processes inherit it.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import click
import numpy as np
from gudhi.sklearn import RipsPersistence
from numpy.typing import NDArray
from rich.progress import track
from ripser import ripser
from scipy.spatial.distance import cdist

from bench import Column, Spread, alone, command, distance_pass, ratio, show, with_memory, write
from other_tools import use
from toposcope.homology import farthest_points, h1_births
from toposcope.homology.loops import loop_diagram
from toposcope.homology.rips import expected_seconds
from toposcope.kernels.pairwise import distance_matrix

Vector = NDArray[np.float64]
Row = dict[str, object]

OURS, GIOTTO = "toposcope", "giotto-ph"
SINGLE = 1e-4
"""How far, relatively, the total length of bars may be off in float32."""

ENGINES = (
    Column("cloud", "cloud"),
    Column("contestant", "contestant"),
    Column("seconds", "seconds"),
    Column("peak extra memory, MB", "megabytes"),
    Column("time / toposcope", "ratio"),
)
LARGE = (
    Column("points", "points"),
    Column("bars", "bars"),
    Column("distances, s", "distances"),
    Column("loops, s", "seconds"),
    Column("together, s", "together"),
    Column("expected, s", "expected"),
    Column("peak extra memory, MB", "megabytes"),
)
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


@command("loops", "small clouds", repeats=3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure H1, its memory, and births, and write the results."""
    installed, absent = use(GIOTTO)
    sizes: tuple[int, ...] = (200,) if quick else (1000, 2000, 4000)
    clouds = [(n, d, 0) for n in sizes for d in (2, 10, 50, 512)]
    clouds += [(300, 64, 100)] if quick else [(2304, 768, 2000), (3072, 768, 2000), (20_000, 768, 1000)]
    large = [(500, 10)] if quick else [(3072, 768), (10_000, 10), (10_000, 512), (8192, 2048)]
    largest = [(2000, 50)] if quick else [(20_000, 50), (50_000, 512)]
    tables = {
        "H1 of a matrix of distances": (engines(clouds, repeats, [OURS, "GUDHI", "ripser", *installed]), ENGINES),
        "Large clouds, from the points": ([alone(large_cloud, n, d) for n, d in large], LARGE),
        "Births without distances": ([alone(births, n, d) for n, d in largest], BIRTHS),
    }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn, 1 from 4,000 points on and of landmarks; median "
        "(lowest-highest)",
        "clouds": "standard normal points; landmarks are farthest points of such a cloud",
        "engines": "one thread each, given the full matrix of distances; field of two elements; GUDHI's is the engine "
        "of its scikit-learn interface; ripser and giotto-ph compute in float32",
        "memory": "growth of the resident set, each contestant in a process of its own, the matrix not counted",
        "large clouds": "distances and all, one thread; memory with the distances; expected is what is announced",
        "pass": "all squared distances in float32 by BLAS, 512 rows at a time, nothing else done with them",
    }
    write("loops", out, facts | absent, tables, ("toposcope", "numpy", "numba", "gudhi", "ripser", *installed))


def engines(clouds: list[Cloud], repeats: int, contestants: list[str]) -> list[Row]:
    """Time every engine on the same matrices."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "distances.npy"
        for cloud in track(clouds, description="engines"):
            np.save(file, distances_of(*cloud))
            slow = cloud[0] >= 4000 or cloud[2] > 0
            rows += contest(named(cloud), file, 1 if slow else repeats, contestants)
    return rows


def contest(work: str, file: Path, repeats: int, contestants: list[str]) -> list[Row]:
    """Time every engine on one matrix, in turn, each in a process of its own."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    megabytes: dict[str, list[float]] = {name: [] for name in contestants}
    lengths: dict[str, Vector] = {}
    for _ in range(repeats):
        for name in contestants:
            taken, grown, lengths[name] = alone(measured, name, str(file))
            seconds[name].append(taken)
            megabytes[name].append(grown)
    for name, found in lengths.items():
        if not agrees(name, found, lengths[OURS]):
            raise click.ClickException(f"{work}: {name} does not agree with {OURS}")
    return [
        {
            "cloud": work,
            "contestant": name,
            "seconds": Spread.of(seconds[name]),
            "megabytes": round(max(megabytes[name])),
            "ratio": ratio(seconds[name], seconds[OURS]),
        }
        for name in contestants
    ]


def agrees(name: str, found: Vector, exact: Vector) -> bool:
    """Tell whether lengths of bars are those of toposcope; in float32, by their sum."""
    if name in (OURS, "GUDHI"):
        return np.array_equal(found, exact)
    return bool(abs(found.sum() - exact.sum()) <= SINGLE * exact.sum())


def our_bars(matrix: Vector) -> Vector:
    """H1 by toposcope."""
    return loop_diagram(matrix).pairs


def gudhi_bars(matrix: Vector) -> Vector:
    """H1 by GUDHI's engine for Rips complexes."""
    engine = RipsPersistence(
        homology_dimensions=[1], input_type="full distance matrix", homology_coeff_field=2, n_jobs=1
    )
    return np.asarray(engine.fit_transform([matrix])[0][0], dtype=np.float64).reshape(-1, 2)


def ripser_bars(matrix: Vector) -> Vector:
    """H1 by ripser."""
    return np.asarray(ripser(matrix, maxdim=1, distance_matrix=True)["dgms"][1], dtype=np.float64)


def giotto_bars(matrix: Vector) -> Vector:
    """H1 by giotto-ph."""
    use(GIOTTO)
    from gph import ripser_parallel

    return np.asarray(ripser_parallel(matrix, maxdim=1, metric="precomputed", n_threads=1)["dgms"][1], np.float64)


ENGINE: dict[str, Callable[[Vector], Vector]] = {
    OURS: our_bars,
    "GUDHI": gudhi_bars,
    "ripser": ripser_bars,
    GIOTTO: giotto_bars,
}


def measured(name: str, file: str) -> tuple[float, float, Vector]:
    """Return seconds, growth of the resident set in MB, and the lengths of the bars; warmed up on a small cloud."""
    matrix, run = np.load(file), ENGINE[name]
    run(distances_of(100, 3, 0))
    seconds, megabytes, bars = with_memory(partial(run, matrix))
    return seconds, megabytes, lengths_of(bars)


def lengths_of(bars: Vector) -> Vector:
    """Return the positive lengths of finite bars, ascending."""
    lengths = bars[:, 1] - bars[:, 0]
    return np.sort(lengths[np.isfinite(lengths) & (lengths > 0)])


def large_cloud(n: int, d: int) -> Row:
    """Time distances and loops of a large cloud, with the memory of both."""
    loop_diagram(distance_matrix(normal(100, d)))
    points = normal(n, d)
    taken: list[float] = []

    def run() -> int:
        begin = perf_counter()
        matrix = distance_matrix(points)
        taken.append(perf_counter() - begin)
        return len(loop_diagram(matrix).pairs)

    together, megabytes, bars = with_memory(run)
    return {
        "points": f"{n} x {d}",
        "bars": bars,
        "distances": f"{taken[0]:.2f}",
        "seconds": f"{together - taken[0]:.2f}",
        "together": f"{together:.2f}",
        "expected": f"{expected_seconds(n, d, max_points=n):.1f}",
        "megabytes": round(megabytes),
    }


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


def normal(n: int, d: int) -> Vector:
    """Make standard normal points, always the same."""
    return np.random.default_rng(0).standard_normal((n, d))


def distances_of(n: int, d: int, landmarks: int) -> Vector:
    """Make the distances of a cloud, or of its landmarks."""
    points = normal(n, d)
    if landmarks:
        points = points[farthest_points(points, landmarks)[0]]
    return np.asarray(cdist(points, points))


def named(cloud: Cloud) -> str:
    """Return how the tables call a cloud."""
    n, d, landmarks = cloud
    return f"{landmarks} landmarks of {n} x {d}" if landmarks else f"{n} x {d}"


if __name__ == "__main__":
    main()
