"""Persistent homology: toposcope's kernels against SciPy, ripser, GUDHI and textbook Python, on one thread.

    python benchmarks/homology.py [--quick]

Every contestant must first give the same result as toposcope, within its own precision.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click
import numpy as np
from gudhi.hera import wasserstein_distance
from gudhi.sklearn import RipsPersistence
from numpy.typing import NDArray
from rich.progress import track
from ripser import ripser
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from threadpoolctl import threadpool_limits

from bench import RESULTS, Column, Spread, interleaved, show, write
from toposcope.homology import Diagram, neural_persistence, rips, wasserstein

Vector = NDArray[np.float64]

DELTA = 1e-2
"""Hera's tolerance: it returns at most (1 + DELTA) times the exact distance."""
DIMENSION = 50
TEXTBOOK_LIMIT = 512
SHORTEST_SAMPLE = 0.05
OURS = "toposcope"
COLUMNS = (
    Column("problem", "problem"),
    Column("contestant", "contestant"),
    Column("its ms", "theirs"),
    Column("toposcope ms", "ours"),
    Column("ratio", "ratio"),
)
Row = dict[str, str | Spread]


@dataclass(frozen=True)
class Problem:
    """One problem, who solves it, and how far from toposcope's answer each may be.

    Attributes
    ----------
    title : str
    contestants : mapping of callable
        Each returns its answer, an array; toposcope is the first.
    bounds : mapping of (low, high)
        Allowed answer / toposcope's answer, by contestant.
    """

    title: str
    contestants: Mapping[str, Callable[[], Vector]]
    bounds: Mapping[str, tuple[float, float]]


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]}, epilog="Example: python benchmarks/homology.py --quick"
)
@click.option("--quick", is_flag=True, help="Show that it works: the smallest problem of each kind, 3 repeats.")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Samples of each contestant.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the result files.")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Compare neural persistence, H0 and the Wasserstein distance with other libraries, on one thread.

    The contestants are sampled in turn. A ratio above 1 says that toposcope is faster; it is that of neighbouring
    samples, and in brackets stand the lowest and the highest.
    """
    if quick:
        repeats = 3
    kinds: dict[str, list[Callable[[], Problem]]] = {
        "Neural persistence": [lambda n=n: np_problem(n) for n in (128, 512, 2048)],  # type: ignore[misc]
        "H0 of a point cloud": [lambda n=n: h0_problem(n) for n in (200, 1000, 2000)],  # type: ignore[misc]
        "Wasserstein distance": [
            lambda n=n, q=q: wasserstein_problem(n, q)  # type: ignore[misc]
            for n in (130, 500)
            for q in (1, 2)
        ],
    }
    tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {}
    with threadpool_limits(1):
        for title, problems in kinds.items():
            rows: list[Row] = []
            for make in track(problems[: 1 if quick else None], description=f"{title:>20}"):
                rows += compare(make(), repeats)
            tables[title] = (rows, COLUMNS)
            show(rows, COLUMNS, f"{title}: median (lowest-highest)")
    facts = {
        "samples": f"{repeats} of each contestant in turn, one thread; median (lowest-highest)",
        "neural persistence": "standard normal square matrices, float32; SciPy's minimum spanning tree on a sparse "
        "bipartite graph, its construction included; textbook: Kruskal's algorithm in plain Python",
        "H0": f"standard normal points in {DIMENSION} dimensions; all from the coordinates; ripser computes in float32",
        "Wasserstein": "two H0 diagrams of n points of a cloud before and after a small move; toposcope is exact, "
        f"gudhi.hera has delta = {DELTA:g}: it returns at most 1 + delta times the exact distance",
    }
    write("homology", out, facts, tables, ("toposcope", "numpy", "scipy", "numba", "gudhi", "ripser"))


def compare(problem: Problem, repeats: int) -> list[Row]:
    """Check that all agree, then time them."""
    exact = problem.contestants[OURS]()
    for name, (low, high) in problem.bounds.items():
        answer = problem.contestants[name]()
        if answer.shape != exact.shape or not ((answer >= exact * low) & (answer <= exact * high)).all():
            raise click.ClickException(f"{problem.title}: {name} does not agree with {OURS}; nothing was timed")
    sampled = {name: _long_enough(run) for name, run in problem.contestants.items()}
    taken = interleaved({name: run for name, (run, _) in sampled.items()}, repeats)
    single = {name: [seconds / sampled[name][1] for seconds in samples] for name, samples in taken.items()}
    return [
        {
            "problem": problem.title,
            "contestant": name,
            "theirs": Spread.of([1000 * s for s in single[name]]),
            "ours": Spread.of([1000 * s for s in single[OURS]]),
            "ratio": Spread.of([theirs / ours for theirs, ours in zip(single[name], single[OURS], strict=True)]),
        }
        for name in problem.bounds
    ]


def np_problem(n: int) -> Problem:
    """Neural persistence of an n x n matrix; the answer is the deaths."""
    W = np.random.default_rng(n).standard_normal((n, n), dtype=np.float32)
    contestants: dict[str, Callable[[], Vector]] = {
        OURS: lambda: neural_persistence(W).deaths,
        "SciPy": lambda: scipy_deaths(W),
    }
    if n <= TEXTBOOK_LIMIT:
        contestants["textbook"] = lambda: textbook_deaths(W)
    exact = (1 - 1e-12, 1 + 1e-12)
    return Problem(f"{n} x {n}", contestants, {name: exact for name in contestants if name != OURS})


def scipy_deaths(W: NDArray[np.float32]) -> Vector:
    """Deaths from SciPy's minimum spanning tree of 2 - |W| / max|W|: an entry of 0 would be no edge to it."""
    m, n = W.shape
    magnitude = np.abs(W).astype(np.float64)
    costs = 2 - magnitude / magnitude.max()
    columns = np.tile(np.arange(m, m + n), m)
    starts = np.concatenate([np.arange(0, m * n + 1, n), np.full(n, m * n)])
    tree = minimum_spanning_tree(csr_array((costs.ravel(), columns, starts), shape=(m + n, m + n)))
    return np.asarray(2 - np.sort(tree.data))


def textbook_deaths(W: NDArray[np.float32]) -> Vector:
    """Deaths by Kruskal's algorithm: sort every edge, join what is not yet joined."""
    m, n = W.shape
    largest = float(np.abs(W).max())
    edges = sorted(((abs(float(W[i, j])), i, m + j) for i in range(m) for j in range(n)), reverse=True)
    parent = list(range(m + n))

    def find(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    deaths = []
    for weight, i, j in edges:
        a, b = find(i), find(j)
        if a != b:
            parent[a] = b
            deaths.append(weight / largest)
    return np.array(deaths)


def h0_problem(n: int) -> Problem:
    """H0 of n points; the answer is the finite deaths."""
    points = np.random.default_rng(n).standard_normal((n, DIMENSION))
    contestants: dict[str, Callable[[], Vector]] = {
        OURS: lambda: rips(points, max_dimension=0)[0].pairs[:, 1],
        "ripser": lambda: _finite_deaths(ripser(points, maxdim=0)["dgms"][0]),
        "GUDHI": lambda: _finite_deaths(RipsPersistence(homology_dimensions=0).fit_transform([points])[0]),
    }
    return Problem(f"{n} points", contestants, {"ripser": (1 - 1e-5, 1 + 1e-5), "GUDHI": (1 - 1e-12, 1 + 1e-12)})


def wasserstein_problem(n: int, order: int) -> Problem:
    """Distance of two H0 diagrams of n points each."""
    before, after = _moved_diagrams(n)
    contestants: dict[str, Callable[[], Vector]] = {
        OURS: lambda: np.array([wasserstein(before, after, order=2 if order == 2 else 1)]),
        "gudhi.hera": lambda: np.array(
            [wasserstein_distance(before.pairs, after.pairs, order=order, internal_p=np.inf, delta=DELTA)]
        ),
    }
    return Problem(f"{n} points, order {order}", contestants, {"gudhi.hera": (1 - 1e-9, 1 + DELTA + 1e-9)})


def _moved_diagrams(n: int) -> tuple[Diagram, Diagram]:
    generator = np.random.default_rng(n)
    points = generator.standard_normal((n + 1, DIMENSION))
    moved = points + 0.01 * generator.standard_normal(points.shape)
    return rips(points, max_dimension=0)[0], rips(moved, max_dimension=0)[0]


def _finite_deaths(bars: NDArray[np.floating]) -> Vector:
    deaths = np.asarray(bars, dtype=np.float64)[:, 1]
    return np.sort(deaths[np.isfinite(deaths)])


def _long_enough(run: Callable[[], object]) -> tuple[Callable[[], object], int]:
    """Repeat a short call within one sample; return the sample and how many calls it holds."""
    begin = perf_counter()
    run()
    calls = max(1, math.ceil(SHORTEST_SAMPLE / (perf_counter() - begin)))

    def sample() -> None:
        for _ in range(calls):
            run()

    return sample, calls


if __name__ == "__main__":
    main()
