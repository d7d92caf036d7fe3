"""A whole study beside textbook code: from 255 checkpoint files to numbers, the association table, the report.

    python benchmarks/study.py [--quick]

The checkpoints have the published shapes and are made here: five sizes, 51 steps each.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter

import click
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from ripser import ripser
from threadpoolctl import threadpool_limits

import textbook_association
import textbook_topology
import toposcope as ts
from bench import Column, command, interleaved, ratio, show, write
from published_shapes import make_family
from result_files import Spread
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.engine.pool import Workers
from toposcope.probes import Feature
from toposcope.report.writing import study_page
from toposcope.study.declaration import Declaration, DeclaredSeries
from toposcope.study.runner import run_study

Row = dict[str, object]
Vector = NDArray[np.float64]

STEPS = 51
PROCESSES, THREADS = 2, 2
FEATURES, RUNS = 50, 5
EVERY = 5
"""Of the checkpoints, one in so many has its H1 computed here."""
SAME = 1e-6
NOISE = 0.08
"""Ends of bootstrap intervals from other draws differ by less."""
TOPOLOGY: list[dict[str, object]] = [{"name": "neural_persistence"}, {"name": "rips", "max_dimension": 0}]
STUDY_PROBES: list[dict[str, object]] = [
    {"name": "neural_persistence"},
    {"name": "rips"},
    {"name": "rips", "pooled": True},
    {"name": "controls"},
    {"name": "distances"},
]

AGAINST = (
    Column("work", "work"),
    Column("contestant", "contestant"),
    Column("its s", "theirs"),
    Column("toposcope s", "ours"),
    Column("ratio", "ratio"),
)
ALONE = (Column("work", "work"), Column("seconds", "seconds"))


@command("study", "6 checkpoints of each size, 2 repeats", 5)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure a study from checkpoint files to its report.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    repeats, steps = (2, 6) if quick else (repeats, STEPS)
    with tempfile.TemporaryDirectory(prefix="toposcope-bench-") as temporary:
        folder = Path(temporary)
        family = make_family(folder / "family", steps)
        runs = family["safetensors"]
        tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
            "Neural persistence and H0, from files": (from_files(family, folder, repeats), AGAINST),
            "H1 of every layer": (loops(runs, repeats), AGAINST),
            "Association table": (associations(2 if quick else 5, repeats), AGAINST),
            "Report": (reports(runs, folder / "study", repeats), ALONE),
        }
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest)",
        "checkpoints": f"{len(runs) * steps}: {steps} of each published size, as safetensors files and by torch.save; "
        "both sides read the same files, which the system holds in memory",
        "textbook": "safetensors' load_file or torch.load, Kruskal's algorithm in plain Python, ripser's H0 of at most "
        "200 pooled rows up to 2.0; one thread",
        "toposcope": "neural persistence of every layer and exact H0 of all rows of every layer; 'library' is a "
        "loop over series() with neural_persistence() and rips(max_dimension=0), with more threads a "
        "ThreadPoolExecutor over the checkpoints; 'study' is run_study(), which also hashes, examines and stores, the "
        "start of its processes included",
        "H1": f"the layers of one checkpoint in {EVERY}; ripser is called on the same clouds one by one; more "
        "processes are those of a study, started before",
        "association": "a loop over scipy.stats, timed on some features of one run and scaled to all",
        "report": "`toposcope report` as a process of its own, start-up included, and its analysis alone",
    }
    write("study", out, facts, tables, ("toposcope", "numpy", "scipy", "numba", "gudhi", "ripser", "torch"))


def from_files(family: Mapping[str, Sequence[Path]], folder: Path, repeats: int) -> list[Row]:
    """Time neural persistence and H0 of all checkpoints in each format: the library alone, and as a study."""
    rows = []
    with one_thread():
        for format, runs in family.items():
            check_topology(runs)
            contestants: dict[str, Callable[[], object]] = {
                "textbook": partial(textbook, runs),
                "library, 1 thread": partial(library, runs, 1),
                f"library, {THREADS} threads": partial(library, runs, THREADS),
                "study, 1 process": partial(measured_anew, runs, folder, 1),
                f"study, {PROCESSES} processes": partial(measured_anew, runs, folder, PROCESSES),
            }
            taken = interleaved(contestants, repeats)
            rows += [versus(f".{format}: {name}", "textbook", taken, name) for name in list(contestants)[1:]]
    return rows


def textbook(runs: Sequence[Path]) -> list[float]:
    """Mean neural persistence of every checkpoint by the textbook, which computes its H0 too."""
    rng = np.random.default_rng(0)
    files = chain.from_iterable(sorted((run / "checkpoints").iterdir()) for run in runs)
    return [textbook_topology.features(file, rng)[0] for file in files]


def library(runs: Sequence[Path], threads: int) -> list[float]:
    """Return the same by toposcope, which computes the H0 of all rows of every layer too."""
    checkpoints = chain.from_iterable(ts.series(run) for run in runs)
    if threads == 1:
        return [features(checkpoint)[0] for checkpoint in checkpoints]
    with ThreadPoolExecutor(threads) as pool:
        return [mean for mean, _ in pool.map(features, checkpoints)]


def features(checkpoint: Checkpoint) -> tuple[float, float]:
    """Return the mean neural persistence of a checkpoint's layers, and the total H0 persistence of their rows."""
    values, totals = [], []
    for layer in checkpoint.analysed():
        W = layer.read()
        values.append(ts.neural_persistence(W).mean)
        totals.append(ts.rips(W, max_dimension=0)[0].lifetimes.sum())
    return float(np.mean(values)), float(np.sum(totals))


def check_topology(runs: Sequence[Path]) -> None:
    """Let both agree on neural persistence, and ripser on H0 where it does the same."""
    if not np.allclose(textbook(runs), library(runs, 1), rtol=SAME, atol=0):
        raise click.ClickException("neural persistence: the textbook does not agree with toposcope; nothing was timed")
    for W in clouds(runs, len(runs) * STEPS):
        ours, theirs = (np.sort(bars[0][:, 1]) for bars in (our_bars(W, 0), ripser_bars(W, 0)))
        if not np.allclose(ours, theirs[np.isfinite(theirs)], rtol=1e-4):
            raise click.ClickException("H0: ripser does not agree with toposcope; nothing was timed")


def measured_anew(runs: Sequence[Path], folder: Path, workers: int) -> None:
    """Measure what the library does as a study that is not there yet; it is deleted with the folder, after all."""
    measured(runs, Path(tempfile.mkdtemp(dir=folder)) / "study", TOPOLOGY, workers)


def measured(runs: Sequence[Path], directory: Path, probes: list[dict[str, object]], workers: int) -> None:
    """Measure all runs as a study."""
    series = [DeclaredSeries(path=str(run)) for run in runs]
    errors = run_study(Declaration(name="bench", series=series, probes=probes), directory, workers=workers)
    if errors:
        raise click.ClickException(f"the study failed: {next(iter(errors.values()))}")


def loops(runs: Sequence[Path], repeats: int) -> list[Row]:
    """Time H1 of every layer beside ripser, and in more processes."""
    points = clouds(runs, EVERY)
    files = [checkpoint.location for run in runs for checkpoint in list(ts.series(run))[::EVERY]]
    for W in points[:: len(points) // 20]:
        ours, theirs = (np.sort(bars[1][:, 1] - bars[1][:, 0]) for bars in (our_bars(W, 1), ripser_bars(W, 1)))
        if not np.isclose(ours.sum(), theirs.sum(), rtol=1e-4, atol=1e-6):
            raise click.ClickException("H1: ripser does not agree with toposcope; nothing was timed")
    with one_thread(), Workers(1) as here, Workers(PROCESSES) as pool:
        list(pool.run(loops_of, files[: 4 * PROCESSES]))
        taken = interleaved(
            {
                "ripser": lambda: [ripser_bars(W, 1) for W in points],
                "1 process": lambda: [our_bars(W, 1) for W in points],
                "from files, 1 process": lambda: list(here.run(loops_of, files)),
                "more": lambda: list(pool.run(loops_of, files)),
            },
            repeats,
        )
    n = len(points)
    return [
        versus(f"H1 of {n} layers", "ripser", taken, "1 process"),
        versus(f"H1 of {n} layers, {PROCESSES} processes", "from files, 1 process", taken, "more"),
    ]


def clouds(runs: Sequence[Path], every: int) -> list[NDArray[np.float32]]:
    """Read the layers of one checkpoint in so many."""
    return [c.read() for run in runs for checkpoint in list(ts.series(run))[::every] for c in checkpoint.analysed()]


def our_bars(points: NDArray[np.float32], dimension: int) -> list[Vector]:
    """Points of the diagrams up to a dimension, by toposcope."""
    return [d.pairs for d in ts.rips(points, max_dimension=dimension)]


def ripser_bars(points: NDArray[np.float32], dimension: int) -> list[Vector]:
    """Return the same by ripser."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clouds with as many coordinates as points
        bars: list[Vector] = ripser(points, maxdim=dimension)["dgms"]
    return bars


def loops_of(file: str) -> float:
    """Total H1 persistence of a checkpoint's layers."""
    (checkpoint,) = ts.series(file)
    return sum(float(ts.rips(c.read(), max_dimension=1)[1].lifetimes.sum()) for c in checkpoint.analysed())


def associations(sampled: int, repeats: int) -> list[Row]:
    """Time the association table beside a loop over some features of one run."""
    found = trajectories()
    ours, theirs = association_table(found), textbook_association.association(found, 1, sampled)
    check_association(ours, theirs)
    taken = interleaved(
        {
            "loop": lambda: textbook_association.association(found, 1, sampled),
            "ours": lambda: association_table(found),
        },
        repeats,
    )
    taken["loop over scipy.stats"] = [seconds * RUNS * FEATURES / sampled for seconds in taken["loop"]]
    work = f"{FEATURES} features x {RUNS} runs x {STEPS} checkpoints, {textbook_association.RESAMPLES} resamples"
    return [versus(work, "loop over scipy.stats", taken, "ours")]


def trajectories() -> list[Trajectory]:
    """Make runs whose features are covariates with noise, more or less of it."""
    rng = np.random.default_rng(0)
    steps = np.arange(STEPS) * 100
    found = []
    for run in range(RUNS):
        loss = 1.5 + 3 * (1 + steps / 300) ** -0.5 + 0.02 * rng.standard_normal(STEPS)
        walk = np.cumsum(rng.standard_normal((FEATURES, STEPS)), axis=1)
        features = {
            Feature("feature", "", str(k), "topology"): 0.1 * k * steps / 1000 + walk[k] for k in range(FEATURES)
        }
        norm = 10 + steps / 200 + 0.1 * rng.standard_normal(STEPS)
        rate = 0.003 * np.cos(np.pi * steps / (2 * steps[-1])) + 1e-5 + 1e-4 * rng.uniform(size=STEPS)
        found.append(
            Trajectory(
                run=f"run {run}",
                steps=steps,
                features=features,
                targets={"validation_loss": loss},
                covariates={
                    "step": steps.astype(np.float64),
                    "learning_rate": rate,
                    "cumulative_learning_rate": np.cumsum(rate),
                    "weight_norm": norm,
                },
                twins={"network": {name: values / norm for name, values in features.items()}},
                noise={name: np.full(STEPS, 0.1) for name in features},
            )
        )
    return found


def check_association(ours: pl.DataFrame, theirs: pl.DataFrame) -> None:
    """Let both agree in every column; ends of bootstrap intervals up to the noise of resampling."""
    keys = ["run", "group", "target", "feature"]
    both = theirs.join(ours, on=keys, how="left", suffix=" ours", maintain_order="left")
    left_out = {*keys, "kind", "verdict", "untested", "needs", "p_pairing"}
    for name in (name for name in theirs.columns if name not in left_out and "adjusted" not in name):
        a, b = (both[column].to_numpy().astype(np.float64) for column in (name, f"{name} ours"))
        allowed = NOISE if name.removeprefix("block_") in ("low", "high") else SAME
        if not np.allclose(a, b, rtol=SAME, atol=allowed, equal_nan=True):
            raise click.ClickException(f"association: {name} does not agree with toposcope; nothing was timed")


def reports(runs: Sequence[Path], directory: Path, repeats: int) -> list[Row]:
    """Time the report of a study, and its analysis alone."""
    begin = perf_counter()
    measured(runs, directory, STUDY_PROBES, PROCESSES)
    seconds = perf_counter() - begin
    study = ts.Study.load(directory)
    study_page(study).tables()
    command = [sys.executable, "-c", "from toposcope.cli import main; main()", "report", str(directory)]
    contestants: dict[str, Callable[[], object]] = {
        "toposcope report": lambda: subprocess.run(command, check=True, capture_output=True),
        "its tables alone": lambda: study_page(study).tables(),
    }
    taken = interleaved(contestants, min(repeats, 3))
    return [
        *({"work": name, "seconds": Spread.of(values)} for name, values in taken.items()),
        {"work": f"measuring that study, {PROCESSES} processes, once", "seconds": f"{seconds:.3g}"},
    ]


def versus(work: str, theirs: str, taken: dict[str, list[float]], ours: str) -> Row:
    """Return a row of `AGAINST`."""
    return {
        "work": work,
        "contestant": theirs,
        "theirs": Spread.of(taken[theirs]),
        "ours": Spread.of(taken[ours]),
        "ratio": ratio(taken[theirs], taken[ours]),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep NumPy, torch and ripser to one thread."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


if __name__ == "__main__":
    main()
