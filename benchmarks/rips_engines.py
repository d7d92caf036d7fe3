"""Engines of Rips persistence, each as one function, and how they are timed beside one another.

Every contestant has a process of its own, in which it first computes a small cloud. The processes are asked in turn,
A B A B and so on, and one that goes beyond a limit is left out of the turns that follow.
"""

import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import click
import numpy as np
from numpy.typing import NDArray

from bench import Column, ratio, with_memory
from other_tools import use
from result_files import Spread
from toposcope.errors import ToposcopeError

Vector = NDArray[np.float64]
Row = dict[str, object]
Engine = Callable[[Vector], Vector]

OURS, GUDHI, RIPSER, REDZED, TDA, GIOTTO = "toposcope", "GUDHI", "ripser", "redzed-tda", "tda", "giotto-ph"
HOLOS, CANNS = "holos-tda", "canns-lib"
ALL = (OURS, REDZED, GUDHI, TDA, RIPSER, GIOTTO, HOLOS, CANNS)
MAX_SECONDS, MAX_BYTES = 60, 8 << 30
"""Of one computation: processor time, and memory beside the matrix."""
SLOW = 3.0
"""Seconds from which one sample is enough."""
SINGLE = 1e-4
"""How far, relatively, the total length of bars may be off in float32."""

COLUMNS = (
    Column("cloud", "cloud"),
    Column("contestant", "contestant"),
    Column("bars", "bars"),
    Column("CPU seconds", "seconds"),
    Column("time / toposcope", "ratio"),
    Column("peak memory, MB", "megabytes"),
)


def contest(cloud: str, file: Path, engines: dict[str, Engine], repeats: int) -> list[Row]:
    """Time engines on the array in a file, in turn; those that give bars must agree."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    megabytes: dict[str, float] = {}
    lengths: dict[str, Vector] = {}
    faults: dict[str, str] = {}
    with ExitStack() as stack:
        context = get_context("spawn")
        pools = {name: stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for name in engines}
        for turn in range(repeats):
            for name, run in engines.items():
                if name in faults or (turn and seconds[name][0] > SLOW):
                    continue
                begin = perf_counter()
                try:
                    taken, grown, lengths[name] = pools[name].submit(measured, run, str(file)).result()
                except BrokenProcessPool:
                    # Processor time cannot be longer than what has passed; its limit counts whole seconds.
                    in_time = perf_counter() - begin < MAX_SECONDS - 1
                    faults[name] = "its process died" if in_time else f"more than {MAX_SECONDS} s"
                except MemoryError:
                    faults[name] = f"more than {MAX_BYTES >> 30} GB"
                except ToposcopeError as fault:
                    faults[name] = str(fault)
                else:
                    seconds[name].append(taken)
                    megabytes.setdefault(name, grown)  # what a process has taken once, it keeps
    for name, found in lengths.items():
        first, exact = next(iter(lengths.items()))
        if not agrees({first, name}, found, exact):
            raise click.ClickException(f"{cloud}: {name} does not agree with {first}")
    return [
        {
            "cloud": cloud,
            "contestant": name,
            "bars": len(lengths[name]),
            "seconds": Spread.of(seconds[name]),
            "ratio": relative(seconds[name], seconds[OURS]),
            "megabytes": round(megabytes[name]),
        }
        if name not in faults
        else {"cloud": cloud, "contestant": name, "seconds": faults[name]}
        | dict.fromkeys(("bars", "ratio", "megabytes"))
        for name in engines
    ]


def relative(theirs: list[float], ours: list[float]) -> Spread | None:
    """Divide neighbouring samples, as far as there are two."""
    return ratio(theirs[: len(ours)], ours[: len(theirs)]) if theirs and ours else None


def agrees(names: set[str], found: Vector, exact: Vector) -> bool:
    """Tell whether lengths of bars are the same, in float32 by their sum."""
    if names <= {OURS, GUDHI}:
        return np.array_equal(found, exact)
    return bool(abs(found.sum() - exact.sum()) <= SINGLE * exact.sum())


def measured(run: Engine, file: str) -> tuple[float, float, Vector]:
    """Return processor seconds, growth of the resident set in MB, and the lengths of the bars."""
    given = np.load(file)
    limit()
    run(small_matrix())
    spent: list[float] = []

    def timed() -> Vector:
        begin = processor_seconds()
        bars = run(given)
        spent.append(processor_seconds() - begin)
        return bars

    _, megabytes, bars = with_memory(timed)
    return spent[0], megabytes, lengths_of(bars)


def small_matrix() -> Vector:
    """Return the distances of a small cloud, for what an engine does the first time."""
    points = normal(200, 3)
    distances: Vector = np.sqrt(((points[:, None] - points) ** 2).sum(axis=-1))
    return distances


def processor_seconds() -> float:
    """Return the processor time of this process; under a limit, Linux counts `time.process_time` in whole ticks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def limit() -> None:
    """Let this process, from now on, be ended beyond the limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(processor_seconds()) + MAX_SECONDS, resource.RLIM_INFINITY))
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + MAX_BYTES, resource.RLIM_INFINITY))


def lengths_of(bars: Vector) -> Vector:
    """Return the positive lengths of finite bars, ascending."""
    bars = np.asarray(bars, dtype=np.float64).reshape(-1, 2)
    lengths: Vector = np.sort(bars[:, 1] - bars[:, 0])
    return lengths[np.isfinite(lengths) & (lengths > 0)]


def of_matrix(dimension: int, names: Sequence[str]) -> dict[str, Engine]:
    """Return engines that take a matrix of distances and return the bars of a dimension."""
    run = {
        OURS: our_bars,
        GUDHI: gudhi_bars,
        RIPSER: ripser_bars,
        REDZED: redzed_bars,
        TDA: tda_bars,
        GIOTTO: giotto_bars,
        HOLOS: holos_bars,
        CANNS: canns_bars,
    }
    return {name: partial(run[name], dimension) for name in names}


def our_bars(dimension: int, matrix: Vector) -> Vector:
    """H1 by toposcope's engine, H2 by what `rips` chooses, which computes H0 and H1 as well."""
    from toposcope.homology import rips
    from toposcope.homology.loops import loop_diagram

    if dimension == 1:
        return loop_diagram(matrix).pairs
    return rips(matrix, metric="precomputed", max_dimension=dimension)[dimension].pairs


def gudhi_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by GUDHI's engine for Rips complexes, that of its scikit-learn interface."""
    from gudhi.sklearn import RipsPersistence

    engine = RipsPersistence(
        homology_dimensions=[dimension], input_type="full distance matrix", homology_coeff_field=2, n_jobs=1
    )
    return np.asarray(engine.fit_transform([matrix])[0][0])


def ripser_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by ripser."""
    from ripser import ripser

    return np.asarray(ripser(matrix, maxdim=dimension, distance_matrix=True)["dgms"][dimension])


def redzed_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by RedZeD."""
    use(REDZED)
    import redzed_tda

    return np.asarray(redzed_tda.rips(matrix, maxdim=dimension)[dimension])


def tda_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by tda."""
    use(TDA)
    import tda

    narrow = matrix.astype(np.float32)
    bars = tda.persistent_homology(narrow, max_dim=dimension, distance_matrix=True, parallel=False)
    return np.asarray(bars[dimension])


def giotto_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by giotto-ph."""
    use(GIOTTO)
    from gph import ripser_parallel

    return np.asarray(ripser_parallel(matrix, maxdim=dimension, metric="precomputed", n_threads=1)["dgms"][dimension])


def holos_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by holos."""
    use(HOLOS)
    from holos_tda import rips_condensed

    found = rips_condensed(matrix[np.triu_indices(len(matrix), 1)], dimension)
    return np.array([bar for of, *bar in found if of == dimension], np.float64)


def canns_bars(dimension: int, matrix: Vector) -> Vector:
    """Bars by canns-lib."""
    use(CANNS)
    from canns_lib.ripser import ripser

    return np.asarray(ripser(matrix.astype(np.float32), maxdim=dimension, distance_matrix=True)["dgms"][dimension])


def normal(n: int, d: int) -> Vector:
    """Make standard normal points, always the same."""
    return np.random.default_rng(0).standard_normal((n, d))
