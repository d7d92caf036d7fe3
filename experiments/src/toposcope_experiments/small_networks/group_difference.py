"""Two groups of runs compared in many quantities at once: differences, their intervals, permutation p-values."""

from collections.abc import Sequence

import numpy as np

from toposcope.extend import Matrix, Vector
from toposcope_experiments.small_networks.two_groups import least_p, two_groups


class GroupDifference:
    """The difference between the means of two groups of runs."""

    def __init__(self, first: Matrix, second: Matrix) -> None:
        self.sizes = first.shape[1], second.shape[1]
        self.first_mean, self.second_mean = first.mean(axis=1), second.mean(axis=1)
        self.difference = self.first_mean - self.second_mean
        self.p, self.p_least = two_groups(first.T, second.T), least_p(*self.sizes)
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
