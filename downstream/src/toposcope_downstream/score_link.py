"""Scores of a task from a loss that is predicted elsewhere, with the error of the link, in sentences and tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from toposcope.extend import NORMAL_WIDTH, Fold, Indices, Matrix, Vector, derive_seed
from toposcope_downstream.evaluations import Target
from toposcope_downstream.held_out import Miss, extrapolating_folds, half_width, unseen
from toposcope_downstream.ladder import Endpoints, Ladder, endpoints, score_error
from toposcope_downstream.methods import ExponentialLink, Link, Resampled, TwoStage, TwoStageExponential
from toposcope_downstream.predicted import cannot_be_told, table_of, with_interval
from toposcope_downstream.refusals import chance_of, leaves_chance, refusal_of_fit, refusal_of_ladder, refusal_of_width

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
MOVEMENT_ERROR = 0.2  # what a law may miss of the change that it predicts from the nearest runs, as a deviation
MAX_LOSS_REACH = 0.5  # how far a loss may lie outside the losses of the ladder, in units of their range

METHODS: tuple[TwoStage, ...] = (TwoStage(), TwoStageExponential())
RESAMPLES, FOLD_RESAMPLES = 200, 40  # links of resampled runs, and of those of a fold
COLUMNS = ("task", "model", "N", "D", "loss", "score", "low", "high", "probability", "chance", "link", "refused")


@dataclass(frozen=True, eq=False)
class ScoreLink:
    """From a loss to the score of a task."""

    task: str
    target: Target
    loss_name: str
    chance: float
    points: Endpoints  # loss and score at the ends of the runs of the ladder
    link: Link | ExponentialLink | None = None  # from losses to scores; None where refused
    resampled: tuple[Link | ExponentialLink, ...] = ()  # links of resampled runs
    scatter: float = 0.0  # standard deviation of a score about the link
    widening: float = 1.0  # factor on deviations from the link, at least 1, that held-out runs ask for
    held: int = 0  # held-out runs whose score was in its 90% interval
    judged: int = 0  # all held-out runs
    refusal: str = ""  # why no score is predicted; empty if some are

    def refusal_at(self, loss: float) -> str:
        """Return why the score at a loss cannot be told; empty if it can."""
        if self.refusal:
            return self.refusal
        low, high = float(self.points.loss.min()), float(self.points.loss.max())
        if _within_reach(self.points.loss, loss):
            return ""
        where = "below" if loss < low else "above"
        return (
            f"the predicted loss {loss:.3f} lies far {where} those of the ladder, {low:.3f} to {high:.3f} "
            f"({self.loss_name}): evaluate runs nearer to it"
        )

    def scores(self, losses: Matrix, seed: int) -> Matrix:
        """Return a score for each loss drawn, with the error of the link."""
        assert self.link is not None
        random = np.random.default_rng(derive_seed(seed, "score link", self.task))
        middle, number = self.link(losses), np.arange(losses.shape[1]) % len(self.resampled)
        errors = self.scatter * random.standard_normal(losses.shape)
        moved = np.abs(middle - self.link(_nearest(self.points.loss, losses)))
        errors += MOVEMENT_ERROR * moved * random.standard_normal(losses.shape[1])
        for i, link in enumerate(self.resampled):
            drawn = number == i
            errors[:, drawn] += link(losses[:, drawn]) - middle[:, drawn]
        return np.asarray(np.clip(middle + self.widening * errors, 0, 1))


def score_link(ladder: Ladder, task: str, seed: int = 0) -> ScoreLink:
    """Fit a link from the loss of a ladder to its score.

    A sigmoid or an exponential with chance at its foot, whichever predicts the scores of larger runs better from their
    losses when they are held out.
    """
    points, chance = endpoints(ladder), chance_of(ladder)
    points = points.where(np.isfinite(points.loss) & (points.loss > 0))
    found = ScoreLink(task, ladder.target, ladder.loss_name, np.nan if chance is None else chance, points)
    if refusal := refusal_of_ladder(ladder, points, chance) or _refusal_of_losses(points):
        return replace(found, refusal=refusal)
    assert chance is not None
    parts = [
        each
        for each in extrapolating_folds(points.N, points.D)
        if leaves_chance(points, each.trained, chance, ladder.target.n)
    ]
    judged = [_judged(method, found, parts) for method in METHODS]
    best = min(range(len(METHODS)), key=lambda i: float(np.mean([each.error for each in judged[i]] or [np.inf])))
    method = METHODS[best]
    theta = method.fit_link(points, chance, np.ones((1, len(points))))[0]
    link = link_of(method, points, chance, theta)
    residuals = points.score - link(points.loss)
    if refusal := refusal_of_fit(points, residuals, ladder.target.n):
        return replace(found, refusal=refusal)
    scatter = _scatter(points, residuals, ladder.target.n)
    misses = _misses(method, found, parts, judged[best], seed)
    return replace(
        found,
        link=link,
        resampled=_resampled(method, found, theta, np.arange(len(points)), RESAMPLES, seed),
        scatter=scatter,
        widening=half_width(misses) / NORMAL_WIDTH,
        held=sum(each.off <= half_width(misses, each.fold) for each in misses),
        judged=len(misses),
    )


def _refusal_of_losses(points: Endpoints) -> str:
    if not np.ptp(points.loss) > 0:
        return "every run of the ladder has the same loss"
    slope = float(np.polyfit(points.loss, points.score, 1)[0])
    return "scores rise with the loss along the ladder: the loss says nothing of the task" if slope > 0 else ""


def _scatter(points: Endpoints, residuals: Vector, n: int | None) -> float:
    """Return the standard deviation of a score about the link: what runs show, and at least the noise of a score."""
    freedom = max(len(residuals) - 3, 1)
    return max(float(np.sqrt(residuals @ residuals / freedom)), score_error(float(points.score.mean()), points, n))


class _Judged(NamedTuple):
    """A held-out run: in which fold, how far its score was off, and how far the link moved from the nearest loss."""

    fold: int
    place: int
    error: float
    movement: float


def _judged(method: TwoStage, of: ScoreLink, parts: Sequence[Fold]) -> list[_Judged]:
    """Return the held-out runs in each fold, predicted from their losses by the link of the others."""
    if not parts:
        return []
    found, points, chance = [], of.points, of.chance
    thetas = method.fit_link(points, chance, np.stack([each.trained for each in parts]).astype(np.float64))
    for i, (fold, theta) in enumerate(zip(parts, thetas, strict=True)):
        link = link_of(method, points, chance, theta)
        for place in np.flatnonzero(fold.predicted).tolist():
            if not _within_reach(points.loss[fold.trained], float(points.loss[place])):
                continue  # it would be refused
            score = float(link(points.loss[place]))
            moved = abs(score - float(link(_nearest(points.loss[fold.trained], points.loss[place]))))
            error = abs(score - float(points.score[place]))
            found.append(_Judged(i, place, error, moved))
    return found


def _misses(method: TwoStage, of: ScoreLink, parts: Sequence[Fold], judged: Sequence[_Judged], seed: int) -> list[Miss]:
    """Return the held-out runs, their errors in units of what the others show: spread of links, scatter of scores."""
    found, points, chance = [], of.points, of.chance
    for i, fold in enumerate(parts):
        theta = method.fit_link(points, chance, fold.trained[None].astype(np.float64))[0]
        residuals = points.score - link_of(method, points, chance, theta)(points.loss)
        scatter = _scatter(points, residuals[fold.trained], of.target.n)
        links = _resampled(method, of, theta, np.flatnonzero(fold.trained), FOLD_RESAMPLES, seed)
        for each in judged:
            if each.fold == i:
                spread = float(np.std([link(points.loss[each.place]) for link in links]))
                deviation = float(np.sqrt(spread**2 + scatter**2 + (MOVEMENT_ERROR * each.movement) ** 2))
                off = each.error / max(deviation, 1e-6)
                found.append(Miss(points.run[each.place], unseen(fold, points.run), off))
    return found


def _within_reach(losses: Vector, loss: float) -> bool:
    """Return whether a loss is not too far outside those of a ladder."""
    low, high = float(losses.min()), float(losses.max())
    reach = MAX_LOSS_REACH * (high - low)
    return low - reach <= loss <= high + reach


def _nearest(losses: Vector, loss: ArrayLike) -> Vector:
    """Return the losses that lie within those of the ladder and nearest to others."""
    return np.clip(np.asarray(loss, dtype=np.float64), losses.min(), losses.max())


def link_of(method: TwoStage, points: Endpoints, chance: float, theta: Vector) -> Link | ExponentialLink:
    """Return the link that parameters of `fit_link` say."""
    return method.link(points, chance, np.concatenate([np.zeros(5), theta]))


def _resampled(
    method: TwoStage, of: ScoreLink, theta: Vector, runs: Indices, count: int, seed: int
) -> tuple[Link | ExponentialLink, ...]:
    """Return links of resampled runs, with the means of the priors drawn anew."""
    random = np.random.default_rng(derive_seed(seed, "score link", method.name, len(runs)))
    drawn = random.choice(runs, (count, len(runs)))
    weights = np.stack([np.bincount(row, minlength=len(of.points)) for row in drawn]).astype(np.float64)
    shifts = random.normal(size=(count, len(theta)))
    found = method.fit_link(of.points, of.chance, weights, Resampled(np.tile(theta, (count, 1)), shifts))
    return tuple(link_of(method, of.points, of.chance, row) for row in found)


@dataclass(frozen=True, eq=False)
class ArmScore:
    """The score of a model whose loss was predicted."""

    name: str
    N: float
    D: float
    loss: float  # predicted
    score: float = np.nan  # predicted, with its 90% interval; NaN where refused
    low: float = np.nan
    high: float = np.nan
    refusal: str = ""


@dataclass(frozen=True, eq=False)
class TaskScores:
    """Models in the units of a task."""

    link: ScoreLink
    arms: tuple[ArmScore, ...]
    probability: float  # that the last model scores higher than the first; NaN with one model, or where one is refused

    @property
    def task(self) -> str:
        """Its name."""
        return self.link.task

    @property
    def refusal(self) -> str:
        """The first reason why a score cannot be told; empty if all can."""
        return next((each.refusal for each in self.arms if each.refusal), "")


def task_scores(link: ScoreLink, models: list[tuple[str, float, float, float]], draws: Matrix, seed: int) -> TaskScores:
    """Return the scores of models from draws of their losses."""
    refusals = [link.refusal_at(loss) for *_, loss in models]
    if link.link is None or all(refusals):
        arms = tuple(ArmScore(*each, refusal=why) for each, why in zip(models, refusals, strict=True))
        return TaskScores(link, arms, np.nan)
    scores = link.scores(draws, seed)
    found = []
    for each, why, drawn in zip(models, refusals, scores, strict=True):
        low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
        why = why or refusal_of_width(low, high, link.chance)
        score = float(link.link(each[3]))
        found.append(ArmScore(*each, refusal=why) if why else ArmScore(*each, score, low, high))
    clear = len(models) > 1 and not any(each.refusal for each in found)
    higher = (scores[-1] > scores[0]).mean() + (scores[-1] == scores[0]).mean() / 2
    return TaskScores(link, tuple(found), float(higher) if clear else np.nan)


def score_sentences(tasks: Sequence[TaskScores]) -> list[str]:
    """Return a sentence for each task: the scores with 90% intervals, or why they cannot be told."""
    return [_sentence(each) for each in tasks]


def _sentence(each: TaskScores) -> str:
    predicted = [arm for arm in each.arms if not arm.refusal]
    if not predicted:
        return f"{each.task} {cannot_be_told(each.refusal.rstrip('.'))}."
    scores = [
        (f"{arm.name} " if len(each.arms) > 1 else "") + with_interval(arm.score, arm.low, arm.high, each.link.target)
        for arm in predicted
    ]
    parts = [", ".join(scores)]
    if np.isfinite(p := each.probability):
        percent = "under 1%" if p < 0.01 else "over 99%" if p > 0.99 else f"{100 * p:.0f}%"
        parts.append(f"{each.arms[-1].name} scores higher with a probability of {percent}")
    parts += [f"{arm.name} {cannot_be_told(arm.refusal)}" for arm in each.arms if arm.refusal]
    held = f"the link's intervals held {each.link.held} of {each.link.judged} held-out runs"
    parts.append(held if each.link.judged else "no run could be held out to test the link")
    return f"{each.task}: {'; '.join(parts)}."


def scores_frame(tasks: Sequence[TaskScores]) -> pl.DataFrame:
    """Return a row for each task and model."""
    rows: list[dict[str, Any]] = [
        {
            "task": each.task, "model": arm.name, "N": arm.N, "D": arm.D, "loss": arm.loss, "score": arm.score,
            "low": arm.low, "high": arm.high, "probability": each.probability, "chance": each.link.chance,
            "link": each.link.loss_name, "refused": arm.refusal,
        }
        for each in tasks for arm in each.arms
    ]  # fmt: skip
    return table_of(rows, COLUMNS)


def scores_dicts(tasks: Sequence[TaskScores]) -> list[dict[str, Any]]:
    """Return the rows of `scores_frame`, with how often the link's intervals held."""
    counts = {each.task: {"held": each.link.held, "held_out": each.link.judged} for each in tasks}
    return [{**row, **counts[row["task"]]} for row in scores_frame(tasks).to_dicts()]
