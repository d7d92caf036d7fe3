"""The shape that logged learning rates follow."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.least_squares import complex_step, least_squares
from toposcope.logs.schedules.logged import LoggedRates, rounding
from toposcope.typing import Indices, Matrix, Vector

# on the schedules of 349 published runs
MAX_SHAPE_MISFIT = 0.01  # share of the decay seen by which a shape may be off at any step
MAX_END_ERROR_SHARE = 0.1  # of the squared error of shapes to the last step, for a cosine with another end
END_ERROR = 0.05  # an end is known if moving it by this share of itself shows
POWERS = {"(1 - x)^0.5": 0.5, "(1 - x)^1.5": 1.5, "(1 - x)^2": 2.0, "(1 - x)^3": 3.0}  # powers of polynomial decays
SHAPES = ("cosine", "linear", "sqrt")
WARMED_UP = 0.999  # share of the peak at which warm-up is over
CONSTANT = 1e-4  # share of the peak; a rate that decayed by less is constant so far
LEAST = 1e-100  # share of the peak; powers of smaller rates overflow
EXACT = 1e-6  # share of the peak; a shape that is off by no more needs no alternative
MIN_DECAYING_RATES = 4  # logged, for a shape to be recognised
MAX_FITTED_RATES = 200  # evenly chosen from those logged
MIN_LENGTH, MAX_LENGTH = 0.3, 20  # of a schedule whose end has to be estimated, in units of the steps seen


Plan = Callable[[NDArray[np.number[Any]]], Vector]


class Recognised(NamedTuple):
    """A shape that the logged learning rate follows."""

    kind: str  # ``cosine``, ``linear``, ``inverse_sqrt``; after a stable phase ``wsd``
    rates: Plan  # the rate at any steps from the peak on
    last_step: float  # where it ends; NaN if it has no end
    words: str  # a sentence for people


def falling(shape: str, share: Vector) -> Vector:
    """Return a shape that falls from 1 to 0 as a share of it goes from 0 to 1; those of `POWERS` by a power."""
    if shape in POWERS:
        return np.asarray((1 - share) ** POWERS[shape])
    if shape == "cosine":
        return 0.5 * (1 + np.cos(np.pi * share))
    return 1 - (np.sqrt(share) if shape == "sqrt" else share)


class _ScheduleFit(NamedTuple):
    shape: str
    error: float
    worst: float
    onset: float
    last_step: float
    peak: float
    final: float

    def rates(self, steps: NDArray[np.number[Any]]) -> Vector:
        if self.shape == "inverse_sqrt":
            return np.asarray(1 / np.sqrt(self.peak + self.final * steps))
        share = np.clip((steps - self.onset) / (self.last_step - self.onset), 0, 1)
        if self.shape == "exponential":
            return np.asarray(np.exp(self.peak + (self.final - self.peak) * share))
        return np.maximum(self.final + (self.peak - self.final) * falling(self.shape, share), 0)


def warm_up_end(steps: Vector, rates: Vector) -> float:
    """Return the step at which a logged learning rate reaches its peak, if it rises along a line from 0."""
    first = _peak(rates)
    before = first - 1
    if first == 0 or not rates[before] > CONSTANT * rates.max():
        return float(steps[first])
    return float(np.clip(steps[before] * (rates.max() / rates[before]), steps[before], steps[first]))


def _peak(rates: Vector) -> int:
    """Return the place of the first rate that is warmed up and followed by no higher one."""
    largest = rates.max()
    place = int(np.argmax(rates >= WARMED_UP * largest))
    while place + 1 < len(rates) and rates[place + 1] - rates[place] > CONSTANT * largest:
        place += 1
    return place


def recognise(steps: Vector, rates: Vector, last_step: float | None) -> Recognised | None:
    """Return the shape that fits a logged learning rate, the best if several do; None if none does.

    Where the last step is not known, it is that of the shape: the end of a cosine by its curvature, that of a line
    where it meets 0.
    """
    begin = _peak(rates)
    warm_up = warm_up_end(steps, rates)
    before = float(steps[max(begin - 1, 0)])
    steps, rates = steps[begin:], rates[begin:]
    fall = float(rates.max() - rates[-1])
    flat = int(np.flatnonzero(rates >= rates.max() * (1 - CONSTANT))[-1])
    if (np.diff(rates) > CONSTANT * rates.max()).any():
        return None
    between = (rates < rates.max() * (1 - CONSTANT)) & (rates > rates[-1] + CONSTANT * rates.max())
    if between.sum() < MIN_DECAYING_RATES - 1:  # a jump, or too little of a fall
        return None
    chosen = np.unique(np.linspace(0, len(rates) - 1, min(MAX_FITTED_RATES, len(rates))).round().astype(np.int64))
    # A stable phase is one number: the decay shows the shape.
    chosen = np.unique(np.concatenate([chosen, np.linspace(flat, len(rates) - 1, MAX_FITTED_RATES).astype(np.int64)]))
    s, r = steps[chosen], rates[chosen]
    # Warm-up ends between two logged steps; where is unknown if the log begins at the peak or after it.
    earliest = 0.0 if begin == 0 else before
    # A schedule that is multiplied by its warm-up falls from the first step.
    onsets = np.unique(np.concatenate([[0.0, warm_up], np.linspace(earliest, steps[flat + 1], 49)]))
    fits = [*_shapes(s, r, onsets, last_step), *_curves(s, r, steps[flat], last_step)]
    # Rounded rates do not determine an end.
    allowed = max(MAX_SHAPE_MISFIT * fall, rounding(rates) if last_step is not None else 0.0)
    fits = [fit for fit in fits if fit.worst <= allowed]
    return _described(min(fits, key=lambda fit: fit.error), warm_up, steps, fall / rates.max()) if fits else None


def _described(fit: _ScheduleFit, warm_up: float, steps: Vector, fallen: float) -> Recognised:
    gap = float(np.median(np.diff(steps)))
    stable = fit.onset > warm_up + max(2 * gap, 0.02 * (steps[-1] - warm_up))
    names = {"cosine": "a cosine", "linear": "a line", "sqrt": "1 - sqrt", "exponential": "an exponential"}
    name = names.get(fit.shape, fit.shape)
    if fit.shape == "inverse_sqrt":
        return Recognised(fit.shape, fit.rates, np.nan, "learning rate follows an inverse square root")
    end = f"to step {round(fit.last_step):,}"
    seen = f" ({fallen:.1%} of the peak fallen so far)" if fallen < 0.05 else ""
    before = f"is constant to step {round(fit.onset):,}, then " if stable else ""
    words = f"learning rate {before}follows {name} {end}{seen}"
    return Recognised("wsd" if stable else fit.shape, fit.rates, fit.last_step, words)


def _shapes(s: Vector, r: Vector, onsets: Vector, last_step: float | None) -> list[_ScheduleFit]:
    """Fit the shapes that have an end, at a given step or at their own."""
    if last_step is not None:
        found = [_with_onset(shape, s, r, onsets, last_step) for shape in SHAPES]
        if min(fit.worst for fit in found) <= EXACT * r.max():
            return found
        found += [_with_onset(shape, s, r, onsets, last_step) for shape in POWERS]
        if min(fit.worst for fit in found) <= EXACT * r.max():
            return found
        # A free end always fits a little better.
        cosine = _cosine_to_its_end(s, r, onsets)
        if cosine is not None and cosine.error < MAX_END_ERROR_SHARE * min(fit.error for fit in found):
            found.append(cosine)
        return found
    cosine = _cosine_to_its_end(s, r, onsets)
    found = [] if cosine is None else [cosine]
    falling_part = r < r.max() * (1 - CONSTANT)
    slope, height = np.polyfit(s[falling_part], r[falling_part], 1)
    if slope < 0 and -height / slope >= s[-1]:
        found.append(_with_onset("linear", s, r, onsets, -height / slope))
    return found


def _with_onset(shape: str, s: Vector, r: Vector, onsets: Vector, last_step: float) -> _ScheduleFit:
    """Fit a shape whose fall begins at an unknown step: a grid, then its best cell searched."""
    from scipy.optimize import minimize_scalar

    onsets = np.minimum(onsets, last_step - 1)
    best = int(np.argmin(_linear_batch(shape, s, r, onsets[:, None], last_step)[0]))
    low, high = onsets[max(best - 1, 0)], onsets[min(best + 1, len(onsets) - 1)]
    fits = [_linear(shape, s, r, onsets[best], last_step)]
    if high > low:
        near = minimize_scalar(
            lambda onset: _linear(shape, s, r, onset, last_step).error, bounds=(low, high), method="bounded"
        )
        fits.append(_linear(shape, s, r, float(near.x), last_step))
    return min(fits, key=lambda fit: fit.error)


def _linear(shape: str, s: Vector, r: Vector, onset: float, last_step: float) -> _ScheduleFit:
    """Fit peak and final rate of a shape, both linear in it."""
    error, worst, amplitude, final = (float(v[0]) for v in _linear_batch(shape, s, r, np.array([[onset]]), last_step))
    return _ScheduleFit(shape, error, worst, onset, last_step, final + amplitude, final)


def _linear_batch(
    shape: str, s: Vector, r: Vector, onset: Matrix, last_step: float
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the squared error, the largest residual, the amplitude and the final rate for onsets of shape (n, 1)."""
    fallen = falling(shape, np.minimum(np.maximum((s - onset) / (last_step - onset), 0), 1))
    mean = np.add.reduce(fallen, axis=1) / len(s)
    centred = fallen - mean[:, None]
    size = np.einsum("ij,ij->i", centred, centred)
    amplitude = np.divide(centred @ r, size, out=np.zeros(len(size)), where=size > 0)
    final = np.add.reduce(r) / len(s) - amplitude * mean
    # A shape that ends below 0 is clipped there, and fits worse.
    residual = np.maximum(final[:, None] + amplitude[:, None] * fallen, 0) - r
    return np.einsum("ij,ij->i", residual, residual), np.abs(residual).max(axis=1), amplitude, final


def _curves(s: Vector, r: Vector, onset: float, last_step: float | None) -> list[_ScheduleFit]:
    """Fit the shapes that are lines of a function of the rate: an inverse square root, an exponential."""
    if not r[-1] > LEAST * r.max():
        return []
    found = []
    after = s >= onset
    slope, height = np.polyfit(s[after], r[after] ** -2, 1)
    if slope > 0 and height + slope * s[after][0] > 0:
        found.append(_residual(_ScheduleFit("inverse_sqrt", 0, 0, onset, np.nan, height, slope), s[after], r[after]))
    fallen = r < r.max() * (1 - CONSTANT)
    slope, height = np.polyfit(s[fallen], np.log(r[fallen]), 1)
    if last_step is not None and slope < 0:
        top = float(np.log(r.max()))
        begin = min((top - height) / slope, last_step - 1)
        fit = _ScheduleFit("exponential", 0, 0, begin, last_step, top, height + slope * last_step)
        found.append(_residual(fit, s, r))
    return found


def _residual(fit: _ScheduleFit, s: Vector, r: Vector) -> _ScheduleFit:
    residual = fit.rates(s) - r
    return fit._replace(error=float(residual @ residual), worst=float(np.abs(residual).max()))


def _cosine_to_its_end(s: Vector, r: Vector, onsets: Vector) -> _ScheduleFit | None:
    """Fit a cosine whose end is determined by its curvature; None if it is not."""
    unit = s[-1]

    def residuals(theta: NDArray[np.complex128], _: Indices) -> NDArray[np.complex128]:
        onset, end = unit * theta[:, :1], unit * theta[:, 1:]
        share = (s - np.where(onset.real > end.real - 1, end - 1, onset)) / (end - onset)
        share = np.where(share.real < 0, 0, np.where(share.real > 1, 1, share))
        fallen = 0.5 * (1 + np.cos(np.pi * share))
        centred = fallen - fallen.mean(axis=1, keepdims=True)
        amplitude = (centred @ r)[:, None] / (centred**2).sum(axis=1, keepdims=True)
        rates = r.mean() + amplitude * centred
        return np.asarray((np.where(rates.real < 0, 0, rates) - r) / r.max())

    ends = s[-1] * np.geomspace(MIN_LENGTH, MAX_LENGTH, 97)
    few = onsets[:: max(1, len(onsets) // 8)]
    onset, end = (axis.ravel() for axis in np.meshgrid(few, ends[ends > onsets[-1] + 1], indexing="ij"))
    fallen = falling("cosine", np.clip((s - onset[:, None]) / (end - onset)[:, None], 0, 1))
    fallen -= fallen.mean(axis=1, keepdims=True)
    sizes = np.einsum("ij,ij->i", fallen, fallen)
    best = int(np.argmax(np.where(sizes > 0, (fallen @ r) ** 2 / np.where(sizes > 0, sizes, 1), 0)))
    box = np.array([[onsets[0] - 1, ends[0]], [onsets[-1] + 1, ends[-1] * (1 + END_ERROR)]]) / unit
    start = np.array([[onset[best], end[best]]]) / unit
    near, _ = least_squares(complex_step(residuals), start, bounds=(box[0], box[1]), tolerance=1e-26, relative=1e-14)
    fit = _linear("cosine", s, r, float(unit * near[0, 0]), float(unit * near[0, 1]))
    limit = fit.error * (1 + 4 / max(1, len(s) - 4))
    known = fit.last_step < ends[-1] and all(
        _with_onset("cosine", s, r, few, fit.last_step * (1 + move)).error > limit for move in (-END_ERROR, END_ERROR)
    )
    return fit if known else None


def estimated_end(shape: Recognised, logged: LoggedRates) -> int:
    """Return where a shape ends; tools that log a rate after the step it was used for seem to end a step later."""
    end = round(shape.last_step)
    gap = int(np.median(np.diff(logged.steps)))
    return end - 1 if any(end % whole == 1 for whole in (gap, 10) if whole > 1) else end
