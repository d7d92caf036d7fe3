"""Detects layers whose statistic leaves its level: gradient spikes, rank collapses, growing norms."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.monitor.alerts.layer_check import LayerCheck
from toposcope.monitor.alerts.layer_history import LayerHistory
from toposcope.monitor.alerts.measured_rows import alert_of_layers, logarithms, of_layers
from toposcope.monitor.alerts.wording import factor, number
from toposcope.monitor.events import Alert, Measured
from toposcope.typing import Vector

MIN_NOISE = 0.005
"""Floor of the noise estimate, relative to the level."""
TAIL_INDEX_OF_RISES = 2.0
"""Index of the heaviest tail of rises: that of Student's t with 2 degrees of freedom."""
TAIL_INDEX_OF_FALLS = 1.0
"""Index of the tail of falls, for values with a density near 0."""


class Departures:
    """Detects layers whose positive statistic rises, or falls, by more than its noise explains.

    Parameters
    ----------
    check, kind : str
        Name of the check in `SHARES`, and kind of its alerts.
    probe, statistic : str
    words : str
        Name of the statistic in messages.
    falls : bool
        Detect falls instead of rises.
    min_factor : float
        Least factor of a rise or fall that raises an alert.
    """

    def __init__(
        self, check: str, kind: str, probe: str, statistic: str, words: str, *, falls: bool, min_factor: float
    ) -> None:
        self._kind, self._probe, self._statistic, self._words = kind, probe, statistic, words
        self._falls = falls
        # deviations are in logarithms, where a power-law tail becomes exponential
        self._check = LayerCheck(check, math.log(min_factor), TAIL_INDEX_OF_FALLS if falls else TAIL_INDEX_OF_RISES)
        self.history = LayerHistory(MIN_NOISE)
        self.alerted: dict[str, int] = {}
        """Step of the last alert of each layer."""

    def measured(self, event: Measured, last: int) -> list[Alert]:
        """Check a measurement; `last` is the step of the previous one."""
        layers, values = logarithms(of_layers(event, self._probe, self._statistic))
        if not layers:
            return []
        columns = self.history.columns(layers)
        baseline = self.history.baseline(columns)
        deviations = baseline.low - values if self._falls else values - baseline.high
        faulty = self._check.faulty(event.step - last, deviations, baseline.noise, baseline.ready)
        newly = self._check.newly(layers, faulty)
        self.alerted |= {layers[k]: event.step for k in newly}
        learnt = _learnt(self._check, layers, faulty)
        self.history.add(columns[learnt], values[learnt])
        if not newly:
            return []
        newly.sort(key=lambda k: -deviations[k])
        return [
            self._alert(
                event,
                last,
                layers,
                newly,
                np.exp(values),
                np.exp(baseline.low if self._falls else baseline.high),
                baseline.noise,
            )
        ]

    def _alert(
        self,
        event: Measured,
        last: int,
        layers: Sequence[str],
        newly: Sequence[int],
        values: Vector,
        levels: Vector,
        noise: Vector,
    ) -> Alert:
        first = newly[0]
        value, level = float(values[first]), float(levels[first])
        change = level / value if self._falls else value / level
        what = (
            f"its {self._words} {'fell' if self._falls else 'rose'} from about {number(level)} to {number(value)},"
            f" a factor of {factor(change)} while its noise is {100 * float(noise[first]):.2g}%,"
        )
        evidence = {"value": value, "level": level, "noise": float(noise[first]) * level, "limit": self._check.limit}
        return alert_of_layers(self._kind, event, last, [layers[k] for k in newly], len(layers), what, evidence)


def _learnt(check: LayerCheck, layers: Sequence[str], faulty: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which layers' values update their level: normal ones, and faulty ones that have lasted."""
    return np.array([not bad or check.lasting(layer) for layer, bad in zip(layers, faulty, strict=True)], np.bool_)
