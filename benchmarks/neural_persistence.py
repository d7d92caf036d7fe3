"""Neural persistence: against one bare pass over the weights, against other ways to the same tree, and by size.

    python benchmarks/neural_persistence.py [--quick]

Every contestant must first give the same deaths as toposcope.
"""

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from threadpoolctl import threadpool_limits

import matrices
from bench import AGAINST, SUSTAINED, Column, against, command, milliseconds, ratio, show, write
from result_files import Spread
from toposcope.homology import neural_persistence

Row = dict[str, object]
HIDDEN = 416
LAYERS = 24
SIZES = (316, 1000, 3162, 10_000, 20_000)
TEXTBOOK_SIDE = 512

FLOOR = (
    Column("matrix", "matrix"),
    Column("bare pass, ms", "floor"),
    Column("1 thread, ms", "one"),
    Column("1 thread / bare pass", "ratio"),
    Column("2 threads, ms", "two"),
    Column("1 thread / 2 threads", "speedup"),
)
GROWTH = (
    Column("weights", "weights"),
    Column("ms", "ms"),
    Column("ns a weight", "each"),
    Column("peak extra memory, % of the matrix", "memory"),
)


@command("neural_persistence", "small matrices, 3 repeats")
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure neural persistence.

    The contestants are sampled in turn. Every ratio is that of neighbouring samples, and in brackets stand the lowest
    and the highest.
    """
    side, repeats = (512, 3) if quick else (4096, repeats)
    with threadpool_limits(1):
        tables: dict[str, tuple[list[Row], tuple[Column, ...]]] = {
            f"{side} x {side} float32 against one bare pass": (against_the_floor(side, repeats), FLOOR),
            "Against other ways": (against_others(side, repeats), AGAINST),
        }
        growth = by_size(SIZES[:2] if quick else SIZES, repeats)
        tables["By size"] = (growth, GROWTH)
    for title, (rows, columns) in tables.items():
        show(rows, columns, title)
    exponent = cost_exponent(growth)
    print(f"cost exponent: {exponent:.3f}")
    facts = {
        "samples": f"{repeats} of each contestant in turn; median (lowest-highest); slow ones fewer",
        "bare pass": "row and column maxima of |W| on the bit patterns, in the same Numba, one thread",
        "checkpoint": f"{LAYERS} layers, hidden size {HIDDEN}, four float32 matrices each; two threads over layers "
        "against np.abs(W).max() over the same matrices on one",
        "cost exponent": f"{exponent:.3f}, the slope of log time against log weights",
        "memory": "peak of all allocations during the call, the result included (tracemalloc)",
    }
    write("neural-persistence", out, facts, tables, ("toposcope", "numpy", "scipy", "numba", "torch"))


def against_the_floor(side: int, repeats: int) -> list[Row]:
    """Time Gaussian weights and the hard cases, on one thread and on two."""
    rows: list[Row] = []
    cases = [("Gaussian", matrices.gaussian(side, side))]
    for name, W in track([*cases, *matrices.hard_cases(side, side)], description="hard cases"):
        bits = W.view(np.uint32)
        taken = milliseconds(
            {
                "floor": partial(matrices.row_and_column_maxima, bits),
                "one": partial(neural_persistence, W),
                "two": partial(neural_persistence, W, n_threads=2),
            },
            repeats,
            SUSTAINED,
        )
        rows.append(
            {
                "matrix": name,
                **{key: Spread.of(values) for key, values in taken.items()},
                "ratio": ratio(taken["one"], taken["floor"]),
                "speedup": ratio(taken["one"], taken["two"]),
            }
        )
    return rows


def against_others(side: int, repeats: int) -> list[Row]:
    """Time other algorithms, 16-bit formats, and a whole checkpoint."""
    W = matrices.gaussian(side, side)
    small = matrices.gaussian(TEXTBOOK_SIDE, TEXTBOOK_SIDE)
    half, brain = W.astype(np.float16), torch.from_numpy(W).bfloat16()
    square = f"{side} x {side}"
    rows = against(
        f"{square} float32",
        lambda: neural_persistence(W).deaths,
        {
            "argsort + union-find, Numba": lambda: matrices.sorted_deaths(W),
            "SciPy minimum_spanning_tree": lambda: matrices.scipy_deaths(W),
        },
        min(repeats, 2),
    )
    rows += against(
        f"{TEXTBOOK_SIDE} x {TEXTBOOK_SIDE} float32",
        lambda: neural_persistence(small).deaths,
        {"plain Python": lambda: matrices.textbook_deaths(small)},
        min(repeats, 3),
    )
    rows += against(
        f"{square} float16",
        lambda: neural_persistence(half).deaths,
        {"convert to float32 first": lambda: neural_persistence(half.astype(np.float32)).deaths},
        repeats,
    )
    rows += against(
        f"{square} bfloat16",
        lambda: neural_persistence(brain).deaths,
        {"convert to float32 first": lambda: neural_persistence(brain.float()).deaths},
        repeats,
    )
    layers = checkpoint()
    n_weights = sum(layer.size for layer in layers) / 1e6
    with ThreadPoolExecutor(2) as pool:
        rows += against(
            f"checkpoint of {n_weights:.0f} M weights, 2 threads",
            lambda: list(pool.map(largest_weights, (layers[::2], layers[1::2]))),
            {"np.abs(W).max(), 1 thread": lambda: [np.abs(layer).max() for layer in layers]},
            repeats,
            shortest=SUSTAINED,
        )
    return rows


def largest_weights(layers: list[matrices.Matrix]) -> list[float]:
    """Measure matrices one after another; return what each was scaled by."""
    return [neural_persistence(layer).scale for layer in layers]


def checkpoint() -> list[matrices.Matrix]:
    """Make the matrices of a transformer."""
    rng = np.random.default_rng(2)
    shapes = [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)]
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(LAYERS) for shape in shapes]


def by_size(sides: tuple[int, ...], repeats: int) -> list[Row]:
    """Time square matrices of growing size, and trace what they allocate."""
    rows: list[Row] = []
    for side in track(sides, description="by size"):
        W = matrices.gaussian(side, side)
        neural_persistence(W)
        tracemalloc.start()
        neural_persistence(W)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        taken = milliseconds({"ms": partial(neural_persistence, W)}, repeats)["ms"]
        rows.append(
            {
                "weights": W.size,
                "ms": Spread.of(taken),
                "each": Spread.of([1e6 * ms / W.size for ms in taken]),
                "memory": round(100 * peak / W.nbytes, 2),
            }
        )
    return rows


def cost_exponent(growth: list[Row]) -> float:
    """Return the slope of log median time against log weights."""
    weights = [math.log(float(str(row["weights"]))) for row in growth]
    times = [math.log(row["ms"].median) for row in growth if isinstance(row["ms"], Spread)]
    return float(np.polyfit(weights, times, 1)[0])


if __name__ == "__main__":
    main()
