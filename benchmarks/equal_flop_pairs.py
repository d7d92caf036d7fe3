"""Pairs of runs that show which was better at equal compute, to continue or to scale, and scores of probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.calibration import calibration_of
from toposcope.forecasting.forecaster import RefusedError
from toposcope.forecasting.held_out import group_folds
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw, ScalingLaw
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix, Vector

Labels = NDArray[np.str_]
Fit = Callable[[Points], FittedScalingLaw]

MAX_POINTS_OF_RUN = 24  # neighbours on a curve add little information
N_FOLDS = 4
MIN_SIZE_RATIO, MAX_SUNK_SHARE = 1.3, 0.95  # of a pair of runs: closer sizes, or less to spend, leave little to decide
N_BINS = 10
SWEEPS = {
    "fineweb-100b": "loss/fineweb_100b_val",
    "slimpajama-chunk1": "loss/slimpajama_val",
    "starcoder": "loss/starcoder_val",
}
"""Corpora of a sweep, and the loss on each."""
MIN_LOG_PROBABILITY = 1e-3  # distance of a probability from 0 and 1 in a log score


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
    def D0(self) -> Vector:
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


def thinned(points: Points, most: int = MAX_POINTS_OF_RUN) -> Points:
    """Return at most so many points of each run, the first and the last among them, evenly spaced in log order."""
    kept = np.zeros(len(points), dtype=bool)
    for name in np.unique(points.run):
        places = np.flatnonzero(points.run == name)
        places = places[np.argsort(points.D[places], kind="stable")]
        kept[places[np.unique(np.geomspace(1, len(places), most).round().astype(int) - 1)]] = True
    return points.where(kept)


def sweeps(path: Path) -> dict[str, Points]:
    """Return the runs of each corpus of Brandfonbrener et al. 2024, with their losses on it; none without the file."""
    if not path.exists():
        return {}
    found, table = {}, pl.read_parquet(path)
    for corpus, loss in SWEEPS.items():
        rows = table.filter(pl.col("data") == corpus).select("params", "tokens", loss).drop_nulls().cast(pl.Float64)
        N, D, losses = (rows[column].to_numpy() for column in rows.columns)
        found[corpus] = Points(N, D, losses, np.arange(len(rows)).astype(np.str_))
    return found


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


def dealt_folds(runs: NDArray[np.str_], N: Vector, n_folds: int, seed: int = 0) -> Indices:
    """Return the fold of each point, shape (n,): whole runs, and in every fold runs of all sizes.

    Runs are dealt out in the order of their size, `n_folds` of them at a time, in random order.
    """
    names, first = np.unique(runs, return_index=True)
    draw = np.random.default_rng(derive_seed(seed, "folds", n_folds))
    by_size = names[np.lexsort((draw.random(len(names)), N[first]))]
    dealt = np.concatenate([draw.permutation(n_folds) for _ in range(-(-len(names) // n_folds))])
    fold = dict(zip(by_size.tolist(), dealt.tolist(), strict=False))
    return np.array([fold[name] for name in runs.tolist()], dtype=np.int64)


def log_score(probability: Vector, won: NDArray[np.bool_], weight: Vector) -> float:
    """Return the mean of -ln of the probability given to what came true; the lower the better."""
    p = np.clip(probability, MIN_LOG_PROBABILITY, 1 - MIN_LOG_PROBABILITY)
    return float(np.average(-np.log(np.where(won, p, 1 - p)), weights=weight))


def brier_score(probability: Vector, won: NDArray[np.bool_], weight: Vector) -> float:
    """Return the mean squared difference of the probability and what came true (Brier 1950); the lower the better."""
    return float(np.average((probability - won) ** 2, weights=weight))


class Bin(NamedTuple):
    """Pairs of about the same probability: its range, their number, mean predicted and true shares, and weight."""

    low: float
    high: float
    n: int
    said: float
    came: float
    weight: float


def reliability(probability: Vector, won: NDArray[np.bool_], weight: Vector) -> list[Bin]:
    """Return what came true among pairs of about the same probability, for bins of equal width that hold any."""
    edges = np.linspace(0, 1, N_BINS + 1)
    place = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, N_BINS - 1)
    found = []
    for i in np.unique(place).tolist():
        inside = place == i
        w = weight[inside]
        said, came = np.average(probability[inside], weights=w), np.average(won[inside], weights=w)
        share = float(w.sum() / weight.sum())
        found.append(Bin(float(edges[i]), float(edges[i + 1]), int(inside.sum()), float(said), float(came), share))
    return found
