"""One cloud of hidden states: everything but H1 beside H1, streamed spectra beside a matrix product.

    python benchmarks/hidden_states.py [--quick]

Every contestant must first give the same result as toposcope, within its own precision.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from bench import AGAINST, Column, against, command, interleaved, milliseconds, ratio, show, write
from result_files import Spread
from toposcope.homology import (
    Diagram,
    Moments,
    bottleneck,
    diagram_distances,
    rips,
    spectral_measures,
    statistics,
    two_nn,
    wasserstein,
)
from toposcope.homology.loops import loop_diagram
from toposcope.homology.point_cloud import with_distances

Matrix = NDArray[np.float64]
Row = dict[str, object]

DIMENSION = 512
BLOCK = 4096
H1 = "H1"
REST = "all but H1"

PARTS = (
    Column("work", "work"),
    Column("ms", "taken"),
    Column("time / H1", "ratio"),
)
STREAM = (
    Column("points", "points"),
    Column("product", "product"),
    Column("product, s", "floor"),
    Column("streamed spectra, s", "ours"),
    Column("spectra / product", "ratio"),
)


@command("hidden_states", "small clouds, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure what a cloud of hidden states costs.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    repeats = 3 if quick else repeats
    n_points, n_streamed = (200, 50_000) if quick else (1000, 1_000_000)
    rows = [row for move in ("small move", "other texts") for row in all_but_loops(n_points, move, repeats)]
    tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
        "All but H1, beside H1": (rows, PARTS),
        "Wasserstein-2 of H1 diagrams": (matchings(n_points, min(repeats, 3)), AGAINST),
        "Streamed spectra": (streamed(n_streamed, min(repeats, 3)), STREAM),
    }
    for title, (found, columns) in tables.items():
        show(found, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest); slow ones fewer",
        "cloud": f"normal points in {DIMENSION} dimensions, covariance eigenvalues 1/i, float32",
        "distances": f"to the diagrams of {n_points} points before: moved by 0.2 of the spread in every direction, or "
        "drawn anew",
        "H1": "from the distances; beside other libraries it is in the benchmark of loops",
        "Wasserstein": "SciPy's assignment on the matrix of all costs, which it is not given",
        "spectra": f"float32 blocks of {BLOCK} rows, summed in float64; the product X'X of the same rows at once, in "
        "float64 or float32",
    }
    write("hidden-states", out, facts, tables, ("toposcope", "numpy", "scipy", "numba"))


def cloud(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Make normal points whose covariance has eigenvalues 1/i."""
    scales = np.arange(1, DIMENSION + 1) ** -0.5
    return (np.random.default_rng(seed).standard_normal((n, DIMENSION)) * scales).astype(np.float32)


def all_but_loops(n: int, move: str, repeats: int) -> list[Row]:
    """Time every part of measuring a cloud beside the H1 of its distances."""
    points, other = cloud(n), cloud(n, 1)
    before = rips(points + np.float32(0.2) * other if move == "small move" else other)
    now = rips(points)
    known = with_distances(points)
    distances = known.distances(np.arange(n))
    parts: dict[str, Callable[[], object]] = {
        "distances of all points": partial(with_distances, points),
        "H0 of the distances": partial(rips, known, max_dimension=0),
        "statistics": lambda: [statistics(diagram) for diagram in now],
        "spectral measures": partial(spectral_measures, points),
        "TwoNN of the distances": partial(two_nn, known),
    }
    for k in (0, 1):
        parts[f"H{k}: all three distances"] = partial(diagram_distances, before[k], now[k])
    alone: dict[str, Callable[[], object]] = {}
    for k in (0, 1):
        alone[f"H{k}: Wasserstein-1 alone"] = partial(wasserstein, before[k], now[k], order=1)
        alone[f"H{k}: Wasserstein-2 alone"] = partial(wasserstein, before[k], now[k], order=2)
        alone[f"H{k}: bottleneck alone"] = partial(bottleneck, before[k], now[k])

    def rest() -> None:
        for run in parts.values():
            run()

    taken = milliseconds({H1: partial(loop_diagram, distances), REST: rest, **parts, **alone}, repeats)
    return [
        {"work": f"{n} points, {move}: {name}", "taken": Spread.of(values), "ratio": ratio(values, taken[H1])}
        for name, values in taken.items()
    ]


def matchings(n: int, repeats: int) -> list[Row]:
    """Time the distance of two H1 diagrams beside a general assignment."""
    points, other = cloud(n), cloud(n, 1)
    now = rips(points)[1]
    rows: list[Row] = []
    for move, before in (("small move", points + np.float32(0.2) * other), ("other texts", other)):
        pair = rips(before)[1], now
        ours, theirs = partial(wasserstein, *pair, order=2), {"SciPy": partial(_assigned, *pair)}
        rows += against(f"{n} points, {move}", ours, theirs, repeats, (1 - 1e-12, 1 + 1e-12))
    return rows


def streamed(n: int, repeats: int) -> list[Row]:
    """Time spectra of rows that come in blocks beside one product of them all."""
    narrow = cloud(n)
    wide = narrow.astype(np.float64)
    ours, double, single = "ours", "float64", "float32"
    contestants: dict[str, Callable[[], object]] = {
        ours: partial(_stream, narrow),
        double: lambda: wide.T @ wide,
        single: lambda: narrow.T @ narrow,
    }
    eigenvalue = np.linalg.eigvalsh(np.cov(wide[: 8 * BLOCK], rowvar=False))[-1]
    if not np.isclose(_stream(narrow[: 8 * BLOCK]), eigenvalue, rtol=1e-10):
        raise click.ClickException("streamed spectra do not agree with the covariance at once; nothing was timed")
    for run in contestants.values():
        run()
    taken = interleaved(contestants, repeats)
    return [
        {
            "points": f"{n} x {DIMENSION}",
            "product": name,
            "floor": Spread.of(taken[name]),
            "ours": Spread.of(taken[ours]),
            "ratio": ratio(taken[ours], taken[name]),
        }
        for name in (double, single)
    ]


def _stream(points: NDArray[np.float32]) -> float:
    moments = Moments(points.shape[1])
    for block in _blocks(points):
        moments.add(block)
    return moments.measures().top_eigenvalue


def _blocks(points: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for begin in range(0, len(points), BLOCK):
        yield points[begin : begin + BLOCK]


def _assigned(first: Diagram, second: Diagram) -> float:
    """Return the distance by an assignment of all bars and as many places on the diagonal."""
    a, b = first.pairs, second.pairs
    costs = np.zeros((len(a) + len(b), len(a) + len(b)))
    costs[: len(a), : len(b)] = cdist(a, b, "chebyshev") ** 2
    costs[: len(a), len(b) :] = (first.lifetimes[:, None] / 2) ** 2
    costs[len(a) :, : len(b)] = (second.lifetimes / 2) ** 2
    return float(np.sqrt(costs[linear_sum_assignment(costs)].sum()))


if __name__ == "__main__":
    main()
