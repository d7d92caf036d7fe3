"""``stack`` and ``stack_norms``: what siblings of other sizes teach about the errors of the laws, by a robust ridge."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import Forecast, LoggedRun, RefusedError, curve_steps, fraction_seen
from toposcope.forecasting.forecasters.baseline_laws import Last, LawForecaster, ProgressPowerLaw, StepPowerLaw
from toposcope.forecasting.forecasters.cooldown_laws import ANNEALING, COOLDOWN, S1_ANNEAL
from toposcope.forecasting.forecasters.power_law_fit import row_medians, window
from toposcope.forecasting.forecasters.sibling_template import template_final
from toposcope.forecasting.held_out import group_folds, runs_held_out
from toposcope.forecasting.siblings import usable_siblings
from toposcope.least_squares import HUBER, NORMAL, huber_weights
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule
from toposcope.typing import Matrix, Vector

# The stack: docs/forecasters.md; all on published runs with sizes held out
MAX_DEVIATIONS = 3.0  # standard deviations; features further out are clipped
LEVERAGE_FACTOR = 5.0  # sqrt(1 + 5 leverage) widens intervals; chance alone would ask for 1
MIN_STRENGTH = 3.0  # of the ridge in the leverage
MAX_COUNTED_ERROR = 0.05  # in choosing the strength, an error that is larger counts as this
STACK_SLOPE_SHARE = 0.5  # late share of what was seen over which slopes of features are taken

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, np.inf)
"""Candidates, weakest first; with an infinite one the fit is a constant."""
ROUNDS = 4
MAX_FOLDS = 10
BASE = COOLDOWN
STACKED_LAWS: tuple[LawForecaster, ...] = (Last(), StepPowerLaw(), ProgressPowerLaw(), S1_ANNEAL, ANNEALING)
MIN_RUNS, MIN_SIZES = 8, 2
NORMS = ("weight_norm", "grad_norm")


@dataclass(frozen=True)
class RidgeFit:
    """A fitted ridge."""

    centre: Vector  # shape (p,), as the next two; of the features
    scale: Vector
    slopes: Vector  # of the standardised features
    offset: float
    low: float  # smallest and largest target it was fitted to; predictions are clipped to them
    high: float
    strength: float
    held_out: Vector  # shape (n,); prediction for each row, from the folds that it is not in
    spread: Matrix  # shape (p, p); inverse of the standardised features' products, with the weakest ridge

    def __call__(self, features: Matrix) -> Vector:
        """Return the predictions for rows of features, shape (m,)."""
        return np.clip(self.offset + self._z(features) @ self.slopes, self.low, self.high)

    def reach(self, features: Matrix) -> Vector:
        """Return how much larger an error is to be expected for rows far from those fitted, shape (m,), at least 1.

        sqrt(1 + 5 leverage): a row like many of those fitted has leverage near 0, one unlike all of them near 1. The
        standard error of a prediction has 1 in place of 5; sizes that are held out differ by more than chance.
        """
        z = self._z(features)
        return np.asarray(np.sqrt(1 + LEVERAGE_FACTOR * np.einsum("mi,ij,mj->m", z, self.spread, z)))

    def _z(self, features: Matrix) -> Matrix:
        return np.clip((features - self.centre) / self.scale, -MAX_DEVIATIONS, MAX_DEVIATIONS)


def fit_ridge(features: Matrix, target: Vector, groups: Sequence[Hashable]) -> RidgeFit:
    """Fit a robust ridge whose strength errs least on groups that are held out.

    Parameters
    ----------
    features : ndarray, shape (n, p)
    target : ndarray, shape (n,)
    groups : sequence, length n
        Rows of a group are held out together; at least two groups. More than 10 are gathered into 10 folds.
    """
    names = sorted(set(groups), key=str)
    fold_of = {name: i % MAX_FOLDS for i, name in enumerate(names)}
    held_out = _held_out(features, target, np.array([fold_of[group] for group in groups]))
    losses = np.minimum(np.abs(held_out - target), MAX_COUNTED_ERROR).mean(axis=1)
    best = int(losses.argmin())
    whole = _fit(_standard(features), target, STRENGTHS[best])
    z = (features - whole[0]) / whole[1]
    spread = np.asarray(np.linalg.inv(z.T @ z + MIN_STRENGTH * np.eye(z.shape[1])), dtype=np.float64)
    return RidgeFit(*whole, STRENGTHS[best], held_out[best], spread)


class _Standard(NamedTuple):
    """Standardised features, and how they were."""

    centre: Vector
    scale: Vector
    z: Matrix


def _held_out(features: Matrix, target: Vector, folds: NDArray[np.int64]) -> Matrix:
    """Return the prediction for each row from the folds it is not in, by strength, shape (n_strengths, n)."""
    answers = np.empty((len(STRENGTHS), len(target)))
    for fold in group_folds(folds.tolist()):
        standard = _standard(features[fold.trained])
        for i, strength in enumerate(STRENGTHS):
            fit = RidgeFit(*_fit(standard, target[fold.trained], strength), strength, np.empty(0), np.empty((0, 0)))
            answers[i, fold.predicted] = fit(features[fold.predicted])
    return answers


def _standard(features: Matrix) -> _Standard:
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, np.inf)
    return _Standard(centre, scale, (features - centre) / scale)


def _fit(standard: _Standard, target: Vector, strength: float) -> tuple[Vector, Vector, Vector, float, float, float]:
    centre, scale, z = standard
    middle = float(row_medians(target[None])[0])
    slopes, offset = np.zeros(z.shape[1]), middle
    weight = np.ones(len(target))
    penalty = strength * np.eye(z.shape[1]) if np.isfinite(strength) else None
    for _ in range(ROUNDS):
        total = weight.sum()
        mean = weight @ z / total
        level = float(weight @ target) / total
        if penalty is not None:
            left = z - mean
            weighted = (left * weight[:, None]).T
            slopes = np.linalg.solve(weighted @ left + penalty, weighted @ (target - level))
        offset = level - float(mean @ slopes)
        size = np.abs(target - offset - z @ slopes)
        spread = NORMAL * float(row_medians(size[None])[0]) + 1e-9
        weight = huber_weights(size, HUBER * spread, 1e-12)
    return centre, scale, slopes, offset, float(target.min()), float(target.max())


ExtraFeatures = Mapping[str, Sequence[float]]  # name of a run -> further features of it at the fraction


class Stack:
    """A ridge over siblings of the family."""

    name = "stack"

    def __init__(self, extra: ExtraFeatures | None = None) -> None:
        self._extra = extra
        self._fitted = lru_cache(maxsize=256)(self._fit)

    def fit(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> Forecast:
        """Forecast."""
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
        for case in runs_held_out(relatives, fraction, assumed):
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
        self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool
    ) -> Vector:
        known = stack_features(log, schedule, siblings, base, sized)
        if self._extra is None:
            return known
        if log.name not in self._extra:
            raise RefusedError(f"{log.name}: its further features are missing")
        return np.array([*known, *self._extra[log.name]])


def stack_features(log: Run, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool) -> Vector:
    """Return the features of a run: log(law / base) of `STACKED_LAWS` and ``template``, slope, level, size and plan.

    Parameters
    ----------
    log : Run
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
    late = window(log, schedule, STACK_SLOPE_SHARE)
    slope = slope_of(np.log(schedule.progress(late.steps)), np.log(late.loss))
    level = np.log(late.loss[-max(1, len(late.loss) // 10) :].mean())
    # a feature that is unknown of the run to forecast is the same for all, and has no effect
    size = np.log(log.parameters) if sized else 0.0
    return np.array([*others, slope, level, size, np.log(schedule.last_step), np.log(schedule.peak)])


def slope_of(x: Vector, y: Vector) -> float:
    """Return the slope of y over x by least squares; 0 where x is constant, as progress is at a rate of 0."""
    left = x - x.mean()
    size = float(left @ left)
    return float(left @ y) / size if size > 1e-10 * len(x) else 0.0


class StackNorms(Stack):
    """The stack with level and slope of log ||W|| and log ||g|| over the late half of what was seen."""

    name = "stack_norms"

    def _features(
        self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun], base: float, sized: bool
    ) -> Vector:
        norms = [value for name in NORMS for value in _level_and_slope(log, schedule, name)]
        return np.array([*super()._features(log, schedule, siblings, base, sized), *norms])


def _level_and_slope(log: Run, schedule: Schedule, name: str) -> tuple[float, float]:
    """Return the median of the logarithm of a norm, and its slope in log S1."""
    values = log.norms.get(name, np.full(len(log.steps), np.nan))
    late = (log.steps >= max(1, (1 - STACK_SLOPE_SHARE) * log.steps[-1])) & np.isfinite(values)
    late[late] = values[late] > 0
    if late.sum() < 3:
        raise RefusedError(f"the log has no {name.replace('_', ' ')}")
    y, x = np.log(values[late]), np.log(schedule.progress(log.steps[late]))
    return float(np.median(y)), slope_of(x, y)


FORECASTERS = (Stack(), StackNorms())
