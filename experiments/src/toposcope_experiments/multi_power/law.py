"""The multi-power law and its fit to runs of one model under several learning-rate schedules (Luo et al. 2025).

L(t) = L0 + A (S1 + S_W)^-a - B G(t), with
G(t) = sum over k <= t of (eta_{k-1} - eta_k) [1 - (1 + C eta_k^-g S_k(t))^-b].
S1 + S_W is the learning rate summed from the beginning of warm-up, S_k(t) its sum from step k to t. Each term of G is
the gain from one decay of the learning rate: it rises from 0 to the size of the decay.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import (
    HUBER,
    MIN_POINTS,
    NORMAL,
    Indices,
    LoggedRun,
    Matrix,
    RefusedError,
    Schedule,
    Steps,
    Vector,
    huber_weights,
    least_squares,
    window,
)

MAX_GROUP_DECAY = 1 / 128  # share of the peak rate; neighbouring decays that add up to more are not grouped
MAX_GROUP_PROGRESS = 1 / 64  # share of the run's summed rate; decays further apart are not grouped
MAX_GROUPS = 1024  # of a rate that goes up and down all the time; larger groups are then allowed
MIN_CHANGE = 1e-12  # share of the peak; the rate counts as constant where it changes by less
MIN_RATE = 1e-9  # share of the peak; smaller rates and sums count as this, so that their logarithms are finite
MAX_LOG = 700  # largest argument of an exponential

STARTS = tuple(product((0.01, 0.1, 1.0), (0.3, 0.6, 1.2), (0.2, 0.6), (0.5,)))
"""C, b, g and a, rates in units of the peak."""
LOWEST, HIGHEST = (1e-6, 0.02, 1e-3, 0.02), (1e4, 5.0, 2.0, 2.0)
SEARCHES = 3  # number of the best starts from which the search begins
ROUNDS = 3  # of reweighting
MIN_RESIDUAL_SCALE = 1e-3
"""Relative; larger residuals count less, as in the publication, or from a larger one if the runs are noisier."""
MAX_STEPS = 60  # of a search
MIN_SCHEDULE_DIFFERENCE = 0.05  # share of the peak; schedules that are nowhere further apart count as the same
MAX_POINTS, MIN_CURVE_POINTS = 4000, 20  # of all curves together, and of each curve


class DecayTerms(NamedTuple):
    """Pairs of a step t and a group of earlier learning-rate decays; rates in units of the peak."""

    row: Indices  # shape (p,); index of t
    weight: Vector  # shape (p,); sum of eta_{k-1} - eta_k over the group's steps k <= t; negative where the rate rises
    log_rate: Vector  # shape (p,); logarithm of eta_k
    log_sum: Vector  # shape (p,); logarithm of S_k(t), the sum of the rates from k to t
    n_steps: int  # number of steps t

    def gain(self, C: float, b: float, g: float) -> Vector:
        """Return G at each step, shape (n_steps,)."""
        return self._sum(self.weight * (1 - np.exp(-b * np.log1p(self._time(C, g)))))

    def gain_and_derivatives(self, C: float, b: float, g: float) -> tuple[Vector, Vector, Vector, Vector]:
        """Return G, and its derivatives by the logarithms of C, b and g; shape (n_steps,) each."""
        x = self._time(C, g)
        log = np.log1p(x)
        left = np.exp(-b * log)
        slope = self.weight * b * left * x / (1 + x)
        return (
            self._sum(self.weight * (1 - left)),
            self._sum(slope),
            self._sum(self.weight * b * log * left),
            self._sum(-g * self.log_rate * slope),
        )

    def _time(self, C: float, g: float) -> Vector:
        """Return C eta_k^-g S_k."""
        return np.asarray(np.exp(np.minimum(np.log(C) - g * self.log_rate + self.log_sum, MAX_LOG)))

    def _sum(self, terms: Vector) -> Vector:
        """Return the sum of the terms of each step."""
        return np.asarray(np.bincount(self.row, terms, minlength=self.n_steps).astype(np.float64))


def summed_rate(schedule: Schedule, steps: Steps) -> Vector:
    """Return S1 + S_W in units of the peak, positive; the rate rises linearly during warm-up."""
    warm_up, t = schedule.warm_up, steps.astype(np.float64)
    if not warm_up:
        return schedule.progress(steps)
    return np.where(t < warm_up, (t + 1) ** 2 / (2 * warm_up), schedule.progress(steps) - (warm_up + 1) / 2)


class _DecayGroups(NamedTuple):
    """The steps at which a schedule's rate changes, in groups; sums over the changes before each."""

    steps: Steps
    begins: Indices
    ends: Indices
    size: Vector
    amount: Vector
    centre: Vector
    rate: Vector


_groups_of_schedule: WeakKeyDictionary[Schedule, _DecayGroups] = WeakKeyDictionary()


def lr_decay_terms(schedule: Schedule, steps: Steps) -> DecayTerms:
    """Return the decays before each step, few enough to sum over.

    Neighbouring decays are grouped at their centre, up to 1/128 of the peak and 1/64 of the summed rate; a larger decay
    within one step stays alone. The error of a group is below its size, and of second order in its width.
    """
    if schedule not in _groups_of_schedule:
        _groups_of_schedule[schedule] = _group_decays(schedule)
    groups = _groups_of_schedule[schedule]
    last = np.minimum(groups.ends, np.searchsorted(groups.steps, steps, side="right")[:, None])
    row, group = np.nonzero(last > groups.begins)
    i, j = groups.begins[group], last[row, group]
    amount = groups.amount[j] - groups.amount[i]
    sums = schedule.progress(steps)[row] - (groups.centre[j] - groups.centre[i]) / amount
    rate = (groups.rate[j] - groups.rate[i]) / amount
    weight = groups.size[j] - groups.size[i]
    return DecayTerms(row, weight, np.log(np.maximum(rate, MIN_RATE)), np.log(np.maximum(sums, MIN_RATE)), len(steps))


def _group_decays(schedule: Schedule) -> _DecayGroups:
    rates = schedule.rates / schedule.peak
    steps = np.flatnonzero(np.abs(np.diff(rates)) > MIN_CHANGE) + 1
    decays = rates[steps - 1] - rates[steps]
    before = schedule.progress(steps - 1)
    begins, ends = _group_bounds(decays, before / schedule.progress(np.array([schedule.last_step])))
    sums = (np.cumsum(np.abs(decays) * factor) for factor in (np.sign(decays), 1.0, before, rates[steps]))
    return _DecayGroups(steps, begins, ends, *(np.concatenate([[0.0], values]) for values in sums))


def _group_bounds(decays: Vector, progress_share: Vector) -> tuple[Indices, Indices]:
    """Return where groups begin and end; all decays of a group have one sign, unless it changes very often."""
    if not len(decays):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    size = np.abs(decays)
    limit = max(MAX_GROUP_DECAY, float(size.sum()) / MAX_GROUPS)
    large = size > limit
    level = np.floor(np.cumsum(np.where(large, 0, size)) / limit)
    new = (np.diff(level) != 0) | (np.diff(np.floor(progress_share / MAX_GROUP_PROGRESS)) != 0) | large[1:] | large[:-1]
    sign_changes = np.diff(np.sign(decays)) != 0
    if sign_changes.sum() <= MAX_GROUPS:
        new |= sign_changes
    begins = np.concatenate([[0], np.flatnonzero(new) + 1])
    return begins, np.append(begins[1:], len(decays))


@dataclass(frozen=True)
class MultiPowerLaw:
    """A fitted law; learning rates in their own unit, losses in the logs'."""

    L0: float  # none of the coefficients is negative
    A: float
    a: float
    B: float
    C: float
    b: float
    g: float
    scale: float  # of the relative residuals: their median absolute value times 1.4826

    def loss(self, schedule: Schedule, steps: Steps) -> Vector:
        """Return the loss at some steps of a schedule, shape of `steps`; the rate rises linearly during warm-up."""
        peak = schedule.peak
        gain = peak * lr_decay_terms(schedule, steps).gain(self.C * peak ** (1 - self.g), self.b, self.g)
        loss: Vector = self.L0 + self.A * (peak * summed_rate(schedule, steps)) ** -self.a - self.B * gain
        return loss


class Curve(NamedTuple):
    """The points of a run, or of several, that the law is fitted to; rates in the unit of the fit."""

    summed_rate: Vector  # shape (n,); S1 + S_W
    terms: DecayTerms
    loss: Vector  # shape (n,)

    def scaled(self, factor: float) -> "Curve":
        """Return the curve with its rates in another unit."""
        terms, shift = self.terms, np.log(factor)
        scaled = terms._replace(
            weight=terms.weight * factor, log_rate=terms.log_rate + shift, log_sum=terms.log_sum + shift
        )
        return Curve(self.summed_rate * factor, scaled, self.loss)


def curve_of(run: LoggedRun, share: float, n_points: int) -> Curve | None:
    """Return the late share of a run, rates in units of its peak; None with fewer than 5 steps after warm-up."""
    try:
        late = window(run.log, run.schedule, share)
    except RefusedError:
        return None
    after = np.flatnonzero(late.steps >= run.schedule.warm_up)
    if len(after) < MIN_POINTS:
        return None
    chosen = after[np.unique(np.linspace(0, len(after) - 1, min(n_points, len(after))).round().astype(np.int64))]
    steps = late.steps[chosen]
    return Curve(summed_rate(run.schedule, steps), lr_decay_terms(run.schedule, steps), late.loss[chosen])


def joined(curves: Sequence[Curve]) -> Curve:
    """Return curves one after the other."""
    offsets = np.cumsum([0, *(len(curve.loss) for curve in curves[:-1])])
    row = np.concatenate([curve.terms.row + offset for curve, offset in zip(curves, offsets, strict=True)])
    weight, log_rate, log_sum = (
        np.concatenate([getattr(curve.terms, name) for curve in curves]) for name in ("weight", "log_rate", "log_sum")
    )
    loss = np.concatenate([curve.loss for curve in curves])
    return Curve(
        np.concatenate([curve.summed_rate for curve in curves]),
        DecayTerms(row, weight, log_rate, log_sum, len(loss)),
        loss,
    )


def check_schedules(runs: Sequence[LoggedRun]) -> None:
    """Refuse runs that follow fewer than three different schedules."""
    different: list[Vector] = []
    for run in runs:
        cooled = run.schedule.cooled(np.linspace(0, run.schedule.last_step, 65).round().astype(np.int64))
        if all(np.abs(cooled - other).max() > MIN_SCHEDULE_DIFFERENCE for other in different):
            different.append(cooled)
        if len(different) == 3:
            return
    raise RefusedError(
        f"the multi-power law needs runs under three different schedules for its five parameters, not {len(different)}"
    )


def fit_multi_power(runs: Sequence[LoggedRun]) -> MultiPowerLaw:
    """Fit the law to runs of one model under several schedules, after their warm-up."""
    check_schedules(runs)
    unit = runs[0].schedule.peak
    n_points = max(MIN_CURVE_POINTS, MAX_POINTS // len(runs))
    curves = [(curve_of(run, 1.0, n_points), run.schedule.peak / unit) for run in runs]
    scaled = [curve.scaled(factor) for curve, factor in curves if curve]
    if not scaled:
        raise RefusedError(f"no run has {MIN_POINTS} logged steps after its warm-up")
    L0, A, a, B, C, b, g, scale = astuple(_fit_curves(scaled))
    return MultiPowerLaw(L0, A * unit**a, a, B / unit, C * unit ** (g - 1), b, g, scale)


def _fit_curves(curves: Sequence[Curve]) -> MultiPowerLaw:
    """Fit the law from the best of several starts, rates in the unit of the curves."""
    problem = LeastSquaresProblem(curves)
    starts = [np.log(start) for start in STARTS]
    starts.sort(key=lambda q: float((problem.solve(q)[1] ** 2).sum()))
    best = min((problem.search(q) for q in starts[:SEARCHES]), key=lambda result: result[1])[0]
    for _ in range(ROUNDS):
        scale = problem.reweigh(best)
        best = problem.search(best)[0]
    L0, A, B = (float(value) for value in problem.solve(best)[0])
    C, b, g, a = (float(value) for value in np.exp(best))
    return MultiPowerLaw(L0, A * problem.unit**a, a, B, C, b, g, scale)


class LeastSquaresProblem:
    """The fit of several curves by variable projection: C, b, g and a are searched, L0, A and B solved for.

    For given C, b, g and a the law is linear in L0, A and B, which are not negative (Golub & Pereyra 2003, with the
    derivative of Kaufman 1975). Residuals are relative, and reweighted by Huber's function.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        summed, self.terms, self.loss = joined(curves)
        # In units of the longest run: A is then the loss still to be lost there.
        self.unit = float(summed.max())
        self.log_summed = np.log(summed / self.unit)
        self.weight = np.ones(len(self.loss))

    def solve(self, q: Vector) -> tuple[Vector, Vector, Matrix]:
        """Solve for L0, A and B."""
        from scipy.optimize import nnls

        C, b, g, a = np.exp(q)
        gain, *gain_derivatives = self.terms.gain_and_derivatives(C, b, g)
        power = np.exp(-a * self.log_summed)
        scaling = self.weight / self.loss
        columns = np.stack([np.ones_like(power), power, -gain], axis=1) * scaling[:, None]
        solution = nnls(columns, self.weight, maxiter=1000)[0]
        by_a = -solution[1] * a * self.log_summed * power
        slopes = np.stack([*(-solution[2] * by for by in gain_derivatives), by_a], axis=1) * scaling[:, None]
        basis = np.linalg.qr(columns[:, solution > 0])[0]
        return solution, columns @ solution - self.weight, slopes - basis @ (basis.T @ slopes)

    def search(self, q: Vector) -> tuple[Vector, float]:
        """Search C, b, g and a from a start; return their logarithms and the sum of squares."""

        def linearised(rows: Matrix, _: Indices) -> tuple[Matrix, NDArray[np.float64]]:
            solved = [self.solve(row) for row in rows]
            return np.array([residuals for _, residuals, _ in solved]), np.array([slopes for *_, slopes in solved])

        bounds = np.log(LOWEST), np.log(HIGHEST)
        found, squares = least_squares(linearised, q[None], bounds=bounds, tolerance=0, relative=1e-8, steps=MAX_STEPS)
        return found[0], float(squares[0])

    def reweigh(self, q: Vector) -> float:
        """Reweigh the points by Huber's function of their residuals; return the scale of these."""
        residuals = self.solve(q)[1] / self.weight
        scale = NORMAL * float(np.median(np.abs(residuals)))
        self.weight = np.sqrt(huber_weights(np.abs(residuals), max(MIN_RESIDUAL_SCALE, HUBER * scale), 1e-15))
        return scale
