"""``multi_power``: the multi-power law; its decay terms are the siblings', its power law is the run's own.

B, C, b and g are fitted to the siblings together, with L0, A and a of each size its own: each size is tried once on a
grid of C, b, g and B, and for every cell and exponent a, L0 and A are solved for. Sizes are combined by adding their
profile likelihoods, n / 2 log of the sum of squares. So a size weighs by how well it is fitted, one without information
adds nothing, and leaving one out costs a subtraction.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import (
    HUBER,
    LATE_SHARE,
    MIN_POINTS,
    NORMAL,
    SIBLING_SHARE,
    FittedLossCurve,
    LawForecaster,
    LoggedRun,
    Matrix,
    RefusedError,
    Run,
    Schedule,
    Steps,
    Vector,
    cached,
    fit_power_law,
    huber_weights,
    usable_siblings,
    window,
)
from toposcope_experiments.multi_power.law import (
    MIN_CURVE_POINTS,
    MIN_RESIDUAL_SCALE,
    Curve,
    DecayTerms,
    check_schedules,
    curve_of,
    joined,
    lr_decay_terms,
    summed_rate,
)

CELLS = tuple(product(np.geomspace(1e-4, 1, 9), (0.2, 0.4, 0.7, 1.2, 2.0), (0.2, 0.5, 0.8, 1.2)))
"""C, b and g, rates in units of the peak."""
GAIN_SIZES = np.geomspace(0.01, 2, 48)  # B, in the unit of the loss: the gain from a decay of the whole peak
EXPONENTS = np.geomspace(0.08, 1.4, 14)
MAX_RUNS_OF_A_MODEL = 6  # runs of one model that the shared parameters are fitted to
MIN_LOG_LIKELIHOOD_RATIO = 2.0  # by which the siblings' best gain must beat the smallest one; by looking at runs


class SharedDecay(NamedTuple):
    """The parameters of the decay terms; rates in units of each run's own peak, so that runs of any peak share them."""

    B: float
    C: float
    b: float
    g: float

    def gain(self, terms: DecayTerms) -> Vector:
        """Return B G, in the unit of the loss."""
        return self.B * terms.gain(self.C, self.b, self.g)


class MultiPower(LawForecaster):
    """The multi-power law; the siblings must follow three different schedules."""

    name = "multi_power"

    def law(self, log: Run, schedule: Schedule, siblings: Sequence[LoggedRun]) -> FittedLossCurve:
        """Fit L0, A and a; B, C, b and g are the siblings'."""
        shared = _fit_shared(usable_siblings(log, siblings))
        return cached(log, schedule, (self.name, shared), lambda: _fit_own(log, schedule, shared))


def _fit_own(log: Run, schedule: Schedule, shared: SharedDecay) -> FittedLossCurve:
    """Fit the power law to the losses seen, plus what the decays gained by then."""
    late = window(log, schedule, LATE_SHARE)
    terms = cached(log, schedule, "decay terms", lambda: lr_decay_terms(schedule, late.steps))
    fit = fit_power_law(summed_rate(schedule, late.steps), late.loss + shared.gain(terms), late.weight)
    losses: dict[bytes, Vector] = {}

    def loss(steps: Steps) -> Vector:
        # A backtest asks for the end of each run hundreds of times.
        key = steps.tobytes()
        if key not in losses:
            losses[key] = fit(summed_rate(schedule, steps)) - shared.gain(lr_decay_terms(schedule, steps))
        return losses[key].copy()

    seen = schedule.decay_seen(int(log.steps[-1]))
    return FittedLossCurve(
        loss, schedule, {**fit.diagnostics(), **shared._asdict(), "decay_seen": seen}, fit.warnings()
    )


def _fit_shared(runs: Sequence[LoggedRun]) -> SharedDecay:
    """Fit what complete runs share; runs that differ in nothing but the schedule have one power law."""

    def fit() -> SharedDecay:
        models: dict[tuple[object, ...], list[LoggedRun]] = {}
        for run in runs:
            conditions = (run.size, run.log.tokens_per_step, float(f"{run.schedule.peak:.3g}"))
            models.setdefault(conditions, []).append(run)
        tables = [table for table in map(_likelihoods_of_model, map(tuple, models.values())) if table is not None]
        if not tables:
            raise RefusedError(f"no sibling has {MIN_POINTS} logged steps after its warm-up")
        return best_shared(tables)

    check_schedules(runs)
    return cached(runs[0].log, runs[0].schedule, ("multi_power shared", _key(runs)), fit)


def _key(runs: Sequence[LoggedRun]) -> tuple[tuple[Schedule, str], ...]:
    return tuple((run.schedule, run.log.name) for run in runs)


@lru_cache(maxsize=512)
def _likelihoods_of_model(runs: tuple[LoggedRun, ...]) -> Matrix | None:
    """Return `likelihoods` of runs of one model; None if too little of them was logged."""
    ordered = sorted(runs, key=lambda run: (run.schedule.last_step, run.log.name))
    count = min(MAX_RUNS_OF_A_MODEL, len(ordered))
    chosen = [ordered[k] for k in np.unique(np.linspace(0, len(ordered) - 1, count).round().astype(np.int64))]

    def compute() -> Matrix | None:
        curves = [curve for run in chosen if (curve := curve_of(run, SIBLING_SHARE, MIN_CURVE_POINTS)) is not None]
        return likelihoods(curves) if curves else None

    return cached(chosen[0].log, chosen[0].schedule, ("multi_power likelihoods", _key(chosen)), compute)


def likelihoods(curves: Sequence[Curve]) -> Matrix:
    """Return minus the profile log likelihood of runs of one size, on the grid of cells and B."""
    curve = joined(curves)
    gain = np.stack([curve.terms.gain(C, b, g) for C, b, g in CELLS])
    bases = np.exp(-EXPONENTS[:, None] * np.log(curve.summed_rate / curve.summed_rate.max()))
    weight = np.ones(len(curve.loss))
    squares = _sums_of_squares(bases, gain, curve.loss, weight)
    # Once more, with less weight for the points far off the best of them.
    a, cell, size = np.unravel_index(int(squares.argmin()), squares.shape)
    level = (curve.loss + GAIN_SIZES[size] * gain[cell]) / curve.loss
    columns = np.stack([np.ones_like(bases[a]), bases[a]], axis=1) / curve.loss[:, None]
    residuals = np.abs(level - columns @ np.linalg.lstsq(columns, level, rcond=None)[0])
    limit = max(MIN_RESIDUAL_SCALE, HUBER * NORMAL * float(np.median(residuals)))
    weight = np.sqrt(huber_weights(residuals, limit, 1e-15))
    squares = _sums_of_squares(bases, gain, curve.loss, weight).min(axis=0)
    floor = len(curve.loss) * (MIN_RESIDUAL_SCALE / 10) ** 2
    return np.asarray(0.5 * len(curve.loss) * np.log(squares + floor))


def best_shared(tables: Sequence[Matrix]) -> SharedDecay:
    """Return the cell and B that suit all sizes together; B between grid points by a parabola."""
    total = np.sum(tables, axis=0)
    cell, size = np.unravel_index(int(total.argmin()), total.shape)
    if total[:, 0].min() - total[cell, size] < MIN_LOG_LIKELIHOOD_RATIO:
        raise RefusedError("the siblings' losses do not show what a decay of the learning rate gains")
    log_B = float(np.log(GAIN_SIZES[size]))
    if size < len(GAIN_SIZES) - 1:
        before, here, after = total[cell, size - 1 : size + 2]
        # The curvature is 0 where the neighbours are equal to the minimum.
        curvature = max(float(before - 2 * here + after), 1e-12)
        step = float(np.log(GAIN_SIZES[1] / GAIN_SIZES[0]))
        log_B += 0.5 * float(np.clip((before - after) / curvature, -1, 1)) * step
    # Rounded to 1%, so that equal fits are not done again.
    return SharedDecay(float(np.exp(round(log_B, 2))), *(float(value) for value in CELLS[cell]))


def _sums_of_squares(bases: Matrix, gain: Matrix, loss: Vector, weight: Vector) -> NDArray[np.float64]:
    """Return the sums of squares left by the best L0 and A, shape (n_exponents, n_cells, n_gain_sizes)."""
    scaling = weight / loss
    scaled_gain = gain * scaling
    squares = np.empty((len(bases), len(gain), len(GAIN_SIZES)))
    for k, power in enumerate(bases):
        basis = np.linalg.qr(np.stack([scaling, power * scaling], axis=1))[0]
        loss_left = weight - basis @ (basis.T @ weight)
        gain_left = scaled_gain - (scaled_gain @ basis) @ basis.T
        crossed, squared = gain_left @ loss_left, np.einsum("ij,ij->i", gain_left, gain_left)
        squares[k] = loss_left @ loss_left + 2 * crossed[:, None] * GAIN_SIZES + squared[:, None] * GAIN_SIZES**2
    return np.maximum(squares, 0)


FORECASTERS = (MultiPower(),)
