"""Direct labels at the ends of lines: as near to their lines as can be without touching each other."""

from collections.abc import Sequence

import numpy as np

from toposcope.typing import Vector

MIN_GAP = 0.065
"""Distance between two labels as a share of the height of the plot."""


def apart(wanted: Sequence[float] | Vector, min_gap: float = MIN_GAP) -> Vector:
    """Move places in [0, 1] at least `min_gap` apart, as little as possible in least squares, keeping their order.

    Parameters
    ----------
    wanted : array_like, shape (n,)
        In any order.
    min_gap : float

    Returns
    -------
    ndarray, shape (n,)
        In the order of `wanted`. If there is no room for n labels, they share the height evenly.
    """
    places = np.asarray(wanted, dtype=np.float64)
    if len(places) < 2:
        return places
    order = np.argsort(places, kind="stable")
    gaps = min(min_gap, 1 / (len(places) - 1)) * np.arange(len(places))
    # isotonic regression of the places less the gaps: pools of neighbours share their mean
    pools: list[list[float]] = []
    for value in places[order] - gaps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    placed = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + gaps
    result = np.empty(len(places))
    result[order] = np.clip(placed, gaps, 1 - gaps[::-1]).round(6)
    return result
