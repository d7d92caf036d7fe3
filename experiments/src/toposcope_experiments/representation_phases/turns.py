"""Turning points of a trajectory: where it stops falling and rises, or the reverse, tested against noise."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.extend import ColouredNoise, Matrix, ToposcopeError, Vector, derive_seed

MAX_TURNS = 3  # most turns that are fitted: one more than three phases have, so that an additional turn is noticed
MIN_CHECKPOINTS = 10  # checkpoints that a test needs; with fewer, a turn cannot be distinguished from noise
LEVEL = 0.05
DRAWS = 399
RESAMPLED = 200
FLOOR = 0.005  # least noise, as a share of the range, as for change points
SMOOTHEST = 0.5
"""Share of the pseudo-residuals, the smallest, that estimate the noise; a collapse and a few bends are excluded."""
CORRELATIONS = np.arange(7) / 10  # prior of the correlation of neighbouring checkpoints: these values, equally likely
CORRELATION_DRAWS = 200
CORRELATION_TOLERANCE = 0.05  # autocorrelations of residuals that differ by less than this are treated as equal


@dataclass(frozen=True)
class Turn:
    """The checkpoint at which a trajectory turns, with its 95% interval, as positions in the trajectory."""

    place: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Turns:
    """The stretches of a trajectory."""

    rising: bool  # whether the first stretch rises
    turns: list[Turn]
    p: tuple[float, ...]  # p-values of "no turn", "at most one" and "at most two", each in [1/400, 1]
    levels: Vector  # shape (turns + 2,); values of the fit at the beginning, at each turn and at the end

    @property
    def directions(self) -> str:
        """Return the directions of the stretches, such as ``down up down``."""
        return " ".join("up" if self.rising ^ bool(s % 2) else "down" for s in range(len(self.turns) + 1))


def turning_points(values: Vector, seed: int) -> Turns | None:
    """Split a trajectory into as few rising and falling stretches as its noise allows.

    *Fit.* The least squares fit of at most k alternating monotone stretches over the order of the checkpoints, exact
    (unimodal regression, Frisén 1986, for k = 2). Neighbouring stretches need not be joined: the more extreme of two
    ends is the turn.
    """
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise ToposcopeError(f"turns: {count} of {len(values)} values are not finite; leave them out")
    if len(values) < MIN_CHECKPOINTS or not np.ptp(values) > 0:
        return None
    peak = np.abs(values).max()  # so that neither the range nor a square overflows
    middle, extent = (values / peak).mean(), np.ptp(values / peak)
    if not extent > 0:
        return None
    y = (values / peak - middle) / extent
    found = _cut(y, seed)
    return replace(found, levels=(found.levels * extent + middle) * peak)


def _cut(y: Vector, seed: int) -> Turns:
    """Find the turns of a trajectory of range 1."""
    # Numba takes a moment to import.
    from toposcope_experiments.representation_phases.alternating import alternating_errors

    errors = alternating_errors(y[None], MAX_TURNS + 1)[0]
    loudness = _loudness(y)
    noise = _noise(y, errors, seed) * loudness
    rough = _roughness(noise, loudness)
    size = max(_roughness(y[None], loudness)[0], FLOOR**2)
    p = _p(errors.min(axis=0) / size, noise, rough)
    count = next((k for k in range(MAX_TURNS) if p[k] >= LEVEL), MAX_TURNS)
    fitted = _fit(y, count, errors)
    turns = _with_intervals(fitted, fitted.curve + np.sqrt(size / np.median(rough)) * noise[:RESAMPLED])
    levels = np.array([fitted.curve[0], *(fitted.curve[turn.place] for turn in turns), fitted.curve[-1]])
    return Turns(fitted.rising, turns, p, levels)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Alternating stretches: whether the first rises, the fitted values (n,), the places of the turns."""

    rising: bool
    curve: Vector
    places: NDArray[np.int64]


def _fit(y: Vector, n_turns: int, errors: Matrix) -> _Fit:
    """Fit a number of turns; `errors`, shape (2, k), give the direction of the first stretch."""
    from scipy.optimize import isotonic_regression

    from toposcope_experiments.representation_phases.alternating import alternating_places

    rising = int(errors[1, n_turns] < errors[0, n_turns])
    begins, places = alternating_places(y[None], rising, n_turns + 1)[:, 0]
    pieces = [
        isotonic_regression(piece, increasing=bool((rising + s) % 2)).x
        for s, piece in enumerate(np.split(y, begins))
        if len(piece)
    ]
    return _Fit(bool(rising), np.concatenate(pieces), places)


def _p(errors: Vector, noise: Matrix, rough: Vector) -> tuple[float, ...]:
    """Return the p of each number of turns below the most, from errors (MAX_TURNS + 1,) in units of the roughness.

    `rough`, shape (DRAWS,), is the roughness of the noise.
    """
    from toposcope_experiments.representation_phases.alternating import alternating_errors

    # a stretch that was given rises, whatever noise would rather have
    null = alternating_errors(noise, MAX_TURNS + 1)[:, 1] / rough[:, None]
    gains = null[:, :1] - null[:, 1:]
    usual = np.median(gains, axis=0)
    shares = []
    for k in range(MAX_TURNS):
        own = ((errors[k] - errors[k + 1 :]) / usual[: MAX_TURNS - k]).max()
        largest = (gains[:, : MAX_TURNS - k] / usual[: MAX_TURNS - k]).max(axis=1)
        shares.append(float((1 + (largest >= own).sum()) / (1 + len(largest))))
    return tuple(shares)


def _noise(y: Vector, errors: Matrix, seed: int) -> Matrix:
    """Return evenly loud noise correlated as that of a trajectory, of variance 1, shape (DRAWS, n)."""
    rng = np.random.default_rng(seed)
    likely = np.exp(
        -0.5 * ((_autocorrelations(len(y)) - _autocorrelation(y, errors)) / CORRELATION_TOLERANCE) ** 2
    ).mean(axis=1)
    likely += np.finfo(float).tiny  # all are equally unlike where the residuals are none
    correlations = rng.choice(CORRELATIONS, size=DRAWS, p=likely / likely.sum())
    return _drifting(rng, correlations, len(y))


def _loudness(y: Vector) -> Vector:
    """Return the standard deviation of the noise up to its size, shape (n,): an exponential trend."""
    rough = _pseudo_residuals(y[None])[0]
    rough = np.copysign(np.maximum(np.abs(rough), FLOOR), rough)
    scale = ColouredNoise.estimate(rough, 0).scale
    return np.interp(np.arange(len(y)), np.arange(1, len(y) - 1), scale)


@lru_cache(maxsize=16)
def _autocorrelations(n: int) -> Matrix:
    """Return autocorrelations of residuals of noise, sorted by the correlation of the noise."""
    from toposcope_experiments.representation_phases.alternating import alternating_errors

    rng = np.random.default_rng(derive_seed(n, "autocorrelations"))
    noise = _drifting(rng, np.repeat(CORRELATIONS, CORRELATION_DRAWS), n)
    found = [_autocorrelation(y, e) for y, e in zip(noise, alternating_errors(noise, MAX_TURNS + 1), strict=True)]
    return np.array(found).reshape(len(CORRELATIONS), CORRELATION_DRAWS)


def _autocorrelation(y: Vector, errors: Matrix) -> float:
    left = y - _fit(y, MAX_TURNS, errors).curve
    square = float(left @ left)
    return float(left[1:] @ left[:-1]) / square if square > 0 else 0.0


def _drifting(rng: np.random.Generator, correlations: Vector, n: int) -> Matrix:
    """Return stationary autoregressions of variance 1, shape (m, n)."""
    noise = rng.normal(size=(len(correlations), n))
    fresh = np.sqrt(1 - correlations**2)
    for i in range(1, n):
        noise[:, i] = correlations * noise[:, i - 1] + fresh * noise[:, i]
    return noise


def _pseudo_residuals(series: Matrix) -> Matrix:
    """Return each value less the mean of its neighbours, the variance of white noise kept, shape (m, n - 2)."""
    left: Matrix = (series[:, 1:-1] - (series[:, :-2] + series[:, 2:]) / 2) / np.sqrt(1.5)
    return left


def _roughness(series: Matrix, loudness: Vector) -> Vector:
    """Return the mean of the smallest squared pseudo-residuals, made evenly loud, shape (m,)."""
    squares = np.sort((_pseudo_residuals(series) / loudness[1:-1]) ** 2, axis=1)
    rough: Vector = squares[:, : int(np.ceil(SMOOTHEST * squares.shape[1]))].mean(axis=1)
    return rough


def _with_intervals(fitted: _Fit, series: Matrix) -> list[Turn]:
    from toposcope_experiments.representation_phases.alternating import alternating_places

    if not len(fitted.places):
        return []
    drawn = alternating_places(series, int(fitted.rising), len(fitted.places) + 1)[1]
    low, high = np.floor(np.percentile(drawn, 2.5, axis=0)), np.ceil(np.percentile(drawn, 97.5, axis=0))
    bounds = zip(fitted.places.tolist(), low.astype(int).tolist(), high.astype(int).tolist(), strict=True)
    return [Turn(place, min(first, place), max(last, place)) for place, first, last in bounds]
