"""Comparing the correlations of two features with one target (docs/methods/association.md)."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr

from toposcope.analysis.association import RESAMPLES
from toposcope.analysis.ranks import block_draws, block_length, correlate, dense_ranks, ranks
from toposcope.kernels.resampled_ranks import resampled_spearman
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix, Vector

RANKED = 1.06  # variance of Fisher's z of ranks, times n - 3 (Fieller, Hartley & Pearson 1957)


def williams(with_first: Vector, with_second: Vector, between: Matrix, n: int) -> Matrix:
    """Return Williams' p of correlations that share a target (Steiger 1980, eq. 7), shape (f, o); else NaN."""
    if n < 4:
        return np.full(between.shape, np.nan)
    first, second = np.abs(with_first)[:, None], np.abs(with_second)[None]
    between = between * np.sign(with_first)[:, None] * np.sign(with_second)[None]
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    mean = (first + second) / 2
    spread = 2 * (n - 1) / (n - 3) * determinant + mean**2 * (1 - between) ** 3
    defined = spread > 1e-12
    statistic = (first - second) * np.sqrt((n - 1) * (1 + between) / np.where(defined, spread, 1.0))
    return np.where(defined, 2 * stdtr(n - 3, -np.abs(statistic)), np.nan)


def against(features: Matrix, others: Matrix, target: Vector, seed: int) -> dict[str, NDArray[np.float64]]:
    """Test whether features correlate more strongly than others, in absolute value; by test, shape (f, o, 4)."""
    x, o, y = ranks(features), ranks(others), ranks(target)
    own, of_others = correlate(x, y), correlate(o, y)
    difference = np.abs(own)[:, None] - np.abs(of_others)[None]
    unknown = np.full(difference.shape, np.nan)
    between = np.column_stack([correlate(x, other) for other in o])
    return {
        "Williams": np.stack([difference, unknown, unknown, williams(own, of_others, between, len(y))], axis=-1),
        "block bootstrap": np.stack([difference, *_by_blocks(features, others, target, seed)], axis=-1),
        "Fisher z": np.stack([difference, unknown, unknown, _fisher(own, of_others, len(y))], axis=-1),
    }


def _by_blocks(features: Matrix, others: Matrix, target: Vector, seed: int) -> NDArray[np.float64]:
    """Return interval and p by resampling blocks of neighbouring checkpoints, shape (3, f, o)."""
    everything, y = np.vstack([features, others]), dense_ranks(target)
    groups = dense_ranks(everything)
    own = block_length(ranks(everything))
    lengths = np.maximum(own[: len(features), None], own[None, len(features) :])
    lengths = np.maximum(lengths, block_length(ranks(target)[None])[0])
    found = np.full((3, *lengths.shape), np.nan)
    for length in np.unique(lengths):
        pairs = lengths == length
        used = np.flatnonzero(np.concatenate([pairs.any(axis=1), pairs.any(axis=0)]))
        draws = block_draws(len(target), int(length), RESAMPLES, derive_seed(seed, "blocks", int(length)))
        strengths = np.full((len(everything), RESAMPLES), np.nan)
        strengths[used] = np.abs(resampled_spearman(groups[used], y, draws))
        for other in np.flatnonzero(pairs.any(axis=0)):
            rows = np.flatnonzero(pairs[:, other])
            found[:, rows, other] = _percentiles(strengths[rows] - strengths[len(features) + other])
    return found


def _percentiles(resampled: Matrix) -> tuple[Vector, Vector, Vector]:
    """Return, by row, the 2.5th and 97.5th percentiles and p, without resamples that have no difference."""
    known = np.isfinite(resampled)
    n = known.sum(axis=1)
    low, high = np.full((2, len(resampled)), np.nan)
    whole = n == resampled.shape[1]
    if whole.any():
        low[whole], high[whole] = np.percentile(resampled[whole], [2.5, 97.5], axis=1)
    for i in np.flatnonzero(~whole & (n > 0)):
        low[i], high[i] = np.percentile(resampled[i, known[i]], [2.5, 97.5])
    side = np.minimum((resampled <= 0).sum(axis=1), (resampled >= 0).sum(axis=1))
    return low, high, np.minimum(1.0, 2 * np.divide(side, n, out=np.full(len(n), np.nan), where=n > 0))


def _fisher(first: Vector, second: Vector, n: int) -> Matrix:
    """Return p of |first| against |second|, shape (f, o); NaN up to 3 checkpoints and for a correlation of 1."""
    if n <= 3:
        return np.full((len(first), len(second)), np.nan)
    with np.errstate(divide="ignore"):
        z, z_others = np.arctanh(np.abs(first))[:, None], np.arctanh(np.abs(second))[None]
    defined = np.isfinite(z) & np.isfinite(z_others)
    statistic = np.subtract(z, z_others, out=np.zeros(defined.shape), where=defined) / np.sqrt(2 * RANKED / (n - 3))
    return np.where(defined, 2 * ndtr(-np.abs(statistic)), np.nan)
