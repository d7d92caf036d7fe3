"""Fits of every method to one ladder: all its runs, those of each fold, resampled ones; and an unfinished run's own."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from toposcope.extend import Matrix, Vector, derive_seed
from toposcope_downstream.held_out import Evidence, Mask, extrapolating_folds, shares_at
from toposcope_downstream.ladder import END_SHARE, WINDOW, Ladder, LadderModel, endpoints, score_error
from toposcope_downstream.methods import LADDER_METHODS, ExponentialLink, LadderMethod, Link, Resampled
from toposcope_downstream.olmo_ladder import OlmoLadderMethod
from toposcope_downstream.refusals import leaves_chance
from toposcope_downstream.score_link import MOVEMENT_ERROR

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
MIN_DISTANCE = float(np.log(2))  # of held-out runs: nearer errors are noise, and show no drift of the law
CORRECTION_RIDGE = 1e-3  # residuals that together are no larger are no reason to correct others

RESAMPLES, FOLD_RESAMPLES = 200, 40  # of the runs of a ladder, and of those of each fold
ALL = -1  # in place of the number of a fold: all runs
MIN_AT_SHARE = 5  # runs of the ladder that were evaluated at the same share of their training
FINISHED = 0.98  # share of the tokens from which a run counts as finished


class Places(NamedTuple):
    """Where scores are asked for: parameters and tokens, each of shape (m,)."""

    N: Vector
    D: Vector


class Predicted(NamedTuple):
    """Scores at some places, and their standard deviations: of the fit, of the law, and of the noise of a score."""

    score: Vector
    error: Vector


class TaskFits:
    """A ladder on one task, and its fits."""

    def __init__(self, ladder: Ladder, chance: float, seed: int) -> None:
        self.ladder, self.chance, self.seed = ladder, chance, seed
        self.points = endpoints(ladder)
        self.folds = extrapolating_folds(self.points.N, self.points.D)
        weights = np.stack([np.ones(len(self.points)), *(fold.trained.astype(np.float64) for fold in self.folds)])
        known = (self.points.loss > 0) & np.isfinite(self.points.loss)
        lacking = [run for run, has in zip(self.points.run, known, strict=True) if not has]
        self.without_loss = tuple(lacking) if ladder.loss_name else ()
        with_loss = bool(ladder.loss_name) and not lacking
        methods: tuple[LadderMethod, ...] = (*LADDER_METHODS, OlmoLadderMethod(ladder))
        self.methods = {method.name: method for method in methods if with_loss or not method.needs_loss}
        self._theta = {name: method.fit(self.points, chance, weights) for name, method in self.methods.items()}
        self.names = tuple(name for name, theta in self._theta.items() if np.isfinite(theta[0]).all())
        self._draws: dict[tuple[str, tuple[int, ...]], Matrix] = {}
        self._evidence, self._method = self.evidence, ""

    @property
    def ends(self) -> Places:
        """The runs of the ladder."""
        return Places(self.points.N, self.points.D)

    def score(self, name: str, places: Places, fold: int = ALL) -> Vector:
        """Return what a method predicts, shape (m,), of all runs or of those of a fold; NaN without a fit."""
        theta = self._theta[name][fold + 1 : fold + 2]
        return np.asarray(self.methods[name].score(self.points, self.chance, theta, *places)[0])

    @cached_property
    def evidence(self) -> Evidence:
        """The errors on held-out runs of each fold whose runs leave chance, of methods with a fit for half of them."""
        judged = [(i, fold.predicted) for i, fold in enumerate(self.folds) if self.leaves_chance(fold.trained)]
        number = [np.full(held.sum(), i) for i, held in judged]
        distance = [np.zeros(0), *(self.distance(self.ends, i)[held] for i, held in judged)]
        off = {
            name: np.concatenate(
                [np.zeros(0), *(np.abs(self.points.score - self.score(name, self.ends, i))[held] for i, held in judged)]
            )
            for name in self.names
        }
        fitted = {name: of for name, of in off.items() if np.isfinite(of).sum() * 2 >= len(of)}
        return Evidence(np.concatenate([np.zeros(0), *number]).astype(np.int64), np.concatenate(distance), fitted)

    def weigh(self, evidence: Evidence, method: str = "") -> None:
        """State the errors, of all tasks, by which methods are pooled; or the one method that is used instead."""
        self._evidence, self._method = evidence, method

    def shares(self, places: Places, fold: int = ALL) -> Matrix:
        """Return the share of each method in predictions at some places, shape (m, number of methods)."""
        if self._method:
            return np.tile([name == self._method for name in self.names], (len(places.N), 1)).astype(np.float64)
        return self._believed(places, fold)

    def pooled(self, places: Places, fold: int = ALL) -> Vector:
        """Return the mean of the methods' predictions by their shares, shape (m,); NaN without a fit."""
        return _pool(self.scores(places, fold), self.shares(places, fold))

    def leaves_chance(self, trained: Mask) -> bool:
        """Return whether enough of some runs have left chance."""
        return leaves_chance(self.points, trained, self.chance, self.ladder.target.n)

    def predicted(self, places: Places, fold: int = ALL) -> Predicted:
        """Return scores with their errors, of all runs or of those of a fold."""
        scores, shares = self.scores(places, fold), self.shares(places, fold)
        score = _pool(scores, shares)
        draws = np.zeros((FOLD_RESAMPLES if fold != ALL else RESAMPLES, len(score)))
        for name, share in zip(self.names, shares.T, strict=True):
            if share.any() and np.isfinite(self._theta[name][fold + 1]).all():
                drawn = self.methods[name].score(self.points, self.chance, self._resampled(name, fold), *places)
                draws += share * drawn
        noise = [score_error(each, self.points, self.ladder.target.n) for each in score]
        drift = np.sqrt(self._drift(fold) * self.distance(places, fold))
        law = np.maximum(MOVEMENT_ERROR * self._movement(places, fold), drift)
        others = _pool((scores - score) ** 2, self._believed(places, fold))
        return Predicted(score, np.sqrt(draws.std(axis=0) ** 2 + np.square(noise) + law**2 + others))

    def without_each(self, share: float, shares: Vector) -> tuple[Vector, Vector]:
        """Return what fits without a run say of it at a share of its tokens and at its end, each of shape (n,)."""
        N, D = self.ends
        before, after = np.zeros(len(N)), np.zeros(len(N))
        for name, weight in zip(self.names, shares, strict=True):
            if weight:
                theta = self.methods[name].fit(self.points, self.chance, 1 - np.eye(len(self.points)))
                for values, tokens in ((before, share * D), (after, D)):
                    values += weight * self.methods[name].score(self.points, self.chance, theta, N, tokens).diagonal()
        return before, after

    def loss(self, name: str, places: Places) -> Matrix:
        """Return the predicted loss and the ends of its 90% interval, shape (3, m); NaN of a method without."""
        middle = self.methods[name].loss(self.points, self._theta[name][:1], *places)
        draws = self.methods[name].loss(self.points, self._resampled(name, ALL), *places)
        return np.concatenate([middle, np.quantile(draws, (0.05, 0.95), axis=0)])

    def link(self, name: str) -> Link | ExponentialLink | None:
        """Return the link of the loss to the score; None of a method without."""
        return self.methods[name].link(self.points, self.chance, self._theta[name][0])

    def _trained(self, fold: int) -> Mask:
        return np.ones(len(self.points), dtype=bool) if fold == ALL else self.folds[fold].trained

    def _resampled(self, name: str, fold: int) -> Matrix:
        """Return fits to resampled runs, with the means of the priors drawn anew, shape (b, p)."""
        if fold == ALL:
            return self._resample(name, (ALL,), RESAMPLES)
        drawn = self._resample(name, tuple(range(len(self.folds))), FOLD_RESAMPLES)
        return drawn[fold * FOLD_RESAMPLES : (fold + 1) * FOLD_RESAMPLES]

    def _resample(self, name: str, folds: tuple[int, ...], count: int) -> Matrix:
        """Return fits to resampled runs of some folds, all in one batch, shape (number of folds times count, p)."""
        if (name, folds) not in self._draws:
            random = np.random.default_rng(derive_seed(self.seed, "downstream", len(folds)))
            weights, parents = [], []
            for fold in folds:
                runs = np.flatnonzero(self._trained(fold))
                weights += [
                    np.bincount(row, minlength=len(self.points)) for row in random.choice(runs, (count, len(runs)))
                ]
                parents.append(np.tile(self._theta[name][fold + 1], (count, 1)))
            start = np.concatenate(parents)
            resampled = Resampled(start, random.normal(size=start.shape))
            fitted = self.methods[name].fit(self.points, self.chance, np.stack(weights).astype(np.float64), resampled)
            self._draws[name, folds] = fitted
        return self._draws[name, folds]

    def scores(self, places: Places, fold: int = ALL) -> Matrix:
        """Return what each method predicts, shape (number of methods, m)."""
        return np.stack([self.score(name, places, fold) for name in self.names])

    def _believed(self, places: Places, fold: int) -> Matrix:
        """Return the shares by which methods with a fit are believed, whichever is used."""
        judged = [name for name in self.evidence.off if np.isfinite(self._theta[name][fold + 1]).all()]
        shares = np.zeros((len(places.N), len(self.names)))
        shares[:, [self.names.index(name) for name in judged]] = shares_at(
            self._evidence, judged, self.distance(places, fold)
        )
        return shares

    def _drift(self, fold: int) -> float:
        """Return the mean squared error of held-out runs of this task for each unit of distance; 0 without any.

        Of the folds that saw none of the runs which this one did not see: they are no evidence for it.
        """
        seen, rates = self._trained(fold), []
        for i, other in enumerate(self.folds):
            known = other.predicted & seen
            off = (self.points.score - self.pooled(self.ends, i))[known]
            is_evidence = known.any() and not (other.trained & ~seen).any() and self.leaves_chance(other.trained)
            if is_evidence and np.isfinite(off).all():
                rates.append((off @ off) / np.maximum(self.distance(self.ends, i)[known], MIN_DISTANCE).sum())
        return float(np.mean(rates)) if rates else 0.0

    def distance(self, places: Places, fold: int) -> Vector:
        """Return how far places lie from the nearest run in ln N and ln D together, shape (m,)."""
        runs = self._trained(fold)
        apart = [np.abs(np.log(at[:, None] / of[runs])) for at, of in zip(places, self.ends, strict=True)]
        return np.asarray((apart[0] + apart[1]).min(axis=1))

    def _movement(self, places: Places, fold: int) -> Vector:
        """Return how far predictions lie from those of the nearest runs, shape (m,).

        Those are the best run that is no larger and no longer trained, and the worst that is no smaller and no shorter.
        """
        runs = self._trained(fold)
        at_runs, at_places = self.pooled(self.ends, fold)[runs], self.pooled(places, fold)
        N, D = (np.log(values[runs])[:, None] for values in self.ends)
        x, y = (np.log(values)[None] for values in places)
        below, above = (x >= N) & (y >= D), (x <= N) & (y <= D)
        best = np.where(below, at_runs[:, None], self.chance).max(axis=0)
        worst = np.where(above, at_runs[:, None], np.inf).min(axis=0)
        return np.asarray(np.maximum(np.minimum(at_places - best, worst - at_places), 0))


def _pool(values: Matrix, shares: Matrix) -> Vector:
    """Return the mean over methods, shape (m,), of values of shape (number of methods, m)."""
    return np.asarray(np.where(shares.T > 0, values * shares.T, 0).sum(axis=0))


class Correction(NamedTuple):
    """What a run's own evaluations add to the prediction of its end."""

    shift: float  # to add to the score
    error: float  # standard deviation of what is left
    observed: float  # score of the run so far


def correction(fits: TaskFits, own: LadderModel, D: float) -> Correction | None:
    """Return the correction of a run that will end after D tokens; None if the ladder was not evaluated along its runs.

    A run that is ahead of the law so far ends ahead of it, by a share that the ladder's own runs show: each is
    predicted by a fit without it, at the same share of its training and at its end, and the second residual is
    regressed on the first. The intercept holds what the decay of the learning rate brings.
    """
    share = own.D[np.isfinite(own.score)][-1] / D
    observed = score_at(own, share * D)
    middle = [score_at(model, share * model.D[-1]) for model in fits.ladder.models]
    by_run = dict(zip((model.run for model in fits.ladder.models), middle, strict=True))
    at_share = np.array([by_run[run] for run in fits.points.run])
    if np.isfinite(at_share).sum() < MIN_AT_SHARE or not np.isfinite(observed):
        return None
    shares = fits.shares(Places(np.array([own.N]), np.array([D])))
    before, after = fits.without_each(share, shares[0])
    known = np.isfinite(at_share + before + after)
    if known.sum() < MIN_AT_SHARE:
        return None
    first, last = (at_share - before)[known], (fits.points.score - after)[known]
    intercept, slope = _regress(first, last)
    rest = last - intercept - slope * first
    at_once = _pool(fits.scores(Places(np.array([own.N]), np.array([share * D]))), shares)[0]
    spread = float(np.sqrt(rest @ rest / max(len(rest) - 2, 1)))
    return Correction(intercept + slope * (observed - float(at_once)), spread, observed)


def score_at(model: LadderModel, tokens: float) -> float:
    """Return the mean of the last scores up to so many tokens; NaN if there is none near."""
    near = (tokens * 1.0001 >= model.D) & ((1 - END_SHARE) * tokens <= model.D) & np.isfinite(model.score)
    values = model.score[near][-WINDOW:]
    return float(values.mean()) if len(values) else np.nan


def _regress(x: Vector, y: Vector) -> tuple[float, float]:
    """Return intercept and slope, the slope between 0 and 1 and shrunk towards 0 where x varies little."""
    u, v = x - x.mean(), y - y.mean()
    slope = float(np.clip((u @ v) / (u @ u + CORRECTION_RIDGE**2), 0, 1))
    return float(y.mean() - slope * x.mean()), slope
