"""How far noise alone carries a value: rates of false alarms, the tail of a stream, and one alert per fault."""

import math
from typing import NamedTuple

import numpy as np

from toposcope.checks import CHECKS, FALSE_ALARM_RATE
from toposcope.typing import Vector

# Alerts: chosen on 21 families of synthetic noise and checked on 15 others, by ``benchmarks/false_alarms.py``; the
# rates of false alarms and the faults found are in ``docs/methods/monitor.md``.
MAX_TAIL_COUNT = 4096  # values after which all weights of a tail are halved, so that it follows slow changes
MIN_TAIL_WEIGHT = 0.3  # least weight of a bin; halved below it, the bin is emptied
TAIL_SHARES = {0.4: 12, 0.15: 25}  # shares of the values to which a tail is fitted -> least number of values for each
N_STANDARD_ERRORS = 1.0  # standard errors added to the fitted shape of a tail
MIN_OVER_LARGEST = 1.3  # least limit relative to the largest value so far


MAX_GAP = 1000  # longest gap between two values, in steps, over which a check's rate adds up


def rate_of(check: str, where: str, gap: int) -> float:
    """Return the probability of a false alarm that a check may spend on a value `gap` steps after the last."""
    return FALSE_ALARM_RATE * CHECKS[check].monitor[where] * min(max(gap, 1), MAX_GAP)


class Latch:
    """Decides whether a check may raise an alert for one place."""

    def __init__(self, recovery: int) -> None:
        self._recovery = recovery
        self._left = 0
        self.n_alerts = 0

    def faulty(self) -> bool:
        """Record a faulty value; return whether it raises an alert."""
        raised = self._left == 0
        self._left = self._recovery
        if raised:
            self._recovery *= 2
            self.n_alerts += 1
        return raised

    def normal(self) -> None:
        """Record a normal value."""
        if self._left:
            self._left -= 1


SMALLEST = 0.05  # lower end of the histogram; smaller values count as this
BIN_RATIO = 1.05
N_BINS = 480  # bins of the histogram, which reach up to 7e8 times the noise
PRIOR_SHAPE, PRIOR_WEIGHT = 0.5, 10  # of the shape, and its weight in excesses (Vehtari et al. 2024)
REFIT_GROWTH = 1.05  # growth of the number of values after which the tail is fitted again

_PER_LOG = 1 / math.log(BIN_RATIO)
_EDGES: Vector = SMALLEST * np.float64(BIN_RATIO) ** np.arange(N_BINS, dtype=np.float64)
_CENTRES: Vector = _EDGES * math.sqrt(BIN_RATIO)


class Tail:
    """Distribution of the positive values of a stream, in units of its noise, in constant memory."""

    def __init__(self) -> None:
        self._counts = [0.0] * N_BINS
        self.count: float = 0.0
        self._fit_at = 0.0
        self._fit_for = 0.0
        self._limit = math.inf

    def add(self, value: float) -> None:
        """Add a value; those at or below 0 count as the smallest."""
        place = 0 if value <= SMALLEST else int(min(math.log(value / SMALLEST) * _PER_LOG, N_BINS - 1))  # also infinite
        if self._counts[place] == 0 and not any(self._counts[place:]):
            self._fit_at = 0.0  # a new largest value
        self._counts[place] += 1
        self.count += 1
        if self.count >= MAX_TAIL_COUNT:
            self._counts = [c / 2 if c / 2 >= MIN_TAIL_WEIGHT else 0.0 for c in self._counts]
            self.count = sum(self._counts)
            self._fit_at = 0.0

    def limit(self, probability: float) -> float:
        """Return the limit that the next value exceeds with at most this probability; infinite without values."""
        if not self.count:
            return math.inf
        # a cached limit is used for slightly larger probabilities, for which it is conservative
        if self.count >= self._fit_at * REFIT_GROWTH or not 0.8 <= self._fit_for / probability <= 1:
            self._fit_at, self._fit_for = self.count, probability * 0.9
            self._limit = self._fitted(self._fit_for)
        return self._limit

    def exceedance(self, values: Vector) -> Vector:
        """Return the probability that the next value is as large, by which `limit` is inverted.

        What is not clear of the largest value so far has a probability of at least one in as many as there were.
        """
        if not self.count:
            return np.ones(len(values))
        largest, fits = self._fits()
        positive = np.maximum(values, SMALLEST)
        record = (largest / positive) ** 2 / self.count
        if fits:
            fitted = np.max([fit.n_above(values) / self.count for fit in fits], axis=0)
            record = np.where(positive > largest, np.minimum(record, fitted), fitted)
        least = np.where(positive > MIN_OVER_LARGEST * largest, 0.0, 1 / self.count)
        return np.clip(record, least, 1.0)

    def _fitted(self, probability: float) -> float:
        largest, fits = self._fits()
        record = largest * math.sqrt(max(1.0, 1 / (self.count * probability)))
        limits = [fit.limit(probability * self.count) for fit in fits]
        return max(MIN_OVER_LARGEST * largest, min(record, max(limits, default=math.inf)))

    def _fits(self) -> "tuple[float, list[_ParetoTail]]":
        """Return the largest value, and a fit to each share of the values that is large enough."""
        counts = np.array(self._counts)
        above = np.cumsum(counts[::-1])[::-1]
        largest = float(_EDGES[np.flatnonzero(counts)[-1]] * BIN_RATIO)
        return largest, [
            _pareto_tail(counts, above, share * self.count)
            for share, least in TAIL_SHARES.items()
            if share * self.count >= least
        ]


class _ParetoTail(NamedTuple):
    """The `n` values above an edge, by a generalised Pareto distribution."""

    edge: float
    shape: float
    scale: float
    n: float

    def limit(self, expected: float) -> float:
        """Return the value that is exceeded `expected` times by as many values as were counted."""
        return self.edge + self.scale / self.shape * math.expm1(self.shape * math.log(max(self.n / expected, 1.0)))

    def n_above(self, values: Vector) -> Vector:
        """Return how many of as many values are expected above each of these."""
        excesses = np.maximum(values - self.edge, 0.0)
        return np.asarray(self.n * np.exp(-np.log1p(self.shape / self.scale * excesses) / self.shape))


def _pareto_tail(counts: Vector, above: Vector, n_excesses: float) -> _ParetoTail:
    """Return the fit to the highest values, about `n_excesses` of them."""
    # the highest edge with `n_excesses` values above it; excesses are over that edge
    first = int(np.flatnonzero(above >= n_excesses)[-1])
    weights = counts[first:]
    used = weights > 0
    weights, edge = weights[used], float(_EDGES[first])
    shape, scale = _fit_pareto(_CENTRES[first:][used] - edge, weights)
    n = float(weights.sum())
    shape = (n * shape + PRIOR_WEIGHT * PRIOR_SHAPE) / (n + PRIOR_WEIGHT)
    shape += N_STANDARD_ERRORS * (1 + max(shape, 0.0)) / math.sqrt(n + PRIOR_WEIGHT)
    return _ParetoTail(edge, max(shape, 1e-6), scale, n)


def _fit_pareto(excesses: Vector, weights: Vector) -> tuple[float, float]:
    """Return shape and scale of a generalised Pareto distribution of weighted excesses (Zhang and Stephens 2009)."""
    n = float(weights.sum())
    quartile = float(excesses[np.searchsorted(np.cumsum(weights), n / 4)])
    n_points = 30 + int(math.sqrt(n))
    points = 1 / float(excesses[-1]) + (1 - np.sqrt(n_points / (np.arange(1, n_points + 1) - 0.5))) / (3 * quartile)
    points = points[np.abs(points) > 1e-12]
    shapes = np.log1p(-points[:, None] * excesses * (1 - 1e-9)) @ weights / n
    likelihoods = n * (np.log(-points / shapes) - shapes - 1)
    posterior = np.exp(likelihoods - likelihoods.max())
    point = float(points @ posterior / posterior.sum())
    shape = float(np.log1p(-point * excesses * (1 - 1e-9)) @ weights / n)
    return shape, -shape / point
