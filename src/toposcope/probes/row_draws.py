"""Random rows of a matrix, and the noise of statistics over such draws."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.probes.probe import NOISE
from toposcope.seeds import derive_seed


def draw_rows(cloud: NDArray[Any], count: int, seed: int, n_draws: int) -> list[NDArray[np.int64]]:
    """Draw `count` of the rows uniformly without replacement, `n_draws` times.

    The seed of a draw is derived from `seed`, the number of the draw and the SHA-256 of the rows in any order, so
    different weights give different rows, and the same weights always the same ones.

    Parameters
    ----------
    cloud : ndarray, shape (n, d)
        Of a floating-point dtype; the digest is of float64.
    count : int
        At most n.
    seed, n_draws : int

    Returns
    -------
    list of ndarray, shape (count,), int64
        Distinct row indices, ascending.
    """
    # Adding zero turns -0.0, which is the same point, into 0.0.
    digests = [hashlib.sha256((row.astype(np.float64) + 0.0).tobytes()).digest() for row in cloud]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    whole = hashlib.sha256(b"".join(digests[i] for i in order)).hexdigest()
    generators = (np.random.default_rng(derive_seed(seed, "rows", draw, whole)) for draw in range(n_draws))
    return [np.sort(order[rng.choice(len(order), count, replace=False)]) for rng in generators]


def with_noise(draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the statistics of the first draw and, as ``<name>.noise``, their standard deviations over all draws.

    Deviations have ddof 1. A single draw has none.
    """
    first = dict(draws[0])
    if len(draws) == 1:
        return first
    return first | {name + NOISE: _deviation([draw[name] for draw in draws]) for name in first}


def _deviation(values: Sequence[float]) -> float:
    largest = max(map(abs, values))
    unit = largest if largest > 0 else 1.0  # squares of very large values would overflow
    return float(np.std(np.array(values) / unit, ddof=1)) * unit
