"""From a bootstrap to a probability that holds: recalibration on decisions whose outcome is known.

The laws of a bootstrap agree too well: none of them knows the shape, seed and hyperparameters of a run. So each of them
is blurred by a normal error of `blur` nats, which is learned from pairs of runs that the law had not seen. With no blur
the probability is the plain share of the laws.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.typing import Matrix, Vector

Flags = NDArray[np.bool_]

BLURS = (1e-5, 1.0)
"""Nats between which the blur is searched."""
GRID = 61
LIKELY = 3.0
"""Factor within which the blur of one collection of runs is that of another, as one standard deviation: 0.06 nats
among runs of very different shape (Gemstones), 0.015 among runs of one recipe (Chinchilla)."""
CLOSEST = 1e-3
"""Of a probability to 0 or 1 in a log score."""


@dataclass(frozen=True)
class Calibration:
    """A probability from margins.

    Attributes
    ----------
    blur : float
        Nats: standard deviation of the part of the difference of two runs that N and D do not explain.
    n_pairs, n_runs : int
        Number of pairs and runs it was learned from; 0 for the shipped one.
    """

    blur: float
    n_pairs: int = 0
    n_runs: int = 0

    def probability(self, margins: ArrayLike) -> Vector:
        """Return the probability that the margin is above 0.

        Parameters
        ----------
        margins : array_like, shape (..., k)
            By each of the k laws of the bootstrap.

        Returns
        -------
        ndarray, shape (...)
            Rises with every margin; 1/2 where all are 0.
        """
        from scipy.special import ndtr

        found = np.asarray(margins, dtype=np.float64)
        if not self.blur > 0:
            bare: Vector = (np.sign(found) + 1).mean(axis=-1) / 2
            return bare
        with np.errstate(over="ignore"):
            blurred: Vector = ndtr(found / self.blur).mean(axis=-1)
        return blurred


SHIPPED = Calibration(0.029)
"""Used where the user's own runs are too few: the geometric mean of the blurs of two public collections of runs
(`benchmarks/decision.py`)."""


def fit_calibration(
    margins: Matrix, won: Flags, weight: Vector, n_runs: int, prior: Calibration | None = SHIPPED
) -> Calibration:
    """Learn the blur from judged pairs, by their log score.

    Pairs share runs: as n runs have n - 1 independent differences, all of them together weigh as much as n - 1. Their
    likelihood meets a log-normal prior at the shipped blur, with a standard deviation of a factor of 3.

    Parameters
    ----------
    margins : ndarray, shape (n, k)
        By each of k laws that had not seen the runs of the pair.
    won : ndarray, shape (n,), bool
        Whether scaling was better.
    weight : ndarray, shape (n,)
    n_runs : int
        Different runs among the pairs.
    prior : Calibration, optional
        With None the likelihood alone decides.
    """
    candidates = np.geomspace(*BLURS, GRID)
    scores = np.array([log_score(Calibration(blur).probability(margins), won, weight) for blur in candidates])
    lost = scores * (n_runs - 1)
    if prior is not None:
        lost = lost + (np.log(candidates / prior.blur) / np.log(LIKELY)) ** 2 / 2
    return Calibration(float(candidates[int(lost.argmin())]), len(won), n_runs)


def log_score(probability: Vector, won: Flags, weight: Vector) -> float:
    """Return the mean of -ln of the probability given to what came true; the lower the better."""
    p = np.clip(probability, CLOSEST, 1 - CLOSEST)
    return float(np.average(-np.log(np.where(won, p, 1 - p)), weights=weight))


def brier_score(probability: Vector, won: Flags, weight: Vector) -> float:
    """Return the mean squared difference of the probability and what came true (Brier 1950); the lower the better."""
    return float(np.average((probability - won) ** 2, weights=weight))


@dataclass(frozen=True)
class Bin:
    """Pairs that were given about the same probability.

    Attributes
    ----------
    low, high : float
        Ends of the bin.
    n : int
        Pairs in it.
    said, came : float
        Mean probability, and the share that came true; weighted.
    weight : float
        Share of all pairs, weighted.
    """

    low: float
    high: float
    n: int
    said: float
    came: float
    weight: float


def reliability(probability: Vector, won: Flags, weight: Vector, n_bins: int = 10) -> list[Bin]:
    """Return what came true among pairs of about the same probability, for bins of equal width that hold any."""
    edges = np.linspace(0, 1, n_bins + 1)
    place = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, n_bins - 1)
    found = []
    for i in range(n_bins):
        inside = place == i
        if inside.any():
            w = weight[inside]
            said, came = np.average(probability[inside], weights=w), np.average(won[inside], weights=w)
            share = float(w.sum() / weight.sum())
            found.append(Bin(float(edges[i]), float(edges[i + 1]), int(inside.sum()), float(said), float(came), share))
    return found


def calibration_error(bins: list[Bin]) -> float:
    """Return the mean absolute difference of what was said and what came true, over bins by their weight."""
    return float(sum(each.weight * abs(each.said - each.came) for each in bins))
