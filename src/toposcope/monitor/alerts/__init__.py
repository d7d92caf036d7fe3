"""Alerts: faults of a run, detected as it trains, at a stated rate of false alarms."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from toposcope.logs.columns import identify_columns
from toposcope.logs.table import sources
from toposcope.monitor.alerts.layers import Departures, SlowGrowth, Stillness
from toposcope.monitor.alerts.logged import NotFinite, RankDivergence, RateJumps, Spike, SpikeDetector, WorseForecasts
from toposcope.monitor.alerts.noise import FALSE_ALARM_RATE
from toposcope.monitor.events import Alert, Forecasted, Logged, Measured, Note, factor, number

__all__ = ["FALSE_ALARM_RATE", "Alerts"]

SPIKING = {"loss spike": "loss", "gradient spike": "grad_norm"}
MIN_GRADIENT_SPIKE = 3.0  # least factor by which a layer's gradient norm must rise to be a spike
MIN_RANK_COLLAPSE = 1.4  # least factor by which a layer's stable rank must fall to be a collapse
MIN_NORM_RISE = 1.25  # least factor by which a layer's weight norm must rise for an alert


class _Names(NamedTuple):
    """Names of the logged values that each check reads."""

    spiking: tuple[tuple[str, str], ...]
    rates: tuple[str, ...]
    finite: tuple[str, ...]


@lru_cache(maxsize=256)
def _names(logged: tuple[str, ...]) -> _Names:
    columns = identify_columns(logged)
    table = sources(columns)
    spiking = [(check, table[name]) for check, name in SPIKING.items() if name in table]
    rates = tuple(columns.named.get("learning_rate", ()))
    losses = (target.name for target in columns.losses if not target.validation)
    norms = (name for what in ("grad_norm", "weight_norm") for name in columns.named.get(what, ()))
    return _Names(tuple(spiking), rates, tuple(dict.fromkeys((*losses, *norms, *rates))))


class Alerts:
    """Detects faults of a run as it trains; pure computation in constant memory.

    On runs in which only noise changes, all checks together raise at most one alert in 100,000 steps
    (``docs/methods/alerts.md``). Each fault raises one alert, and may raise another after a recovery.
    """

    def __init__(self, last_step: int | None = None) -> None:
        self._last_step = last_step
        self._finite = NotFinite()
        self._spikes: dict[str, SpikeDetector] = {}
        self._rates: dict[str, RateJumps] = {}
        self._ranks = RankDivergence()
        self._forecasts = WorseForecasts()
        self._stillness = Stillness()
        self._growth = SlowGrowth()
        self._gradients = Departures(
            "layer gradient spike", "gradient spike", "training", "gradient_norm", MIN_GRADIENT_SPIKE
        )
        self._stable_ranks = Departures(
            "rank collapse", "rank collapse", "controls", "stable_rank", MIN_RANK_COLLAPSE, falls=True
        )
        self._norms = Departures("norm running away", "norm running away", "training", "weight_norm", MIN_NORM_RISE)
        self._measured_at = 0
        self._gradient_spike_at = -1

    def logged(self, event: Logged) -> list[Alert]:
        """Check the values logged at a step; return the alerts that they raise."""
        names = _names(tuple(event.values))
        alerts = self._finite.logged(event, names.finite)
        for check, name in names.spiking:
            value = event.values[name]
            if not abs(value) < float("inf"):
                continue
            detector = self._spikes.get(name)
            if detector is None:
                detector = self._spikes[name] = SpikeDetector(check)
            spike = detector.add(event.step, value)
            if spike is not None:
                alerts.append(_spike_alert(check, name, event.step, spike))
                if check == "gradient spike":
                    self._gradient_spike_at = event.step
        over = self._last_step is not None and event.step >= self._last_step
        for name in () if over else names.rates:
            rate = event.values[name]
            if abs(rate) < float("inf"):
                jump = self._rates.setdefault(name, RateJumps(name)).add(event.step, rate)
                alerts += [jump] if jump is not None else []
        return alerts

    def measured(self, event: Measured) -> list[Alert]:
        """Check the measurements of a step; return the alerts that they raise."""
        last, self._measured_at = self._measured_at, event.step
        alerts = self._finite.measured(event, last)
        alerts += self._stillness.measured(event, last)
        spikes = self._gradients.measured(event, last)
        if not last < self._gradient_spike_at <= event.step:  # the logged gradient norm already raised an alert
            alerts += spikes
        alerts += self._stable_ranks.measured(event, last)
        norms = self._norms.measured(event, last)
        return alerts + norms + self._growth.measured(event, last, self._norms.alerted)

    def noted(self, event: Note) -> None:
        """Begin anew with layers that were frozen or thawed on purpose, and with the logged gradient norm."""
        for check in (self._gradients, self._stable_ranks, self._norms, *self._stillness.checks):
            check.history.forget(event.layers)
        self._spikes = {name: of for name, of in self._spikes.items() if of.check != "gradient spike"}

    def forecasted(self, event: Forecasted) -> list[Alert]:
        """Check a forecast; return an alert if it is worse than the earlier ones allow."""
        return self._forecasts.add(event)

    def ranks(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> list[Alert]:
        """Check quantities that data-parallel ranks share, by rank; return an alert if they differ.

        Do not pass quantities that may differ, such as the loss of a rank's own batch. Hashes and checksums, recognised
        by name, must be equal, and norms must agree within a relative difference of 1e-6.
        """
        return self._ranks.add(step, ranks)


def _spike_alert(check: str, name: str, step: int, spike: Spike) -> Alert:
    message = (
        f"{name}: rose to {number(spike.value)} at step {step:,}, {factor(spike.units)} times its noise"
        f" ({number(spike.noise)}) above its level of {number(spike.level)}; the limit is {factor(spike.limit)} times."
    )
    return Alert(check, step, step, name, message, spike._asdict())


def __dir__() -> list[str]:
    return sorted(__all__)
