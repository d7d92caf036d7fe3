"""Two groups of runs compared in many quantities at once: differences, intervals, exact permutation p-values."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import Matrix, Vector, derive_seed

MAX_ENUMERATED_DIVISIONS = 50_000  # all divisions of up to 18 values into two halves are enumerated
N_DRAWN_DIVISIONS = 1 << 14
RELATIVE_TOLERANCE = 1e-12


def two_groups(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two-sided p of the difference between the means of two independent groups, by exchanging members.

    All divisions of the values into groups of these sizes are enumerated if they are at most 50,000; of more, 2^14
    random ones and the observed one.
    """
    values = np.concatenate([first, second])
    known = np.isfinite(values).all(axis=0)
    centred = np.where(known, values, 0.0)
    scale = np.abs(centred).max(axis=0, initial=0)
    centred = centred / np.where(scale > 0, scale, 1.0)
    centred -= centred.mean(axis=0)
    # With the mean taken out, the difference of the means is proportional to the sum of one group.
    sums = np.abs(_divisions(len(first), len(values)) @ centred)
    p = (sums >= np.abs(centred[: len(first)].sum(axis=0)) * (1 - RELATIVE_TOLERANCE) - RELATIVE_TOLERANCE).mean(axis=0)
    return np.where(known, p, np.nan)


@lru_cache(4)
def _divisions(n: int, total: int) -> NDArray[np.float64]:
    """Return which of `total` values are in the first group of n, a row for each division, the given one first."""
    if comb(total, n) <= MAX_ENUMERATED_DIVISIONS:
        members = np.array(list(combinations(range(total), n)), dtype=np.int64).reshape(-1, n)
    else:
        generator = np.random.default_rng(derive_seed(42, "divisions", n, total))
        places = np.tile(np.arange(total), (N_DRAWN_DIVISIONS, 1))
        members = np.vstack([np.arange(n), generator.permuted(places, axis=1)[:, :n]])
    divisions = np.zeros((len(members), total))
    np.put_along_axis(divisions, members, 1.0, axis=1)
    return divisions


def min_p_of(n: int, m: int) -> float:
    """Return the smallest p that `two_groups` can give for groups of n and m values."""
    count = comb(n + m, n)
    if count > MAX_ENUMERATED_DIVISIONS:
        return 1 / (N_DRAWN_DIVISIONS + 1)
    return (2 if n == m else 1) / count


class GroupDifference:
    """The difference between the means of two groups of runs."""

    def __init__(self, first: Matrix, second: Matrix) -> None:
        self.sizes = first.shape[1], second.shape[1]
        self.first_mean, self.second_mean = first.mean(axis=1), second.mean(axis=1)
        self.difference = self.first_mean - self.second_mean
        self.p, self.min_p = two_groups(first.T, second.T), min_p_of(*self.sizes)
        from scipy.stats import t as student  # slow to import

        variances = [np.var(group, axis=1, ddof=1) for group in (first, second)]
        error, freedom = _welch(variances, self.sizes)
        half = error * student.ppf(0.975, freedom)
        self.low, self.high = self.difference - half, self.difference + half
        pooled = np.sqrt(np.average(variances, axis=0, weights=np.array(self.sizes) - 1))
        self.effect = np.divide(self.difference, pooled, out=np.full(len(pooled), np.nan), where=np.asarray(pooled > 0))

    def row(self, i: int) -> dict[str, float]:
        """Return ``difference``, ``low``, ``high``, ``effect`` and ``p`` of a quantity."""
        return {name: float(getattr(self, name)[i]) for name in ("difference", "low", "high", "effect", "p")}


def _welch(variances: Sequence[Vector], sizes: tuple[int, int]) -> tuple[Vector, Vector]:
    """Return standard errors of differences of means, and their degrees of freedom."""
    parts = [variance / n for variance, n in zip(variances, sizes, strict=True)]
    squares = parts[0] + parts[1]
    below = sum(part**2 / (n - 1) for part, n in zip(parts, sizes, strict=True))
    with np.errstate(invalid="ignore"):
        freedom = np.where(squares > 0, squares**2 / below, min(sizes) - 1.0)
    return np.sqrt(squares), np.asarray(freedom)
