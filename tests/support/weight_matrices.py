"""Weight matrices in every format the library reads, and the maximum spanning tree by Kruskal's algorithm."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

FORMATS: dict[str, Any] = {
    "float16": lambda W: W.astype(np.float16),
    "bfloat16": lambda W: torch.from_numpy(W).bfloat16(),
    "float32": lambda W: W.astype(np.float32),
    "float64": lambda W: W,
    "float16 tensor": lambda W: torch.from_numpy(W).half(),
}


def widened(W: Any) -> NDArray[np.float64]:
    """The same entries in float64, by the conversions of torch and NumPy themselves."""
    return W.double().numpy() if isinstance(W, torch.Tensor) else np.asarray(W).astype(np.float64)


def kruskal(W: NDArray[Any]) -> NDArray[Any]:
    """Weights of the maximum spanning tree, descending: edges from heavy to light, each kept if it joins two trees."""
    m, n = W.shape
    weights = np.abs(W)
    tree_of = list(range(m + n))
    kept = []
    for edge in np.argsort(-weights, axis=None, kind="stable"):
        i, j = divmod(int(edge), n)
        a, b = tree_of[i], tree_of[m + j]
        if a != b:
            tree_of = [a if t == b else t for t in tree_of]
            kept.append(weights[i, j])
    return np.array(kept)


def scipy_tree(W: NDArray[Any]) -> NDArray[Any]:
    """The same by SciPy, on ranks: they are positive, so that a zero weight is not taken for a missing edge."""
    m, n = W.shape
    levels, rank = np.unique(np.abs(W), return_inverse=True)
    graph = np.zeros((m + n, m + n))
    graph[:m, m:] = len(levels) - rank.reshape(m, n)
    tree = minimum_spanning_tree(csr_matrix(graph))
    return np.sort(levels[len(levels) - tree.data.astype(int)])[::-1]
