"""What the tests of association would have found: planted features, and correlations that are detectable."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import association_verdict as rule
from toposcope.analysis.adjustment import MIN_RUNS, own_p, pairing_p, replicated
from toposcope.analysis.association import MIN_CHECKPOINTS, AssociationTask, FeatureSeries, pairings
from toposcope.analysis.given_covariates import correlations_given, covariate_basis, noise_given
from toposcope.analysis.ranks import residuals
from toposcope.analysis.smooth_trend import ColouredNoise
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import LEVEL, NONE, TREND, UNDETERMINED
from toposcope.seeds import SEED, derive_seed
from toposcope.typing import Matrix, Vector

N_PLANTED = 32  # features planted in each run
SIZES = (rule.PLANTED, 0.6, 0.75, 0.9)
"""Partial correlations that are planted."""
CHECKPOINTS, MAX_RUNS = (25, 41, 61, 81, 101, 151, 201, 301, 401), 12  # of the designs that are tried


def with_power(table: pl.DataFrame, designs: Sequence[AssociationTask]) -> pl.DataFrame:
    """Add the power of each verdict that says there is nothing, and withdraw it where the power is too small."""
    columns = {column.name: column for column in table.get_columns()}
    power, detectable = np.full((2, len(table)), np.nan)
    rests = np.array([verdict in (TREND, NONE) for verdict in columns["verdict"]], dtype=bool)
    families: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    keys = zip(*(columns[name] for name in rule.FAMILY), strict=True)
    for row, (family, rho, design) in enumerate(zip(keys, columns["rho"], columns["design"], strict=True)):
        if np.isfinite(rho):
            families.setdefault(family, []).append((row, design))
    n_features = Counter(target for target, *_ in families)
    known: dict[tuple[int, ...], tuple[Vector, Vector]] = {}
    for (target, *_), members in families.items():
        rows, runs = map(list, zip(*members, strict=True))
        if rests[rows].any():
            key = (n_features[target], *runs)
            if key not in known:
                known[key] = _power([designs[i] for i in runs], n_features[target])
            power[rows], detectable[rows] = known[key]
    power[~rests], detectable[~rests] = np.nan, np.nan
    withdrawn = {"verdict": UNDETERMINED, "untested": rule.POWER.untested, "needs": rule.POWER.needs}
    weak = np.flatnonzero(power < rule.MIN_POWER)
    changed = {name: columns[name].scatter(weak, value) for name, value in withdrawn.items()}
    del columns["block"], columns["design"]
    return pl.DataFrame(columns | changed | {"power": power, "detectable": detectable})


class Design(NamedTuple):
    """A study that would tell: runs on the schedule of those there are, each with evenly spaced checkpoints."""

    n_runs: int
    n_checkpoints: int  # of the longest run
    every: int  # steps from one checkpoint to the next


def cheapest_design(trajectories: Sequence[Trajectory], n_features: int, min_runs: int = 1) -> Design | None:
    """Return the fewest runs, and then the fewest checkpoints, in each of which the tests have enough power.

    It has more runs than there are, or more checkpoints. None of `CHECKPOINTS` in up to `MAX_RUNS` may suffice; and
    where the covariates leave nothing of a loss, nobody knows how noisy it is.

    Parameters
    ----------
    trajectories : sequence of Trajectory
        Their first targets are meant; runs without one are left out.
    n_features : int
        Tested in each run.
    min_runs : int
        Fewer are not considered.
    """
    known = [t for t in trajectories if t.targets and np.isfinite(next(iter(t.targets.values()))).sum() > 1]
    length, most = (max((f(t.steps) for t in known), default=0) for f in (np.ptp, len))
    intervals = dict.fromkeys(int(length) // (n - 1) for n in CHECKPOINTS if n <= length + 1)
    for n_runs in range(max(min_runs, len(known)), MAX_RUNS + 1 if known else 0):
        for every in intervals:
            if n_runs == len(known) and length // every < most:
                continue
            made = (_refined(known[i % len(known)], every, derive_seed(SEED, "design", i)) for i in range(n_runs))
            runs = [run for run in made if run is not None]
            if len(runs) == n_runs and _power(runs, n_features)[0].min() >= rule.MIN_POWER:
                return Design(n_runs, int(length) // every + 1, every)
    return None


def _refined(trajectory: Trajectory, every: int, seed: int) -> AssociationTask | None:
    """Return a run with evenly spaced checkpoints, whose loss has the noise that the covariates leave of its own.

    None if they leave nothing of it.

    Noise that neighbouring checkpoints share is shared the more the nearer they are.
    """
    target = next(iter(trajectory.targets.values()))
    at = np.isfinite(target)
    before, target = trajectory.steps[at], target[at]
    covariates = {name: values[at] for name, values in trajectory.covariates.items() if np.isfinite(values[at]).all()}
    basis = covariate_basis(before, covariates)
    if not residuals(target[None], basis).any():
        return None
    left = noise_given(target, basis) if len(target) >= MIN_CHECKPOINTS else ColouredNoise.white(len(target))
    steps = np.arange(-(-before[0] // every), before[-1] // every + 1, dtype=np.int64) * every
    places = np.linspace(0, len(before) - 1, len(steps))
    noise = ColouredNoise(
        max(left.correlation, 0.0) ** (len(before) / len(steps)), np.interp(places, range(len(before)), left.scale)
    )
    loss = noise.colour(np.random.default_rng(seed).standard_normal((len(steps), 1)))[:, 0]
    return AssociationTask(
        FeatureSeries(steps, np.empty((0, len(steps)))),
        loss,
        {name: np.interp(steps, before, values) for name, values in covariates.items()},
        scales=np.full((1, len(steps)), np.nan),
    )


def _power(runs: Sequence[AssociationTask], n_features: int) -> tuple[Vector, Vector]:
    """Return `power` and `detectable` in each run of one of so many features, shape (r,)."""
    rng = np.random.default_rng(derive_seed(SEED, "planted", len(runs)))
    bases = [covariate_basis(run.series.steps, run.covariates, run.scales[0]) for run in runs]
    left = [_signal_and_noise(run.target, basis, rng) for run, basis in zip(runs, bases, strict=True)]

    def share_detected(*sizes: float) -> Matrix:
        planted = [np.concatenate([size * x[:1] + np.sqrt(1 - size**2) * x[1:] for size in sizes]) for x in left]
        detected = _detected(runs, planted, bases, n_features)
        return np.asarray(detected.reshape(len(runs), len(sizes), -1).mean(axis=2).T)

    power = share_detected(*SIZES[: 1 if len(runs) >= MIN_RUNS else None])  # all at once where that costs little
    if len(power) < len(SIZES) and (power < rule.MIN_POWER).any():
        power = np.concatenate([power, share_detected(*SIZES[1:])])
    enough = power >= rule.MIN_POWER
    return power[0], np.where(enough.any(axis=0), np.array(SIZES)[enough.argmax(axis=0)], np.nan)


def _signal_and_noise(target: Vector, basis: Matrix, rng: np.random.Generator) -> Matrix:
    """Return what the covariates leave of the losses and of noise like it, of length 1 where it is white, or 0."""
    noise = noise_given(target, basis)
    left = residuals(np.vstack([target, noise.colour(rng.standard_normal((len(target), N_PLANTED))).T]), basis)
    sizes = np.linalg.norm(noise.whiten(left.T), axis=0)[:, None]
    return np.asarray(np.divide(left, sizes, out=left, where=sizes > 0))


def _detected(
    runs: Sequence[AssociationTask], planted: Sequence[Matrix], bases: Sequence[Matrix], n_features: int
) -> NDArray[np.bool_]:
    """Return in which runs the rule finds which features planted in all of them, as the first of so many, (r, f).

    They need not be compared with other runs where these are too few.
    """
    found = [correlations_given(x, run.target, basis) for run, x, basis in zip(runs, planted, bases, strict=True)]
    rho, p = (np.array(values).T for values in zip(*found, strict=True))
    detected = np.fmax(own_p(p, rho), n_features * replicated(p)[:, None]) < LEVEL
    candidates = np.flatnonzero(detected.any(axis=1))
    if len(runs) >= MIN_RUNS and len(candidates):
        series = [
            FeatureSeries(run.series.steps, x[candidates], basis)
            for run, x, basis in zip(runs, planted, bases, strict=True)
        ]
        squares = np.stack(
            [pairings(of.features, run.target, basis, [other.at(of.steps) for other in series])
             for run, of, basis in zip(runs, series, bases, strict=True)],
            axis=1,
        )  # fmt: skip
        level = rule.PAIRING_LEVEL if len(runs) > MIN_RUNS else LEVEL
        detected[candidates] &= np.array([pairing_p(square, SEED) <= level for square in squares])[:, None]
    return detected.T
