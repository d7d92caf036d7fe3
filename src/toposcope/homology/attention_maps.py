"""An attention map as a weighted graph: H0 and H1 of 1 - max(A, A'), and the plain quantities that it has to beat.

Kushnareva et al. 2021 filter the graphs of attention heads like this, to tell written from generated text.
"""

import numpy as np

from toposcope.homology.rips import rips
from toposcope.typing import Matrix


def attention_map_statistics(shares: Matrix) -> dict[str, float]:
    """Return the statistics of one map.

    Parameters
    ----------
    shares : ndarray, shape (n, n)
        The attention of each token to each; rows sum to 1.

    Returns
    -------
    dict
        ``H0.total`` and ``H1.total``; ``attention_entropy``, the mean over rows, in nats; ``attention_distance``, the
        mean number of tokens between a token and where it attends; ``first_token`` and ``diagonal``, the mean attention
        to the first token and to the token itself; ``attention_peak``, the mean over rows of the largest entry besides
        the diagonal.
    """
    n = len(shares)
    distances = np.clip(1 - np.maximum(shares, shares.T), 0, 1)
    np.fill_diagonal(distances, 0)
    components, loops = rips(distances, metric="precomputed", max_dimension=1)
    positive = np.where(shares > 0, shares, 1.0)
    places = np.arange(n)
    return {
        "H0.total": float(components.lifetimes.sum()),
        "H1.total": float(loops.lifetimes.sum()),
        "attention_entropy": float(-(positive * np.log(positive)).sum() / n),
        "attention_distance": float((shares * np.abs(places[:, None] - places)).sum() / n),
        "first_token": float(shares[:, 0].mean()),
        "diagonal": float(shares.diagonal().mean()),
        "attention_peak": float(np.where(np.eye(n, dtype=bool), 0.0, shares).max(axis=1).mean()),
    }
