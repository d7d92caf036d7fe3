"""``multi_power``: L0 + A (S1 + S_W)^-a - B sum_k (eta_{k-1} - eta_k) [1 - (1 + C eta_k^-g S_k)^-b].

A power law of the summed learning rate, less what every fall of the rate has gained since (METHODS 9).
Source: Luo et al. 2025, "A Multi-Power Law for Loss Curve Prediction Across Learning Rate Schedules".
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from toposcope.forecasting.forecast import RefusedError, Run
from toposcope.forecasting.forecasters.falls import Falls, falls, gained, summed
from toposcope.forecasting.forecasters.fitted_falls import Curve, fit_curves
from toposcope.forecasting.forecasters.law_forecaster import FittedLaw, LawForecaster
from toposcope.forecasting.forecasters.shared_falls import Shared, best_shared, likelihoods
from toposcope.forecasting.forecasters.siblings import kin
from toposcope.forecasting.forecasters.variable_projection import fit_power_law
from toposcope.forecasting.forecasters.window import FEWEST, LATE, window
from toposcope.forecasting.memory import remembered
from toposcope.forecasting.schedules.schedule import Schedule
from toposcope.logs import Log
from toposcope.typing import Matrix, Steps, Vector

FEWEST_SCHEDULES = 3
"""For the five parameters of the falls and the level that they start from."""
APART = 0.05
"""Share of the peak; schedules that are never further apart are one."""
COMPARED = 65
"""Evenly spaced places of a run at which schedules are compared."""
SIBLINGS_SEEN = 0.9
"""Late share of a sibling that the shared parameters are fitted to."""
MOST_POINTS, LEAST_POINTS = 4000, 20
"""Of all curves together, and of each."""
MOST_ALIKE = 6
"""Runs of one model that the shared parameters are fitted to."""


@dataclass(frozen=True)
class MultiPowerLaw:
    """A fitted law; learning rates in their own unit, losses in the logs'.

    Attributes
    ----------
    L0, A, a, B, C, b, g : float
        Not negative.
    scale : float
        Of the relative residuals: their median absolute value times 1.4826.
    """

    L0: float
    A: float
    a: float
    B: float
    C: float
    b: float
    g: float
    scale: float

    def loss(self, schedule: Schedule, steps: Steps) -> Vector:
        """Return the loss at some steps of a schedule, shape of `steps`; warm-up rises along a line."""
        peak = schedule.peak
        gain = peak * gained(falls(schedule, steps), self.C * peak ** (1 - self.g), self.b, self.g)
        loss: Vector = self.L0 + self.A * (peak * summed(schedule, steps)) ** -self.a - self.B * gain
        return loss


def fit_multi_power(runs: Sequence[Run]) -> MultiPowerLaw:
    """Fit the law to runs of one model under several schedules, after their warm-up.

    Parameters
    ----------
    runs : list of Run
        Of one size, batch size and data.

    Raises
    ------
    RefusedError
        If they follow fewer than three different schedules, or have fewer than 5 points each.
    """
    _check_schedules(runs)
    unit = runs[0].schedule.peak
    points = max(LEAST_POINTS, MOST_POINTS // len(runs))
    curves = [_curve(run, 1.0, points) for run in runs]
    scaled = [_scaled(curve, run.schedule.peak / unit) for curve, run in zip(curves, runs, strict=True) if curve]
    if not scaled:
        raise RefusedError(f"no run has {FEWEST} logged steps after its warm-up")
    found = fit_curves(scaled)
    L0, A, a, B, C, b, g, scale = astuple(found)
    return MultiPowerLaw(L0, A * unit**a, a, B / unit, C * unit ** (g - 1), b, g, scale)


class MultiPower(LawForecaster):
    """The multi-power law: the falls' parameters are the siblings', the power law is the run's own."""

    name = "multi_power"

    def law(self, log: Log, schedule: Schedule, siblings: Sequence[Run]) -> FittedLaw:
        """Fit L0, A and a; B, C, b and g are those of the siblings, which need three different schedules."""
        shared = _shared(kin(log, siblings))
        return remembered(log, schedule, (self.name, shared), lambda: _own_law(log, schedule, shared))


def _own_law(log: Log, schedule: Schedule, shared: Shared) -> FittedLaw:
    """Fit the power law to what was seen, what the falls gained given back."""
    late = window(log, schedule, LATE)
    behind = remembered(log, schedule, "falls", lambda: falls(schedule, late.steps))
    found = fit_power_law(summed(schedule, late.steps), late.loss + _gained(behind, shared), late.weight)
    known: dict[bytes, Vector] = {}

    def loss(steps: Steps) -> Vector:
        # A backtest asks for the end of each run hundreds of times.
        asked = steps.tobytes()
        if asked not in known:
            known[asked] = found(summed(schedule, steps)) - _gained(falls(schedule, steps), shared)
        return known[asked].copy()

    seen = schedule.decay_seen(int(log.steps[-1]))
    return FittedLaw(loss, schedule, {**found.told(), **shared._asdict(), "decay_seen": seen}, found.warnings())


def _gained(of: Falls, shared: Shared) -> Vector:
    return shared.B * gained(of, shared.C, shared.b, shared.g)


def _shared(runs: Sequence[Run]) -> Shared:
    """Return what complete runs share; those that differ in nothing but the schedule have one power law."""

    def make() -> Shared:
        alike: dict[tuple[object, ...], list[Run]] = {}
        for run in runs:
            conditions = (run.size, run.log.tokens_per_step, float(f"{run.schedule.peak:.3g}"))
            alike.setdefault(conditions, []).append(run)
        tables = [table for table in map(_table, alike.values()) if table is not None]
        if not tables:
            raise RefusedError(f"no sibling has {FEWEST} logged steps after its warm-up")
        return best_shared(tables)

    _check_schedules(runs)
    return remembered(runs[0].log, runs[0].schedule, ("multi_power shared", _which(runs)), make)


def _which(runs: Sequence[Run]) -> tuple[tuple[Schedule, str], ...]:
    return tuple((run.schedule, run.log.name) for run in runs)


def _table(runs: Sequence[Run]) -> Matrix | None:
    """Return what runs of one model tell of the shared parameters; None if too little of them was logged."""
    ordered = sorted(runs, key=lambda run: (run.schedule.last_step, run.log.name))
    chosen = np.unique(np.linspace(0, len(ordered) - 1, min(MOST_ALIKE, len(ordered))).round().astype(np.int64))
    few = [ordered[k] for k in chosen]

    def make() -> Matrix | None:
        curves = [curve for run in few if (curve := _curve(run, SIBLINGS_SEEN, LEAST_POINTS)) is not None]
        return likelihoods(curves) if curves else None

    return remembered(few[0].log, few[0].schedule, ("multi_power table", _which(few)), make)


def _check_schedules(runs: Sequence[Run]) -> None:
    different: list[Vector] = []
    for run in runs:
        cooled = run.schedule.cooled(np.linspace(0, run.schedule.last_step, COMPARED).round().astype(np.int64))
        if all(np.abs(cooled - other).max() > APART for other in different):
            different.append(cooled)
        if len(different) == FEWEST_SCHEDULES:
            return
    raise RefusedError(
        f"the multi-power law needs runs under three different schedules for its five parameters, not {len(different)}"
    )


def _curve(run: Run, share: float, points: int) -> Curve | None:
    """Return what is fitted of a run, rates in units of its peak; None if too little was logged after warm-up."""
    try:
        late = window(run.log, run.schedule, share)
    except RefusedError:
        return None
    after = np.flatnonzero(late.steps >= run.schedule.warm_up)
    if len(after) < FEWEST:
        return None
    chosen = after[np.unique(np.linspace(0, len(after) - 1, min(points, len(after))).round().astype(np.int64))]
    steps = late.steps[chosen]
    return Curve(summed(run.schedule, steps), falls(run.schedule, steps), late.loss[chosen])


def _scaled(curve: Curve, scale: float) -> Curve:
    """Return a curve with its rates in another unit."""
    of, shift = curve.falls, np.log(scale)
    scaled = of._replace(weight=of.weight * scale, log_rate=of.log_rate + shift, log_sum=of.log_sum + shift)
    return Curve(curve.summed * scale, scaled, curve.loss)
