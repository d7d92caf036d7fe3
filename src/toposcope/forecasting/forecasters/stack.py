"""``stack`` and ``stack_norms``: what siblings of other sizes teach about the errors of the laws.

A ridge on log(final / cooldown), fitted to sibling runs at the same fraction. Its features are the forecasts of the
other laws and of ``template`` relative to ``cooldown``, log N, log T, log of the peak rate, the loss level and its
slope, and further features of each run, if they are given. The features of a sibling are computed without the runs of
its size.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from toposcope.forecasting.forecaster import Forecast, LoggedRun, RefusedError, curve_steps, fraction_seen
from toposcope.forecasting.forecasters.baseline_laws import Last, ProgressPowerLaw, StepPowerLaw
from toposcope.forecasting.forecasters.cooldown_laws import ANNEALING, COOLDOWN, S1_ANNEAL
from toposcope.forecasting.forecasters.law_forecaster import LawForecaster
from toposcope.forecasting.forecasters.ridge import RidgeFit, fit_ridge
from toposcope.forecasting.forecasters.sibling_template import template_final
from toposcope.forecasting.forecasters.window import window
from toposcope.forecasting.schedules.known import held_out
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.forecasting.siblings import usable_siblings
from toposcope.logs import Log
from toposcope.typing import Vector

ExtraFeatures = Mapping[str, Sequence[float]]
"""Name of a run -> further features of it at the fraction."""

BASE = COOLDOWN
STACKED_LAWS: tuple[LawForecaster, ...] = (Last(), StepPowerLaw(), ProgressPowerLaw(), S1_ANNEAL, ANNEALING)
SLOPE_SHARE = 0.5
"""Late share of what was seen over which slopes are taken."""
MIN_VARIANCE = 1e-10
"""Of the logarithm of progress; with less, slopes count as 0."""
MIN_RUNS, MIN_SIZES = 8, 2
NORMS = ("weight_norm", "grad_norm")
MIN_NORMS = 3
"""Logged values of a norm."""


class Stack:
    """A ridge over siblings of the family.

    Parameters
    ----------
    extra : mapping, optional
        Further features of every run, including the one to forecast; equally many of each. Runs without are left out.
    """

    name = "stack"

    def __init__(self, extra: ExtraFeatures | None = None) -> None:
        self._extra = extra
        self._fitted = lru_cache(maxsize=256)(self._fit)

    def fit(self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        """Forecast.

        Raises
        ------
        RefusedError
            If fewer than 8 siblings of the family, or of 2 sizes, can be forecast at this fraction.
        """
        relatives = tuple(run for run in usable_siblings(log, siblings) if run.log.family == log.family)
        sized = bool(np.isfinite(log.parameters))
        if sized:
            # runs of known and of unknown size cannot be compared
            relatives = tuple(run for run in relatives if np.isfinite(run.log.parameters))
        ridge, errors, reach = self._fitted(relatives, fraction_seen(log, schedule), sized, schedule.assumed)
        base = BASE.law(log, schedule, relatives)
        row = self._features(log, schedule, relatives, base.final(), sized)
        correction = float(ridge(row[None])[0])
        steps = curve_steps(log, schedule)
        elapsed = (steps - steps[0]) / max(steps[-1] - steps[0], 1)
        return Forecast(
            self.name,
            base.final() * np.exp(correction),
            steps=steps,
            curve=base.loss(steps) * np.exp(correction * elapsed),
            errors=errors / reach * ridge.reach(row[None]),
            relatives=np.ones(len(errors), dtype=bool),
            diagnostics={
                "correction": correction,
                "strength": ridge.strength,
                "reach": float(ridge.reach(row[None])[0]),
                "siblings": float(len(errors)),
            },
            remarks=base.remarks,
        )

    def _fit(
        self, relatives: tuple[LoggedRun, ...], fraction: float, sized: bool, assumed: bool
    ) -> tuple[RidgeFit, Vector, Vector]:
        """Return the ridge, log(predicted / final) of each sibling, held out with its size, and its reach."""
        rows, target, sizes = [], [], []
        for case in held_out(relatives, fraction, assumed):
            if case is None:
                continue
            run, seen, schedule, others = case
            try:
                base = BASE.law(seen, schedule, others).final()
                row = self._features(seen, schedule, others, base, sized)
            except RefusedError:
                continue
            rows.append(row)
            target.append(np.log(run.final() / base))
            sizes.append(run.size)
        if len(rows) < MIN_RUNS or len(set(sizes)) < MIN_SIZES:
            raise RefusedError(
                f"{len(rows)} siblings of the family and {len(set(sizes))} sizes can be forecast at this fraction;"
                f" a stack needs {MIN_RUNS} of {MIN_SIZES}"
            )
        ridge = fit_ridge(np.array(rows), np.array(target), sizes)
        return ridge, ridge.held_out - np.array(target), ridge.reach(np.array(rows))

    def _features(
        self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool
    ) -> Vector:
        known = stack_features(log, schedule, siblings, base, sized)
        if self._extra is None:
            return known
        if log.name not in self._extra:
            raise RefusedError(f"{log.name}: its further features are missing")
        return np.array([*known, *self._extra[log.name]])


def stack_features(log: Log, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool) -> Vector:
    """Return the features of a run: log(law / base) of `STACKED_LAWS` and ``template``, slope, level, size and plan.

    Parameters
    ----------
    log : Log
        What was seen.
    schedule : Schedule
    siblings : list of LoggedRun
        Runs that the laws may borrow from.
    base : float
        The final loss predicted by `BASE`.
    sized : bool
        Whether the number of parameters is a feature.

    Raises
    ------
    RefusedError
        If a law refuses.
    """
    others = [np.log(law.law(log, schedule, siblings).final() / base) for law in STACKED_LAWS]
    try:
        others.append(np.log(template_final(log, schedule, siblings) / base))
    except RefusedError:
        others.append(0.0)  # without siblings of its schedule a run is taken to end where the base does
    late = window(log, schedule, SLOPE_SHARE)
    slope = slope_of(np.log(schedule.progress(late.steps)), np.log(late.loss))
    level = np.log(late.loss[-max(1, len(late.loss) // 10) :].mean())
    # a feature that is unknown of the run to forecast is the same for all, and has no effect
    size = np.log(log.parameters) if sized else 0.0
    return np.array([*others, slope, level, size, np.log(schedule.last_step), np.log(schedule.peak)])


def slope_of(x: Vector, y: Vector) -> float:
    """Return the slope of y over x by least squares; 0 where x is constant, as progress is at a rate of 0."""
    left = x - x.mean()
    size = float(left @ left)
    return float(left @ y) / size if size > MIN_VARIANCE * len(x) else 0.0


class StackNorms(Stack):
    """The stack with level and slope of log ||W|| and log ||g|| over the late half of what was seen."""

    name = "stack_norms"

    def _features(
        self, log: Log, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool
    ) -> Vector:
        norms = [value for name in NORMS for value in _level_and_slope(log, schedule, name)]
        return np.array([*super()._features(log, schedule, siblings, base, sized), *norms])


def _level_and_slope(log: Log, schedule: Schedule, name: str) -> tuple[float, float]:
    """Return the median of the logarithm of a norm, and its slope in log S1."""
    values = log.norms.get(name, np.full(len(log.steps), np.nan))
    late = (log.steps >= max(1, (1 - SLOPE_SHARE) * log.steps[-1])) & np.isfinite(values)
    late[late] = values[late] > 0
    if late.sum() < MIN_NORMS:
        raise RefusedError(f"the log has no {name.replace('_', ' ')}")
    y, x = np.log(values[late]), np.log(schedule.progress(log.steps[late]))
    return float(np.median(y)), slope_of(x, y)


FORECASTERS = (Stack(), StackNorms())
