"""p-values adjusted for the number of tests."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from toposcope.analysis.permutations import drawn_orders, orders
from toposcope.typing import Indices, Matrix, Vector

MAX_ENUMERATED_RUNS = 7  # all pairings of up to this many runs are enumerated
MIN_RUNS = 4  # three runs have six pairings, so that p could not be below 1/6


def pairing_p(strengths: NDArray[np.float64], seed: int) -> float:
    """Return the share of all pairings of features with losses as strong as the true one, an exact p of any series.

    Row i of `strengths` is of the loss of run i, column j of the feature of run j.
    """
    runs = list(range(len(strengths)))
    if len(runs) < MIN_RUNS:
        return math.nan
    while runs and np.isnan(strengths[np.ix_(runs, runs)]).any():
        gaps = np.isnan(strengths[np.ix_(runs, runs)])
        runs.pop(int(np.argmax(gaps.sum(axis=0) + gaps.sum(axis=1))))
    n = len(runs)
    if n < MIN_RUNS:
        return math.nan
    square = strengths[np.ix_(runs, runs)]
    sums = square[np.arange(n), orders(n) if n <= MAX_ENUMERATED_RUNS else drawn_orders(n, seed)].sum(axis=1)
    return float((sums >= sums[0] - 1e-12).mean())


Method = Literal["holm", "bonferroni", "bh"]
NAMES: dict[Method, str] = {"holm": "Holm", "bonferroni": "Bonferroni", "bh": "Benjamini and Hochberg"}


def adjusted(p: Vector, method: Method = "holm") -> Vector:
    """Return adjusted p-values; NaN stays NaN and is not counted.

    Parameters
    ----------
    p : ndarray, shape (m,)
    method : "holm", "bonferroni" or "bh"
        Holm 1979 and Bonferroni bound the chance of any false positive, Benjamini & Hochberg 1995 their expected share.
    """
    result = np.full(len(p), np.nan)
    defined = np.flatnonzero(np.isfinite(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    m, rank = len(order), np.arange(1, len(order) + 1)
    if method == "bonferroni":
        raised = m * p[order]
    elif method == "bh":
        raised = np.minimum.accumulate((m / rank * p[order])[::-1])[::-1]
    else:
        raised = np.maximum.accumulate((m - rank + 1) * p[order])
    result[order] = np.minimum(1.0, raised)
    return result


def replicated(p: Matrix) -> Vector:
    """Return the p of a feature in two runs or more: partial conjunction (Benjamini & Heller 2008) by Fisher's method.

    The lowest p of its runs is left out; with fewer than four runs none is.
    """
    in_order, r = np.sort(p, axis=1), np.isfinite(p).sum(axis=1)
    left_out = np.where(r < MIN_RUNS, 0, 1)
    counted = np.isfinite(in_order) & (np.arange(p.shape[1]) >= left_out[:, None])
    logs = np.where(counted, np.log(np.maximum(in_order, 1e-300, where=counted, out=np.ones(p.shape))), 0.0)
    return np.where(r > 0, chdtrc(2.0 * np.maximum(r - left_out, 1), -2 * logs.sum(axis=1)), np.nan)


def own_p(p: Matrix, rho: Matrix) -> Matrix:
    """Return the p of a feature in each run, shape (f, r): half of it in the direction that it has in the other runs.

    A run of the other direction keeps its two-sided p: a correlation may reverse with size.
    """
    directed = np.nan_to_num(rho)
    others = directed.sum(axis=1, keepdims=True) - directed
    return np.where(directed * others > 0, p / 2, p)


def adjusted_over_runs(p: Vector, rho: Vector, features: Indices, method: Method = "holm") -> Vector:
    """Return p-values of features in runs, adjusted for the number of features, and no lower than `own_p`."""
    order, sizes = np.argsort(features, kind="stable"), np.bincount(features)
    by_feature, directed = np.full((2, len(sizes), sizes.max(initial=0)), np.nan)
    filled = np.arange(by_feature.shape[1]) < sizes[:, None]
    by_feature[filled], directed[filled] = p[order], rho[order]
    own = np.empty(len(p))
    own[order] = own_p(by_feature, directed)[filled]
    return np.maximum(adjusted(replicated(by_feature), method)[features], own)
