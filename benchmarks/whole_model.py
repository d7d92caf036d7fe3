"""All matrices of GPT-2 small from one file: neural persistence and controls, beside weightwatcher.

    python benchmarks/whole_model.py [--quick]

Each contestant starts in a process of its own, imports its libraries, opens the file and measures. Norms and ranks,
which both compute, must first agree. weightwatcher is what `benchmarks/other_tools.py` installs.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import click
import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from threadpoolctl import threadpool_limits

from bench import Column, alone, command, ratio, show, with_memory, write
from other_tools import use
from result_files import Spread

# Nothing heavy is imported here: the processes of contestants import this file, and loading is timed.
CONTROLS, PERSISTENCE, TOOL = "controls", "neural persistence and controls", "weightwatcher"
OWN = {CONTROLS: ["controls"], PERSISTENCE: ["neural_persistence", "controls"]}
"""Probes of toposcope, by what is measured."""
QUANTITIES = ("Frobenius norm", "spectral norm", "stable rank", "alpha")
"""What both compute of each matrix."""
EXACT = QUANTITIES[:3]
ROUNDING = 1e-9
"""How far, relatively, the tools may differ."""

TIMES = (
    Column("contestant", "contestant"),
    Column("threads", "threads"),
    Column("loading, s", "loading"),
    Column("measuring, s", "measuring"),
    Column("together, s", "together"),
    Column("time / toposcope", "ratio"),
    Column("peak extra memory, MB", "megabytes"),
)
AGREEMENT = (Column("of each matrix", "quantity"), Column("largest relative difference", "difference"))

Vectors = dict[str, NDArray[np.float64]]
Measured = tuple[float, float, float, Vectors]
"""Seconds of loading and of measuring, MB while measuring, and the quantities of all matrices."""
Found = dict[tuple[str, int], list[Measured]]
"""Samples, by contestant and threads."""


@command("whole_model", "one block, 1 repeat", repeats=3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure one model with each tool: ratios above 1 favour toposcope."""
    from models import GPT2, SPREAD, blocks, checkpoint

    installed, absent = use(TOOL)
    repeats, shapes = (1, blocks("h", GPT2, 1)) if quick else (repeats, blocks("h", GPT2, 12))
    with tempfile.TemporaryDirectory() as folder:
        warm = checkpoint(Path(folder) / "warm", {"h.0.mlp.c_fc.weight": (1100, 64)})
        alone(measured, PERSISTENCE, 1, warm)
        file = checkpoint(Path(folder) / "model", shapes)
        found: Found = {(name, threads): [] for threads in sorted({1, cores()}) for name in (*OWN, *installed)}
        for _ in track(range(repeats), description="measuring"):
            for way, samples in found.items():
                samples.append(alone(measured, *way, file))
    agreements = [agreement(quantity, found) for quantity in QUANTITIES] if installed else []
    rows = [times(*way, found) for way in found]
    tables = {f"{len(shapes)} matrices": (rows, TIMES), "What both compute": (agreements, AGREEMENT)}
    for title, (table, columns) in tables.items():
        show(table, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn, each in a new process; median (lowest-highest)",
        "model": f"GPT-2 small without embeddings, one safetensors file in float32: "
        f"{sum(m * n for m, n in shapes.values()) / 1e6:.0f} M weights, normal, standard deviation {SPREAD}",
        "threads": "worker processes of toposcope; threads of the linear algebra of weightwatcher",
        "loading": "imports, and opening the file: toposcope reads its header, weightwatcher gets all tensors",
        CONTROLS: "norms, spectral norm, stable rank, entropy, exponent of a power law, moments, in float64",
        PERSISTENCE: "besides, the exact H0 of the bipartite graph of each matrix, which weightwatcher has not",
        TOOL: "default options: power law with its fit, norms, ranks, entropy; singular values in float64",
        "alpha": "both after Clauset et al. 2009, and not checked: they choose the start of the tail differently",
        "memory": "growth of the resident set while measuring, of the first process",
    }  # fmt: skip
    write("whole-model", out, facts | absent, tables, ("toposcope", "numpy", "scipy", "numba", "torch", *installed))


def cores() -> int:
    """Return the number of processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measured(name: str, threads: int, file: Path) -> Measured:
    """Measure with any contestant."""
    return toposcope_measures(OWN[name], threads, file) if name in OWN else weightwatcher_measures(threads, file)


def toposcope_measures(probes: list[str], workers: int, file: Path) -> Measured:
    """Measure with some probes."""
    begin = perf_counter()
    import toposcope as ts

    opened = ts.series(file)
    loading = perf_counter() - begin
    named = [{"name": probe} for probe in probes]
    seconds, megabytes, frame = with_memory(partial(ts.measure, opened, probes=named, workers=workers))
    rows = frame.filter(probe="controls").pivot("statistic", index="layer", values="value").sort("layer")
    rows = rows.filter(rows["layer"] != "network")
    keys = ("frobenius_norm", "spectral_norm", "stable_rank", "alpha")
    return loading, seconds, megabytes, {q: rows[key].to_numpy() for q, key in zip(QUANTITIES, keys, strict=True)}


def weightwatcher_measures(threads: int, file: Path) -> Measured:
    """Analyse with default options."""
    begin = perf_counter()
    use(TOOL)
    from safetensors.torch import load_file
    from weightwatcher import WeightWatcher

    watcher = WeightWatcher(model=load_file(file))
    loading = perf_counter() - begin
    with threadpool_limits(threads):
        seconds, megabytes, frame = with_memory(watcher.analyze)
    rows = frame.sort_values("longname")
    # Its norms are squares.
    values = (rows["norm"] ** 0.5, rows["spectral_norm"] ** 0.5, rows["stable_rank"], rows["alpha"])
    return loading, seconds, megabytes, {q: v.to_numpy(np.float64) for q, v in zip(QUANTITIES, values, strict=True)}


def agreement(quantity: str, found: Found) -> dict[str, object]:
    """Compare a quantity of all matrices; refuse times of tools that do not compute the same."""
    ours, theirs = (found[name, 1][0][-1][quantity] for name in (CONTROLS, TOOL))
    if len(ours) != len(theirs):
        raise click.ClickException(f"{TOOL} measured {len(theirs)} matrices, toposcope {len(ours)}")
    difference = float(np.abs(theirs / ours - 1).max())
    if quantity in EXACT and not difference <= ROUNDING:
        raise click.ClickException(f"{quantity}: {TOOL} does not agree with toposcope, by {difference:.1g}")
    return {"quantity": quantity, "difference": f"{difference:.1g}"}


def times(name: str, threads: int, found: Found) -> dict[str, object]:
    """Summarise the samples of a contestant; ratios are to all that toposcope measures with as many threads."""
    loading, measuring, megabytes, _ = zip(*found[name, threads], strict=True)
    together, ours = ([s + t for s, t, *_ in found[key, threads]] for key in (name, PERSISTENCE))
    return {
        "contestant": f"toposcope: {name}" if name in OWN else name,
        "threads": f"{threads}",
        "loading": Spread.of(loading),
        "measuring": Spread.of(measuring),
        "together": Spread.of(together),
        "ratio": ratio(together, ours),
        "megabytes": round(max(megabytes)),
    }


if __name__ == "__main__":
    main()
