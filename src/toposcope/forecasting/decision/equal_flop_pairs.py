"""Pairs of runs that show which was better at equal compute, to continue or to scale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.calibration import Calibration, calibration_of
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import dealt_folds, group_folds
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw, scaling_law
from toposcope.forecasting.tuning import MAX_SUNK_SHARE, MIN_SIZE_RATIO
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

Labels = NDArray[np.str_]
Fit = Callable[[Points], FittedScalingLaw]

MAX_POINTS_OF_RUN = 24  # neighbours on a curve add little information
N_FOLDS = 4
MIN_RUNS = 8  # with fewer, folds hold no two runs of different size, or leave too few to fit a law to
RESAMPLES = 100  # of the bootstrap of each law that judges pairs


@dataclass(frozen=True, eq=False)
class Pairs:
    """Decisions whose outcome is known.

    A run of N0 parameters ended at D tokens. A run of N1 > N0 ended at D1, for dC = 6 N1 D1, no more than the first
    took in all. So at D0 = D - dC / 6 N0 tokens the first could have been given up for the second.
    """

    N0: Vector  # shape (n,)
    D: Vector  # shape (n,)
    N1: Vector  # shape (n,)
    D1: Vector  # shape (n,)
    continued: Vector  # shape (n,); loss that the first reached
    scaled: Vector  # shape (n,); loss that the second reached
    run: Labels  # shape (n,); name of the first
    other: Labels  # shape (n,); name of the second

    def __len__(self) -> int:
        return len(self.N0)

    @property
    def budget(self) -> Vector:
        """The extra compute dC of either arm, shape (n,)."""
        return 6 * self.N1 * self.D1

    @property
    def D0(self) -> Vector:  # noqa: N802
        """Tokens of the run at the decision, shape (n,); 0 where both begin."""
        return np.maximum(self.D - self.budget / (6 * self.N0), 0.0)

    @property
    def margin(self) -> Vector:
        """Nats by which the larger run ended lower, shape (n,)."""
        return self.continued - self.scaled

    @property
    def weight(self) -> Vector:
        """Weight of each pair, shape (n,), by which every two runs count as one."""
        two = np.stack([self.run, self.other], axis=1)
        _, group, count = np.unique(two, axis=0, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / count[group.ravel()])

    def predicted_margin(self, law: ScalingLaw) -> Vector:
        """Return the margin by a law, shape (n,)."""
        return law.loss(self.N0, self.D) - law.loss(self.N1, self.D1)

    def where(self, kept: NDArray[np.bool_]) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(*(getattr(self, each.name)[kept] for each in fields(self)))


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs, with their margins by a law that was not fitted to their runs."""

    pairs: Pairs
    margin: Vector  # shape (n,); nats by which the larger run ends lower, by the law
    margins: Matrix  # shape (n, k); the same by each law of the bootstrap

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def won(self) -> NDArray[np.bool_]:
        """Whether scaling was better, shape (n,)."""
        return self.pairs.margin > 0

    @property
    def n_runs(self) -> int:
        """Different runs among the pairs."""
        return len({*self.pairs.run.tolist(), *self.pairs.other.tolist()})

    def where(self, kept: NDArray[np.bool_]) -> "Judged":
        """Return some of the pairs."""
        return Judged(self.pairs.where(kept), self.margin[kept], self.margins[kept])


@dataclass(frozen=True, eq=False)
class CheckedCalibration:
    """A calibration, and pairs of held-out runs that show whether such probabilities hold."""

    calibration: Calibration
    judged: Judged | None  # none where there are too few runs for a check
    probability: Vector  # shape (n,); that scaling wins each pair, by law and calibration without its runs
    remark: str


def checked_calibration(fitted: FittedScalingLaw, seed: int = 0) -> CheckedCalibration:
    """Calibrate the probabilities of decisions by a law, and check such probabilities on pairs of its own runs.

    Where the runs are too few for the check, or determine no law when some are held out, a remark says so.
    """
    calibration = calibration_of(fitted)
    judged, probability, n_runs = None, np.empty(0), len(np.unique(fitted.points.run))
    problem = f"there are {n_runs}, and at least {MIN_RUNS} are needed" if n_runs < MIN_RUNS else ""
    remark = (
        f"single runs scatter about the law by {calibration.scatter:.3f} nats, as the residuals of "
        f"{n_runs} runs show; probabilities allow for it"
    )
    if not problem:
        points = thinned(fitted.points)
        fit = partial(scaling_law, resamples=RESAMPLES, seed=seed)
        try:
            judged, probability = calibrated_out_of_fold(
                points, dealt_folds(points.run, points.N, N_FOLDS, seed), fit, seed
            )
        except RefusedError as error:
            problem = str(error)
        else:
            remark += f", and were checked on {len(judged):,} pairs of {judged.n_runs} of these runs, held out"
    if problem:
        remark += f"; they cannot be checked on held-out runs: {problem}"
    return CheckedCalibration(calibration, judged, probability, remark)


def thinned(points: Points, most: int = MAX_POINTS_OF_RUN) -> Points:
    """Return at most so many points of each run, the first and the last among them, evenly spaced in log order."""
    kept = np.zeros(len(points), dtype=bool)
    for name in np.unique(points.run):
        places = np.flatnonzero(points.run == name)
        places = places[np.argsort(points.D[places], kind="stable")]
        kept[places[np.unique(np.geomspace(1, len(places), most).round().astype(int) - 1)]] = True
    return points.where(kept)


def equal_flop_pairs(points: Points, seed: int = 0, most: int = 40) -> Pairs:
    """Draw pairs in which a larger run took no more compute than the run it is compared with, 40 of any two."""
    of_run = [np.flatnonzero(points.run == name) for name in np.unique(points.run)]
    drawn = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for first in of_run:
        for second in of_run:
            if points.N[second[0]] < MIN_SIZE_RATIO * points.N[first[0]]:
                continue
            ends, others = _possible(points, first, second)
            if len(ends) > most:
                names = points.run[first[0]], points.run[second[0]]
                draw = np.random.default_rng(derive_seed(seed, "pairs", *map(str, names)))
                kept = np.sort(draw.choice(len(ends), most, replace=False))
                ends, others = ends[kept], others[kept]
            drawn.append((ends, others))
    one, other = (points.where(np.concatenate(places)) for places in zip(*drawn, strict=True))
    return Pairs(one.N, one.D, other.N, other.D, one.loss, other.loss, one.run, other.run)


def _possible(points: Points, first: Indices, second: Indices) -> tuple[Indices, Indices]:
    """Return all pairs of a point of one run and a point of another in which the other fits into what the one took."""
    ends, others = (axis.ravel() for axis in np.meshgrid(first, second, indexing="ij"))
    sunk = 1 - points.C[others] / points.C[ends]
    # Of a run with several points the decision lies where it is known: not before the first of them.
    began = points.D[first].min() if len(first) > 1 else 0.0
    possible = (sunk >= 0) & (sunk <= MAX_SUNK_SHARE) & (sunk * points.D[ends] >= began)
    return ends[possible], others[possible]


def judge(pairs: Pairs, fitted: FittedScalingLaw) -> Judged:
    """Predict the margins of pairs by a law."""
    seen = {*fitted.points.run.tolist()} & {*pairs.run.tolist(), *pairs.other.tolist()}
    if seen:
        raise ToposcopeError(f"run {min(seen)}: the law that should judge it was fitted to it")
    if not fitted.bootstrap:
        raise RefusedError("most resamples of the runs determine no law")
    margins = np.stack([pairs.predicted_margin(law) for law in fitted.bootstrap], axis=1)
    return Judged(pairs, pairs.predicted_margin(fitted.law), margins)


def calibrated_out_of_fold(points: Points, folds: Indices, fit: Fit, seed: int = 0) -> tuple[Judged, Vector]:
    """Judge the pairs inside each fold by a law of the other folds, with the calibration of that law."""
    judged, probabilities = [], []
    for fold in group_folds(folds.tolist()):
        pairs = equal_flop_pairs(points.where(fold.predicted), seed)
        if not len(pairs):
            continue
        fitted = fit(points.where(fold.trained))
        judged.append(judge(pairs, fitted))
        probabilities.append(calibration_of(fitted).probability(judged[-1].margins))
    if not judged:
        raise RefusedError("no two of them of different size have equal compute at any point")
    return joined(judged), np.concatenate(probabilities)


def joined(judged: Sequence[Judged]) -> Judged:
    """Return several sets of judged pairs as one; laws that some bootstraps have more of than others are left out."""
    k = min(each.margins.shape[1] for each in judged)
    return Judged(
        Pairs(*(np.concatenate([getattr(each.pairs, f.name) for each in judged]) for f in fields(Pairs))),
        np.concatenate([each.margin for each in judged]),
        np.concatenate([each.margins[:, :k] for each in judged]),
    )
