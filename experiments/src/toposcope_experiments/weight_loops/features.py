"""What is measured of a weight matrix: its loops, against a null of its own, next to spectrum, norm and H0."""

import numpy as np
from numpy.typing import NDArray

from toposcope import dowker, neural_persistence, rips
from toposcope.extend import TOPOLOGY, derive_seed
from toposcope.homology import dowker_null
from toposcope.probes import Kind

MATRICES = {
    "mlp": {"embedding": "embedding", "first": "hidden layer", "unembedding": "unembedding"},
    "transformer": {"embedding": "embedding", "hidden": "hidden layer", "unembedding": "unembedding"},
}
"""Weights that are measured, by architecture, and what they are called."""
DRAWS = 20  # random matrices of the null
MAX_MISFIT = 0.01  # of their norms, from which on z is not to be trusted (docs/methods/weight-loops.md)
LOOPS, H0 = "z of the number of loops", "row H0 / mean distance"
LOOP_FEATURES = {"count": LOOPS, "total": "z of the total of loops", "longest": "z of the longest loop"}
STABLE_RANK, NORM = "stable rank", "norm"
OF_MATRIX: dict[str, Kind] = {
    **dict.fromkeys((*LOOP_FEATURES.values(), H0, "neural persistence"), TOPOLOGY),
    STABLE_RANK: "spectrum",
    NORM: "norm",
}


def kinds_of(architecture: str) -> dict[str, Kind]:
    """Return the kinds of the features of an architecture, by name: those of the matrices that it has."""
    return {
        f"{name}: {feature}": kind for name in MATRICES[architecture].values() for feature, kind in OF_MATRIX.items()
    }


def matrix_features(W: NDArray[np.floating], name: str) -> dict[str, float]:
    """Measure a matrix; the random ones of its null derive from a name. NaN where a value is not known."""
    from scipy.spatial.distance import pdist  # slow to import

    W = np.asarray(W, dtype=np.float64)
    if not np.isfinite(W).all() or not W.any():
        return dict.fromkeys(OF_MATRIX, np.nan)
    null = dowker_null(W, draws=DRAWS, seed=derive_seed(0, "weight loops", name))
    scores = null.scores(dowker(W)[1]) if null.misfit <= MAX_MISFIT else {}
    singular = np.linalg.svd(W, compute_uv=False)
    return {
        **{feature: scores.get(name, np.nan) for name, feature in LOOP_FEATURES.items()},
        H0: float(rips(W, max_dimension=0)[0].lifetimes.sum() / pdist(W).mean()),
        "neural persistence": float(neural_persistence(W).normalized),
        STABLE_RANK: float((singular**2).sum() / singular[0] ** 2),
        NORM: float(np.linalg.norm(W)),
    }
