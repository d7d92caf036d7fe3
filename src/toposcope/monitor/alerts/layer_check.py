"""Checks one statistic of all layers: which of them deviate from their own level by more than noise explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toposcope.monitor.alerts.latch import Latch
from toposcope.monitor.alerts.rates import rate_of
from toposcope.monitor.alerts.tail import Tail
from toposcope.typing import Vector

MIN_UNITS = 8.0
"""Least deviation that is reported, in units of noise."""
MIN_MEASUREMENTS = 4
"""Measurements whose largest deviation is known before any layer is judged."""
MAX_FAULTY = 10
"""Consecutive faulty measurements of a layer after which they become its new level."""
MAX_EXCLUDED_ALERTS = 2
"""Alerts whose deviations are excluded from the noise; those of further alerts count as noise of the run."""


@dataclass
class LayerCheck:
    """Finds layers that deviate. The limit follows from the largest deviation over all layers at each measurement.

    Attributes
    ----------
    name : str
        Name of the check in `SHARES`.
    min_change : float
        Least deviation that raises an alert, in units of the statistic.
    tail_index : float
        Index of the heaviest tail that is assumed: the exponent with which the probability of a deviation falls.
    in_logs : bool
        Whether deviations are differences of logarithms, so that such a tail is exponential.
    """

    name: str
    min_change: float
    tail_index: float
    in_logs: bool = True
    _tail: Tail = field(default_factory=Tail)
    _latches: dict[str, Latch] = field(default_factory=dict)
    _streaks: dict[str, int] = field(default_factory=dict)
    _largest: float = 0.0
    _n_alerts: int = 0
    limit: float = math.inf

    def faulty(self, gap: int, deviations: Vector, noise: Vector, ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which layers deviate upwards by more than noise explains.

        Parameters
        ----------
        gap : int
            Steps since the last measurement.
        deviations, noise : ndarray, shape (n_layers,)
        ready : ndarray of bool
            Layers with enough measurements to be judged; their deviations are finite.
        """
        if not ready.any():
            return np.zeros(len(ready), np.bool_)
        units = np.where(ready, deviations / noise, 0.0)
        above = np.zeros(len(ready), np.bool_)
        if self._tail.count >= MIN_MEASUREMENTS:
            rate = rate_of(self.name, gap)
            self.limit = max(MIN_UNITS, self._tail.limit(rate))
            above = ready & (units > MIN_UNITS) & ((units > self.limit) | (deviations > self._bound(rate)))
        self._largest = max(self._largest, float(deviations[ready & ~above].max(initial=0.0)))
        self._tail.add(float(units[~above].max(initial=0.0)))
        return above & (deviations > self.min_change)

    def _bound(self, rate: float) -> float:
        """Return the bound that follows from the largest deviation so far, whatever the noise of a layer."""
        odds = max(1.0, 1 / (self._tail.count * rate))
        if self.in_logs:
            return self._largest + math.log(odds) / self.tail_index
        return float(self._largest * odds ** (1 / self.tail_index))

    def newly(self, layers: Sequence[str], faulty: NDArray[np.bool_]) -> list[int]:
        """Return the positions of the layers that raise an alert now, not while the fault of an earlier one lasts."""
        found = []
        for position, layer in enumerate(layers):
            if faulty[position]:
                if self._latches.setdefault(layer, Latch(1)).faulty():
                    found.append(position)
                self._streaks[layer] = self._streaks.get(layer, 0) + 1
            elif layer in self._latches:
                self._latches[layer].normal()
                self._streaks.pop(layer, None)
        self._n_alerts += bool(found)
        if found and self._n_alerts > MAX_EXCLUDED_ALERTS and math.isfinite(self.limit):
            self._tail.add(self.limit)
        return found

    def lasting(self, layer: str) -> bool:
        """Return whether a layer has been faulty for so long that this is its new level."""
        return self._streaks.get(layer, 0) > MAX_FAULTY
