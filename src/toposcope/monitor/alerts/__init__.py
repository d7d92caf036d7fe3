"""Alerts: faults of a run, detected as it trains, at a stated rate of false alarms."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from toposcope.checks import FALSE_ALARM_RATE
from toposcope.logs.columns import identify_columns
from toposcope.logs.table import sources
from toposcope.monitor.alerts.lasting import N_PAST, LossStep, RateDrift
from toposcope.monitor.alerts.layers import Outliers, SlowGrowth, Stopped
from toposcope.monitor.alerts.logged import (
    NotFinite,
    RankDivergence,
    RateJumps,
    Rises,
    SpikeDetector,
    WorseForecasts,
)
from toposcope.monitor.alerts.looks import LookChecks
from toposcope.monitor.events import DIVERGED, Alert, Event, Forecasted, Logged, Looked, Measured, Note
from toposcope.probes.feature import NETWORK

# Early warnings: windows as chosen by ``toposcope early-warnings`` on half of its kinds of trouble, at the pace of the
# monitor; their rates, in ``checks.py``, are of 1, 3 and 10 in 100,000 the largest that raised no alarm in its 1.1
# million quiet steps, and at most two where the log has every second to tenth step.
RISE_STEPS = (16, 256)  # over which the mean of gradient norms is taken, and the median that it is compared with
GROWTH_STEPS = (1, 64)  # the same of weight norms

MIN_GRADIENT_SPIKE = 3.0  # least factor by which a layer's gradient norm must rise to be a spike
MIN_RANK_COLLAPSE = 1.4  # least factor by which a layer's stable rank must fall to be a collapse
MIN_NORM_RISE = 1.25  # least factor by which a layer's weight norm must rise for an alert
MIN_DEAD_RISE = 0.1  # least rise of the share of dead units

# Steps of the loss that last: chosen on ``benchmarks/false_alarms.py``, where nearly all that is left are losses that
# jump at each epoch. Rows of a block, and the least rise in units of the scatter of blocks.
LOSS_STEPS = ((16, 6.0), (32, 5.0))

LOOK_BACK = 500  # steps after a spike in which no early warning is raised

__all__ = ["FALSE_ALARM_RATE", "Alerts"]

LITERATURE = (
    "PaLM went back about 100 steps and skipped the next 200 to 500 batches; OPT-175B went back and lowered the"
    " learning rate."
)
SPIKING = {"loss spike": "loss", "gradient spike": "grad_norm"}  # check -> column of the log


class _Names(NamedTuple):
    """Names of the logged values that each check reads."""

    spiking: tuple[tuple[str, str], ...]
    rates: tuple[str, ...]
    finite: tuple[str, ...]
    losses: tuple[str, ...]


@lru_cache(maxsize=256)
def _names(logged: tuple[str, ...]) -> _Names:
    columns = identify_columns(logged)
    table = sources(columns)
    spiking = [(check, table[name]) for check, name in SPIKING.items() if name in table]
    rates = tuple(columns.named.get("learning_rate", ()))
    losses = tuple(target.name for target in columns.losses if not target.validation)
    norms = (name for what in ("grad_norm", "weight_norm") for name in columns.named.get(what, ()))
    return _Names(tuple(spiking), rates, tuple(dict.fromkeys((*losses, *norms, *rates))), losses)


def _is_of_loss(alert: Alert) -> bool:
    is_lost = alert.kind == "non-finite" and "layers" not in alert.evidence
    return alert.kind in ("loss spike", DIVERGED) or (is_lost and alert.place in _names((alert.place,)).losses)


class Alerts:
    """Detects faults of a run as it trains; pure computation in constant memory.

    On runs in which only noise changes, all checks together raise at most one alert in 100,000 steps
    (``docs/methods/monitor.md``). Each fault raises one alert, and may raise another after a recovery.
    """

    def __init__(self, last_step: int | None = None) -> None:
        self._last_step = last_step
        self._finite = NotFinite()
        self._spikes: dict[str, SpikeDetector] = {}
        self._rises: dict[str, Rises] = {}
        self._steps: dict[str, tuple[LossStep, ...]] = {}
        self._rates: dict[str, RateJumps] = {}
        self._drifts: dict[str, RateDrift] = {}
        self._ranks = RankDivergence()
        self._forecasts = WorseForecasts()
        self._growth, self._weights = SlowGrowth(), Rises("growing weights", "weight norm", *GROWTH_STEPS)
        self._gradients = Outliers("gradient spike", "training", "gradient_norm", MIN_GRADIENT_SPIKE)
        self._stable_ranks = Outliers("rank collapse", "controls", "stable_rank", MIN_RANK_COLLAPSE, falls=True)
        self._norms = Outliers("norm running away", "training", "weight_norm", MIN_NORM_RISE)
        # A layer that stops learning raises one alert, by the first of these that sees it.
        self._stopped: tuple[Stopped | Outliers, ...] = (
            Stopped("dead layer", ("gradient_norm",)),
            Stopped("frozen layer", ("update_ratio", "update_norm")),
            Outliers("dead units", "training", "dead_units", MIN_DEAD_RISE, share=True),
        )
        self.looks = LookChecks()
        self._measured_at = 0
        self._spiked_at: dict[str, int] = {}  # by check, step of the last spike

    def check(self, event: Event) -> list[Alert]:
        """Check an event; return the alerts that it raises."""
        match event:
            case Logged():
                return self.logged(event)
            case Measured():
                return self.measured(event)
            case Forecasted():
                return self._forecasts.add(event)
            case Note() if event.layers:
                self._begin_anew(event.layers)
        return []

    def logged(self, event: Logged) -> list[Alert]:
        """Check the values logged at a step; return the alerts that they raise."""
        names = _names(tuple(event.values))
        alerts = self._finite.logged(event, names.finite)
        for check, name in names.spiking:
            value = event.values[name]
            if not abs(value) < float("inf"):
                continue
            if name not in self._spikes:
                self._spikes[name] = SpikeDetector(check, name)
            spike, rise = self._spikes[name].add(event.step, value), None
            if check == "loss spike":
                step = self._step_of_loss(event.step, name, value)
                alerts += [] if step is None else [step]
            if check == "gradient spike":
                if name not in self._rises:
                    self._rises[name] = Rises("rising gradients", name, *RISE_STEPS)
                rise = self._rises[name].add(event.step, value)
            if spike is not None and not (check == "gradient spike" and event.step in self._gradients.alerted.values()):
                alerts.append(spike)  # unless its layers already raised it
                self._spiked_at[check] = event.step
            if rise is not None and not self._is_known(event.step):
                alerts.append(rise)
        over = self._last_step is not None and event.step >= self._last_step
        for name in () if over else names.rates:
            rate = event.values[name]
            if abs(rate) < float("inf"):
                jump = self._rates.setdefault(name, RateJumps(name)).add(event.step, rate)
                drift = self._drifts.setdefault(name, RateDrift(name, self._last_step))
                alert = drift.add(event.step, rate, is_known=jump is not None)
                alerts += [each for each in (jump, alert) if each is not None]
        return alerts

    def _step_of_loss(self, step: int, name: str, value: float) -> Alert | None:
        """Return an alert on a step of the loss that lasts."""
        if name not in self._steps:
            self._steps[name] = tuple(LossStep(name, *scale) for scale in LOSS_STEPS)
        alert = next(filter(None, [check.add(step, value) for check in self._steps[name]]), None)
        if alert is not None:
            for check in self._steps[name]:
                check.resting = N_PAST
        # a spike from which the loss has not come back is known
        is_known = alert is not None and self._spiked_at.get("loss spike", -1) >= alert.since - LOOK_BACK
        return None if is_known else alert

    def looked(self, event: Looked) -> list[Alert]:
        """Check a look at the parameters; return the alerts that it raises."""
        return self.looks.looked(event, set[str]().union(*(check.faulty for check in self._stopped)))

    def measured(self, event: Measured) -> list[Alert]:
        """Check the measurements of a step; return the alerts that they raise."""
        last, self._measured_at = self._measured_at, event.step
        alerts = self._finite.measured(event, last)
        for check in self._stopped:
            others = (other.faulty for other in self._stopped if other is not check)
            reported = self.looks.faulty.union(*others)
            alerts += check.measured(event, last, reported)
        spikes = self._gradients.measured(event, last)
        if not last < self._spiked_at.get("gradient spike", -1) <= event.step:  # the log already showed it
            alerts += spikes
        alerts += self._stable_ranks.measured(event, last)
        growing = self._norms.measured(event, last)
        growing += self._growth.measured(event, last, self._norms.alerted)
        norm = event.rows.get((NETWORK, "training"), {}).get("weight_norm", math.nan)
        rise = self._weights.add(event.step, norm) if math.isfinite(norm) else None
        if rise is not None and not growing and not self._is_known(event.step):
            growing = [rise]
        return alerts + growing

    def explained(self, alert: Alert, checkpoint: Callable[[int], str] = lambda _: "") -> Alert:
        """Return an alert, one on the loss with what others did; `checkpoint` names the last one before a step."""
        if not _is_of_loss(alert):
            return alert
        recovers = "A single spike often recovers by itself. Otherwise:" if alert.kind == "loss spike" else ""
        said = (alert.message, checkpoint(alert.since), recovers, LITERATURE)
        return replace(alert, message=" ".join(filter(None, said)))

    def _is_known(self, step: int) -> bool:
        """Return whether spikes showed lately what an early warning would warn of."""
        spiked = (*self._spiked_at.values(), *self._gradients.alerted.values())
        return any(step - at <= LOOK_BACK for at in spiked)

    def _begin_anew(self, layers: Sequence[str]) -> None:
        """Forget layers that were frozen or thawed on purpose, and the level of the logged gradient norm."""
        for check in (self._gradients, self._stable_ranks, self._norms, *self._stopped):
            check.history.forget(layers)
        self._spikes = {name: of for name, of in self._spikes.items() if of.check != "gradient spike"}
        self._rises = {}

    def ranks(self, step: int, ranks: Mapping[int, Mapping[str, float]]) -> list[Alert]:
        """Check quantities that data-parallel ranks share, by rank; return an alert if they differ.

        Do not pass quantities that may differ, such as the loss of a rank's own batch. Hashes and checksums, recognised
        by name, must be equal, and norms must agree within a relative difference of 1e-6.
        """
        return self._ranks.add(step, ranks)


def __dir__() -> list[str]:
    return sorted(__all__)
