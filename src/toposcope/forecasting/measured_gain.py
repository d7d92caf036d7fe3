"""The gain of a cool-down as merged checkpoints of the run measure it, in place of the prior of ``s1_anneal``.

A merged checkpoint has what a falling rate would have gained, but not the progress. So its gain over the power law at
equal progress is the coefficient c of ``s1_anneal`` for this run. It was found better than a prior where a decay is
near; from the middle of a run no better, earlier and before a cosine worse. There it is not used.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.cooldown import MAX_RATE_CHANGE, CoolDown
from toposcope.forecasting.decision.advice import MAX_STEPS_TO_DECAY
from toposcope.forecasting.forecaster import Forecast, LoggedRun
from toposcope.forecasting.forecasters.cooldown_laws import S1_ANNEAL, AnnealedLaw, Prior
from toposcope.forecasting.held_out import NORMAL_WIDTH
from toposcope.forecasting.intervals import is_learning
from toposcope.forecasting.stored_cooldowns import nearest
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.run import FINAL_SHARE
from toposcope.logs.schedules.declared import DEFAULT_DECAY
from toposcope.logs.schedules.recognised import WARMED_UP
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Vector

# Cool-downs from checkpoints: docs/methods/cool-down.md; on real cool-downs of small models (benchmarks/cooldowns.py)
MIN_KEPT = 0.25  # mean rate of a decay over its peak: 1/2 if linear, 1/3 if 1 - sqrt


class MeasuredLaw(AnnealedLaw):
    """``s1_anneal`` with a measured gain as its coefficient, fitted to the late half of what was seen."""

    share = 0.5

    def __init__(self, measured: CoolDown) -> None:
        super().__init__(S1_ANNEAL.name, S1_ANNEAL.annealing)
        self.measured = measured
        source = f"measured at step {measured.step:,} on merged checkpoints, {measured.beyond:.3g} nats"
        self._prior = Prior(measured.beyond, measured.high - measured.loss, source)

    def prior(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Prior:
        """Return what was measured."""
        return self._prior

    def _errors(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> tuple[Vector, NDArray[np.bool_]]:
        """Return no errors: the gain of this run says nothing of how well others are forecast."""
        return np.empty(0), np.empty(0, dtype=bool)

    def with_interval(self, forecast: Forecast, log: Run, schedule: Schedule) -> Forecast:
        """Return the forecast with its 90% interval.

        Three errors are added as independent: that of a cool-down from the step that it was measured at, half of what
        the law lets the loss fall from there until the decay begins, and the noise of the last rows of a run.
        """
        step, fit = self.measured.step, forecast.diagnostics
        ends = np.array([step, max(decay_of(schedule)[0], step)])
        now, then = schedule.progress(ends) / schedule.progress(log.steps[-1:])
        to_fall = fit["A"] * (now ** -fit["a"] - then ** -fit["a"])
        rows_at_end = max(FINAL_SHARE * schedule.last_step * len(log.steps) / log.steps[-1], 1.0)
        noise = NORMAL_WIDTH * row_noise(log.loss[len(log.loss) // 2 :]) / np.sqrt(rows_at_end)
        loss = forecast.loss
        error = float(np.linalg.norm([self._prior.spread, to_fall / 2, noise])) / loss
        low, high = loss * float(np.exp(-error)), loss * float(np.exp(error))
        remark = "interval: errors of cool-downs predicted from merged checkpoints"
        return replace(forecast, low=low, high=high, remarks=(*forecast.remarks, remark))


def decay_of(schedule: Schedule) -> tuple[int, int]:
    """Return the last step at the peak, and the first at the last rate; equal where the rate is held to the end."""
    begin = int(np.flatnonzero(schedule.rates >= WARMED_UP * schedule.peak)[-1])
    end = int(np.argmax(schedule.rates <= schedule.rates[-1] + (1 - WARMED_UP) * schedule.peak))
    return begin, max(begin, end)


def measured_law(
    cool_downs: Sequence[CoolDown], log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]
) -> tuple[MeasuredLaw | None, str]:
    """Return the law with the measured gain, None where it is not to be used, and a sentence that says so.

    Of several cool-downs that of the length nearest to the planned one counts.
    """
    begin, end = decay_of(schedule)
    measured = nearest(cool_downs, end - begin)
    reason = _not_usable(measured, log, schedule, siblings)
    if reason:
        return None, not_used(measured, reason)
    sentence = (
        f"the cool-down from step {begin:,} on gains {measured.beyond:.3g} nats beyond its progress, as merged "
        f"checkpoints up to step {measured.step:,} measure, in place of a prior"
    )
    return MeasuredLaw(measured), sentence


def not_used(measured: CoolDown, reason: str) -> str:
    """Return a sentence on a measured gain that is not used."""
    return f"the gain of a cool-down measured at step {measured.step:,} is not used: {reason}"


def _kept(schedule: Schedule, begin: int, end: int) -> float:
    """Return the mean rate of a decay over the peak."""
    return float(schedule.rates[begin + 1 : end + 1].mean()) / schedule.peak


def _not_usable(measured: CoolDown, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> str:
    """Return why a measured gain is not used for a forecast; empty if it is."""
    last, step = int(log.steps[-1]), measured.step
    begin, end = decay_of(schedule)
    fallen = float(schedule.cooled(np.arange(min(last, schedule.last_step) + 1)).max())
    if log.unit != "nats":
        return f"the log's loss is in {log.unit}, the gain in nats"
    if fallen > MAX_RATE_CHANGE:
        return f"the learning rate has fallen by {fallen:.0%} of its peak already"
    if schedule.is_held or begin == end:
        return f"no decay is planned: declare it, as in --schedule wsd:steps={schedule.last_step},decay=0.1"
    is_cooldown = end - begin <= DEFAULT_DECAY * end + 1 and _kept(schedule, begin, end) >= MIN_KEPT
    if not is_cooldown or schedule.last_step - end > FINAL_SHARE * schedule.last_step:
        return f"the decay planned is no cool-down over the last {DEFAULT_DECAY:.0%} of the run or less"
    if not (1 - MAX_STEPS_TO_DECAY) * last <= step <= last:
        return f"the log ends at step {last:,}; measure it there"
    if begin > (1 + MAX_STEPS_TO_DECAY) * last:
        return f"the decay begins at step {begin:,}, too far from step {last:,} for it to be better than a prior"
    if not is_learning(log):
        return "the loss does not fall"
    if siblings and S1_ANNEAL.prior(log, schedule, siblings).of_siblings:
        return "siblings show what their decays gained"
    return ""
