"""Loops of weight matrices: toposcope beside GUDHI's persistence of the explicit Dowker complex.

    python benchmarks/dowker.py [--quick]

One thread each, and the same bars to the last bit. GUDHI is given every edge and triangle of the complex.
"""

import os
import tempfile
from itertools import combinations
from pathlib import Path

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import gudhi
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from bench import Column, command, show, write
from rips_engines import COLUMNS, GUDHI, OURS, SLOW, Engine, contest
from toposcope.homology import dowker

Matrix = NDArray[np.float64]
MAX_ROWS = 64


@command("dowker", "small matrices", repeats=3)
def main(quick: bool, repeats: int, out: Path) -> None:
    """Measure time and memory, and write the results."""
    gaussian = [(24, 96), (32, 128)] if quick else [(32, 128), (64, 256), (256, 1024), (768, 768), (768, 3072)]
    cases = {f"Gaussian, {m} x {n}": normal(m, n) for m, n in gaussian}
    cases |= {f"3-block circulant, {m} x {n}": circulant(m, n) for m, n in gaussian[1::3]}
    engines: dict[str, Engine] = {OURS: loops, GUDHI: explicit}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.npy"
        for name, W in track(cases.items(), description="matrices"):
            np.save(file, W)
            rows += contest(name, file, engines if len(W) <= MAX_ROWS else {OURS: loops}, repeats)
    title, columns = "Loops of weight matrices", (Column("matrix", "cloud"), *COLUMNS[1:])
    show(rows, columns, title)
    facts = {
        "samples": f"{repeats} of each contestant in turn, 1 beyond {SLOW:g} s; median (lowest-highest)",
        "memory": "growth of the resident set, each contestant in a process of its own, the input not counted",
        "left out": f"GUDHI beyond {MAX_ROWS} rows, of whose complex all edges and triangles take hours and tens of GB",
    }
    write("dowker", out, facts, {title: (rows, columns)}, ("toposcope", "numpy", "numba", "gudhi"))


def normal(m: int, n: int) -> Matrix:
    """Make a matrix of normal entries, always the same."""
    return np.random.default_rng(0).standard_normal((m, n))


def circulant(m: int, n: int) -> Matrix:
    """Make a matrix whose large entries, in six of nine blocks, go round one loop: the slowest kind known."""
    blocks = np.add.outer(-(np.arange(m) * 3 // m), np.arange(n) * 3 // n) % 3 < 2
    return np.where(blocks, 1 + np.random.default_rng(1).random((m, n)), 1e-3 * normal(m, n))


def loops(W: Matrix) -> Matrix:
    """Return the bars of H1."""
    return dowker(W)[1].pairs


def explicit(W: Matrix) -> Matrix:
    """Return the same of the complex, every simplex with its value; of what is computed first, of few rows."""
    values, tree = 1 - np.abs(W[:MAX_ROWS]) / np.abs(W).max(), gudhi.SimplexTree()
    for size in (1, 2, 3):
        for rows in combinations(range(len(values) if len(W) <= MAX_ROWS else 8), size):
            tree.insert(list(rows), values[list(rows)].max(axis=0).min())
    tree.compute_persistence(homology_coeff_field=2)
    return np.asarray(tree.persistence_intervals_in_dimension(1)).reshape(-1, 2)


if __name__ == "__main__":
    main()
