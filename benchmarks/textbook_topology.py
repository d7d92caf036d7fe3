"""A textbook pipeline of checkpoint topology, the baseline of `benchmarks/study.py`.

What a reader of the papers writes first: ``torch.load`` or ``load_file``, Kruskal's algorithm in plain Python, ripser
on a sample of the rows.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from ripser import ripser
from safetensors.torch import load_file

Matrix = NDArray[np.float32]

MAX_POINTS = 200
THRESHOLD = 2.0
NOT_LAYERS = ("token_emb", "pos_emb", "ln")


def features(path: Path, rng: np.random.Generator) -> tuple[float, float]:
    """Return the mean neural persistence of a checkpoint's layers, and the total H0 persistence of some of their rows.

    At most 200 rows of all layers, zero-padded to the widest, are drawn; bars end at 2.0.
    """
    layers = list(weight_matrices(path))
    return float(np.mean([neural_persistence(W) for W in layers])), pooled_total(layers, rng)


def weight_matrices(path: Path) -> Iterator[Matrix]:
    """Yield every matrix besides embeddings and norms; the tied head counts once, under its own name."""
    state = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu")["model_state_dict"]
    )
    for name, tensor in state.items():
        if tensor.ndim == 2 and not any(part in name for part in NOT_LAYERS):
            yield tensor.numpy()


def neural_persistence(W: Matrix) -> float:
    """Return (1 / (N - 1)) sum (1 - a) over the maximum spanning tree of the bipartite graph of a = |W| / max|W|."""
    weights: Matrix = np.abs(W) / np.abs(W).max()
    m, n = weights.shape
    edges = []
    for i in range(m):
        for j in range(n):
            edges.append((weights[i, j], i, m + j))
    edges.sort(reverse=True)
    parent = list(range(m + n))

    def find(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    persistence = 0.0
    for weight, i, j in edges:
        a, b = find(i), find(j)
        if a != b:
            parent[a] = b
            persistence += 1 - float(weight)
    return float(persistence / (m + n - 1))


def pooled_total(layers: list[Matrix], rng: np.random.Generator) -> float:
    """Return the total length of the finite H0 bars of a sample of the rows of all layers."""
    width = max(W.shape[1] for W in layers)
    rows = np.vstack([np.pad(W, ((0, 0), (0, width - W.shape[1]))) for W in layers])
    if len(rows) > MAX_POINTS:
        rows = rows[rng.choice(len(rows), MAX_POINTS, replace=False)]
    bars: NDArray[np.float64] = ripser(rows, maxdim=0, thresh=THRESHOLD)["dgms"][0]
    lengths = bars[:, 1] - bars[:, 0]
    return float(lengths[np.isfinite(lengths) & (lengths > 0)].sum())
