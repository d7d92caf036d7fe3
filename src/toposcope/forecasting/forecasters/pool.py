"""``pool``: the laws, weighed by how well each predicted this run's own later rows from its earlier ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from toposcope.forecasting.forecaster import LoggedRun, RefusedError, end_steps
from toposcope.forecasting.forecasters.baseline_laws import (
    Case,
    FittedLossCurve,
    Last,
    LawForecaster,
    ProgressPowerLaw,
    StepPowerLaw,
)
from toposcope.forecasting.forecasters.cooldown_laws import ANNEALING, COOLDOWN, S1_ANNEAL
from toposcope.logs import Run
from toposcope.logs.anomalies import row_noise
from toposcope.logs.caching import cached
from toposcope.logs.schedules.schedule import Schedule, usual_schedules
from toposcope.typing import Steps, Vector

ANNEALED = "annealed"
LAST = Last()
BASELINES: tuple[LawForecaster, ...] = (LAST, StepPowerLaw(), ProgressPowerLaw())
LAWS: tuple[LawForecaster, ...] = (S1_ANNEAL, ANNEALING, COOLDOWN)

# The pool: docs/forecasters.md; on runs of 110 families, each forecast without siblings (benchmarks/forecast.py)
PRIOR_WEIGHTS = {ANNEALED: 0.6, "power_law": 0.25, "s1": 0.1, "last": 0.05}
POWER = 4.0  # of 1 / error in a weight: about the independent forecasts among those of the own record
CUTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # shares of what was seen from which the run is forecast to now
LEVEL_SHARE, MIN_LEVEL_ROWS = 0.05, 3  # late share of the rows whose median these forecasts are compared with
MIN_HORIZON = 0.01  # of ln(step)
MIN_ERROR = 0.002  # in ln(loss): errors are not told apart below


@dataclass(frozen=True)
class OwnRecord:
    """What forecasts from earlier steps of a run said of the last one seen.

    Attributes
    ----------
    horizons : ndarray, shape (k,)
        ln(t / cut), of the last step seen and the one that was forecast from.
    errors : dict of ndarray, shape (k,)
        ln(predicted / seen) by member; NaN where it refused.
    """

    horizons: Vector
    errors: Mapping[str, Vector]

    def size(self, errors: Vector, horizon: float) -> float:
        """Return the root mean square of errors, those over horizons like the one ahead counting most; NaN of none.

        Errors over longer horizons than the one ahead count in proportion.
        """
        known = np.isfinite(errors)
        if not known.any():
            return np.nan
        ratio = max(horizon, MIN_HORIZON) / self.horizons[known]
        weight = np.minimum(ratio, 1 / ratio)
        return float(np.sqrt(np.average((errors[known] * np.minimum(ratio, 1)) ** 2, weights=weight)))


@dataclass(frozen=True)
class PoolFit:
    """The members of the pool, fitted to one run.

    Attributes
    ----------
    curves : dict of FittedLossCurve
        By member; those that refused are missing.
    finals : dict of float
        The final loss of each.
    weights : dict of float
        With sum 1.
    own : float
        Root mean square of the errors, in ln(loss), of the pool from earlier steps; NaN if there were none.
    plans : ndarray, shape (p,)
        Final losses under each of the usual schedules, where the rate is unknown; else empty.
    """

    curves: Mapping[str, FittedLossCurve]
    finals: Mapping[str, float]
    weights: Mapping[str, float]
    own: float
    plans: Vector

    @property
    def final(self) -> float:
        """The final loss."""
        return float(sum(self.weights[name] * loss for name, loss in self.finals.items()))

    @property
    def spread(self) -> float:
        """How far members and usual schedules are apart, in ln(loss)."""
        apart = [self.weights[name] * float(np.log(loss / self.final)) ** 2 for name, loss in self.finals.items()]
        return float(np.sqrt(sum(apart))) + (float(np.log(self.plans).std()) if len(self.plans) else 0.0)


def horizon_of(log: Run, schedule: Schedule) -> float:
    """Return ln((T - w) / (t - w)): of the last step planned and the last one seen, after w steps of warm-up.

    Within the warm-up, and shortly after it, a hundredth of the run counts as seen.
    """
    whole = max(schedule.last_step - schedule.warm_up, 1)
    return float(np.log(max(whole / max(int(log.steps[-1]) - schedule.warm_up, whole / 100), 1.0)))


def row_level(log: Run) -> float:
    """Return the median of the last rows: what earlier forecasts are compared with."""
    return float(np.median(log.loss[-max(MIN_LEVEL_ROWS, round(LEVEL_SHARE * len(log.loss))) :]))


def own_record(log: Run, schedule: Schedule) -> OwnRecord:
    """Return how the members forecast the last step seen from earlier ones, without siblings (rolling origin)."""
    return cached(log, schedule, "own record", lambda: _own_record(log, schedule))


def _own_record(log: Run, schedule: Schedule) -> OwnRecord:
    last, level = int(log.steps[-1]), row_level(log)
    horizons: list[float] = []
    errors: dict[str, list[float]] = {name: [] for name in PRIOR_WEIGHTS}
    cases = _earlier(log, schedule)
    _prepare(cases)
    for seen, short, _ in cases:
        found = {name: curve.final() for name, curve in _curves(seen, short, ()).items()}
        horizons.append(float(np.log(last / int(seen.steps[-1]))))
        for name, each in errors.items():
            each.append(float(np.log(found[name] / level)) if name in found else np.nan)
    return OwnRecord(np.array(horizons), {name: np.array(each) for name, each in errors.items()})


def _earlier(log: Run, schedule: Schedule) -> list[Case]:
    """Return what was seen of the run at each cut, with the schedule to the last step seen now."""

    def cut() -> list[Case]:
        last = int(log.steps[-1])
        if not schedule.rates[: last + 1].any():
            return []
        short = Schedule(schedule.rates[: last + 1])
        parts = [log.until(cut * last) for cut in CUTS]
        return [(seen, short, ()) for seen in parts if seen is not None and 0 < seen.steps[-1] < last]

    return cached(log, schedule, "earlier", cut)


def _prepare(cases: Sequence[Case]) -> None:
    for law in (*BASELINES, *LAWS):
        law.prepare(cases)


def _curves(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> dict[str, FittedLossCurve]:
    """Return the curves of the members that do not refuse."""
    fits = {law.name: partial(law.law, log, schedule, siblings) for law in BASELINES}
    fits[ANNEALED] = partial(_annealed, log, schedule, siblings)
    curves = {}
    for name, fit in fits.items():
        try:
            curve = fit()
            curve.final()
        except RefusedError:
            continue
        curves[name] = curve
    return curves


def _annealed(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
    """Return the median of the laws with a gain from a falling rate; of an unknown rate, over the usual schedules."""
    plans = usual_schedules(schedule.last_step) if schedule.origin == "unknown" else (schedule,)
    curves = [[law.law(log, plan, siblings) for law in LAWS] for plan in plans]

    def loss(steps: Steps) -> Vector:
        by_plan = [np.median([curve.loss(steps) for curve in of_plan], axis=0) for of_plan in curves]
        return np.asarray(np.median(by_plan, axis=0), dtype=np.float64)

    steps = end_steps(schedule)
    finals = {
        f"plan {i}": float(np.median([curve.loss(steps).mean() for curve in of_plan]))
        for i, of_plan in enumerate(curves)
    }
    return FittedLossCurve(loss, schedule, finals, curves[0][0].remarks)


def fit_pool(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> PoolFit:
    """Fit the members and weigh them.

    A weight is that of the prior, times the fourth power of 1 / error: the root mean square of the own record, with
    half of the noise of a row. To it is added what no record can show before: of members that know no gain from a
    falling rate the gain expected of the decay ahead, of the others the spread of that.

    Raises
    ------
    RefusedError
        If no law can be fitted.
    """
    return cached(log, schedule, ("pool", tuple(siblings)), lambda: _fit_pool(log, schedule, siblings))


def _fit_pool(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> PoolFit:
    curves = _curves(log, schedule, siblings)
    if not set(curves) - {LAST.name}:
        StepPowerLaw().law(log, schedule, siblings).final()  # which says why
        raise RefusedError("no law fits that ends at a positive loss; more of the run has to be seen")
    record, horizon = own_record(log, schedule), horizon_of(log, schedule)
    sizes = {name: record.size(record.errors[name], horizon) for name in curves}
    worst = max((size for size in sizes.values() if np.isfinite(size)), default=1.0)
    least, (gain, spread) = MIN_ERROR + scatter(log) / 2, _gain_ahead(log, schedule, siblings)
    raw = {}
    for name, size in sizes.items():
        error, unseen = size if np.isfinite(size) else worst, spread if name == ANNEALED else gain
        raw[name] = PRIOR_WEIGHTS[name] * np.linalg.norm([error, least, unseen]) ** -POWER
    weights = {name: float(value / sum(raw.values())) for name, value in raw.items()}
    pooled = np.full(len(record.horizons), np.nan)
    for i in range(len(pooled)):
        known = [name for name in weights if np.isfinite(record.errors[name][i])]
        if known:
            total = sum(weights[name] for name in known)
            pooled[i] = sum(weights[name] * record.errors[name][i] for name in known) / total
    finals = {name: curve.final() for name, curve in curves.items()}
    by_plan = np.array(list(curves[ANNEALED].diagnostics.values()) if ANNEALED in curves else [], dtype=np.float64)
    plans = np.maximum(by_plan, min(finals.values()) / 10) if len(by_plan) > 1 else np.empty(0)
    return PoolFit(curves, finals, weights, record.size(pooled, horizon), plans)


def _gain_ahead(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> tuple[float, float]:
    """Return what a decay of the rate still to come is expected to gain, in ln(loss), and how uncertain that is.

    Both are 0 where no law fits.
    """
    now, end = schedule.cooled(np.array([int(log.steps[-1]), schedule.last_step]))
    try:
        prior = S1_ANNEAL.prior(log, schedule, siblings)
    except RefusedError:
        return 0.0, 0.0
    share = max(float(end - now), 0.0) / row_level(log)
    return share * prior.centre, share * prior.spread


def scatter(log: Run) -> float:
    """Return the standard deviation of a row about its neighbours, in ln(loss), over the late half of the rows."""
    rows = np.log(log.loss)
    return row_noise(rows[len(rows) // 2 :] if len(rows) >= 2 * MIN_LEVEL_ROWS else rows)


class Pool(LawForecaster):
    """The weighted mean of ``last``, ``power_law``, ``s1`` and the median of the laws of a falling rate."""

    name = "pool"

    def prepare(self, cases: Sequence[Case]) -> None:
        """Fit the members, now and at the earlier cuts of each run."""
        _prepare([*cases, *(earlier for log, schedule, _ in cases for earlier in _earlier(log, schedule))])

    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit and weigh each."""
        fit = fit_pool(log, schedule, siblings)

        def loss(steps: Steps) -> Vector:
            return np.asarray(sum(fit.weights[name] * curve.loss(steps) for name, curve in fit.curves.items()))

        diagnostics = {**fit.finals, **{f"{name}_weight": weight for name, weight in fit.weights.items()}}
        heaviest = max(fit.weights, key=lambda name: fit.weights[name])
        return FittedLossCurve(loss, schedule, diagnostics, fit.curves[heaviest].remarks)


FORECASTERS = (Pool(),)
