"""The score of a task that a new recipe's larger models reach, by other recipes' link from a loss to the score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.curves import recipes_of
from toposcope.forecasting.downstream.endpoints import Endpoints, endpoints
from toposcope.forecasting.downstream.ladder import Ladder, ladder_of
from toposcope.forecasting.downstream.link import Link
from toposcope.forecasting.downstream.methods import TwoStage
from toposcope.forecasting.downstream.predicted import LeftOut, Model, TaskPrediction
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.downstream.refusals import chance_of, refusal_of_ladder, refusal_of_width
from toposcope.forecasting.downstream.score_link import link_of
from toposcope.forecasting.downstream.translation import LossPrediction, Translation, translate
from toposcope.logs.evaluations import Evaluations

METHOD = "link_of_other_recipes"
UPPER = 0.95
"""End of a 90% interval, as a quantile."""
MIN_RECIPES = 2
"""Donors: with one nothing shows whether the link holds for another recipe."""


@dataclass(frozen=True, eq=False)
class TaskTranslation:
    """Predicted scores of a new recipe on a task.

    Attributes
    ----------
    recipe, task, loss : str
        The loss is what the score is predicted from: a corpus, or the task itself for the loss of its right answers.
    predictions : tuple of TaskPrediction
    translation : Translation
        Of the loss.
    errors : mapping
        Mean absolute error of the score of each recipe by the link of the others, a share.
    coverage : float
        Share of these scores within the 90% interval that the errors on the other recipes make; NaN if unknown.
    remarks : tuple of str
    """

    recipe: str
    task: str
    loss: str
    predictions: tuple[TaskPrediction, ...]
    translation: Translation
    errors: Mapping[str, float] = field(default_factory=dict)
    coverage: float = np.nan
    remarks: tuple[str, ...] = ()


def translate_score(
    evaluations: Evaluations,
    recipe: str,
    task: str,
    models: Sequence[Model],
    *,
    loss: str = "",
    donors: Sequence[str] | None = None,
    corpora: Mapping[str, str] | None = None,
    method: str = DEFAULT,
) -> TaskTranslation:
    """Predict the score of a recipe's larger models on a task by the link of other recipes.

    The loss of the models is predicted by `translate` from small runs of the recipe, which need no scores; the score
    follows by a sigmoid in that loss, fitted to the ends of the runs of all other recipes.

    Parameters
    ----------
    evaluations : Evaluations
    recipe, task : str
    models : sequence of Model
    loss : str
        A corpus, or by default the task itself, for the loss of its right answers: at equal loss of a corpus recipes
        differ far more.
    donors : sequence of str, optional
        By default all other recipes that have the task and the loss.
    corpora, method
        As for `translate`.

    Returns
    -------
    TaskTranslation
        A prediction is refused where fewer than two recipes have a link, chance is unknown, no score leaves chance by
        three standard errors, the predicted loss is outside those that scores were seen at, the link of some recipes
        predicts the scores of others no better than their mean does, or the interval is most of what is possible.

    Raises
    ------
    ToposcopeError
        If there is no such recipe, task or loss, or no model.

    Notes
    -----
    The interval adds in quadrature half the range of scores over the interval of the loss, and the errors on recipes
    left out: what a recipe is off in the mean, as Student's t of as many degrees as there are recipes, and the scatter
    of its runs.
    """
    if task not in evaluations.targets:
        raise ToposcopeError(f"task {task}: {choices(task, evaluations.tasks)}")
    loss = loss or task
    names, remarks = _with_scores(evaluations, recipe, task, loss, donors)
    translation = translate(evaluations, recipe, models, loss=loss, donors=donors, corpora=corpora, method=method)
    remarks += translation.remarks
    ladders = {name: ladder_of(evaluations, task, "" if loss == task else loss, name) for name in names}
    ends = {name: _measured(endpoints(ladder)) for name, ladder in ladders.items()}
    ends = {name: points for name, points in ends.items() if len(points)}
    target = evaluations.targets[task]
    pooled = Ladder(target, tuple(rung for ladder in ladders.values() for rung in ladder.rungs), loss)

    def result(
        predictions: Sequence[TaskPrediction], errors: Mapping[str, float] | None = None, coverage: float = np.nan
    ) -> TaskTranslation:
        return TaskTranslation(
            recipe, task, loss, tuple(predictions), translation, errors or {}, coverage, tuple(remarks)
        )

    def refused(why: str, found: LossPrediction) -> TaskPrediction:
        return TaskPrediction(
            task, target, found.model, np.nan, np.nan, np.nan, f"cannot be told: {why}",
            found.loss, found.low, found.high, ladder=pooled,
        )  # fmt: skip

    if len(ends) < MIN_RECIPES:
        why = f"{len(ends)} other recipe{'' if len(ends) == 1 else 's'} with scores and this loss; 2 are needed"
        return result([refused(why, found) for found in translation.predictions])
    points, chance = _pooled(list(ends.values())), chance_of(pooled)
    if why := refusal_of_ladder(pooled, points, chance):
        return result([refused(why, found) for found in translation.predictions])
    assert chance is not None
    left_out = _recipes_left_out(ends, chance)
    errors = {
        name: float(np.mean(np.abs([row.predicted - row.true for row in rows]))) for name, rows in left_out.items()
    }
    if why := _disagreement(points, left_out):
        return result([refused(why, found) for found in translation.predictions], errors)
    width = _width(list(left_out.values()))
    link = _link(points, chance)
    rows = tuple(row for rows in left_out.values() for row in rows)
    predictions = []
    for found in translation.predictions:
        why = found.refusal.removeprefix("cannot be told: ") or _outside(points, found, loss)
        score, ends_of = float(link(found.loss)), link(np.array([found.high, found.low]))
        half = float(np.hypot(width, np.ptp(ends_of) / 2)) if np.isfinite(ends_of).all() else np.nan
        low, high = max(score - half, 0.0), min(score + half, 1.0)
        why = why or (f"the loss on {loss} has no interval" if np.isnan(half) else refusal_of_width(low, high, chance))
        if why:
            predictions.append(refused(why, found))
            continue
        mean_error = float(np.mean(list(errors.values())))
        predictions.append(
            TaskPrediction(
                task, target, found.model, score, low, high, "", found.loss, found.low, found.high, METHOD,
                {METHOD: score}, {METHOD: mean_error}, rows, link, ladder=pooled,
            )
        )  # fmt: skip
    return result(predictions, errors, _coverage(left_out))


def _with_scores(
    evaluations: Evaluations, recipe: str, task: str, loss: str, donors: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the other recipes that have the score and the loss, and why others are not used."""
    found, remarks = [], []
    for name in donors if donors is not None else recipes_of(evaluations):
        if name == recipe:
            continue
        try:
            ladder = ladder_of(evaluations, task, "" if loss == task else loss, name)
            if not ladder.loss_name:
                raise ToposcopeError(f"task {task} has no loss of its own; name a corpus")
            found.append(name)
        except ToposcopeError as error:
            remarks.append(f"{name} lends no link: {error}")
    return found, remarks


def _measured(points: Endpoints) -> Endpoints:
    known = np.isfinite(points.loss + points.score)
    runs = tuple(run for run, is_known in zip(points.run, known, strict=True) if is_known)
    N, D, loss, score = (values[known] for values in (points.N, points.D, points.loss, points.score))
    return Endpoints(runs, N, D, loss, score, points.noise)


def _pooled(parts: Sequence[Endpoints]) -> Endpoints:
    runs = tuple(run for part in parts for run in part.run)
    columns = zip(*((part.N, part.D, part.loss, part.score) for part in parts), strict=True)
    N, D, loss, score = (np.concatenate(column) for column in columns)
    return Endpoints(runs, N, D, loss, score, float(np.sqrt(np.mean([part.noise**2 for part in parts]))))


def _link(points: Endpoints, chance: float) -> Link:
    """Return the sigmoid of the two stages, its scores by least squares in the measured losses."""
    stages = TwoStage()
    found = link_of(stages, points, chance, stages.fit_link(points, chance, np.ones((1, len(points))))[0])
    assert isinstance(found, Link)
    return found


def _recipes_left_out(ends: Mapping[str, Endpoints], chance: float) -> dict[str, list[LeftOut]]:
    """Return the runs of each recipe by the link of the others, where these were seen at such losses."""
    found: dict[str, list[LeftOut]] = {}
    for name, points in ends.items():
        others = _pooled([part for other, part in ends.items() if other != name])
        inside = (points.loss >= others.loss.min()) & (points.loss <= others.loss.max())
        predicted = _link(others, chance)(points.loss)
        rows = zip(points.run, points.N, points.D, predicted, points.score, inside, strict=True)
        found[name] = [
            LeftOut(run, float(N), float(D), METHOD, float(guess), np.nan, np.nan, float(true), f"without {name}")
            for run, N, D, guess, true, is_inside in rows
            if is_inside
        ]
    found = {name: rows for name, rows in found.items() if rows}
    widths = {name: _width([rows for other, rows in found.items() if other != name]) for name in found}
    return {name: [_with_interval(row, widths[name]) for row in rows] for name, rows in found.items()}


def _with_interval(row: LeftOut, width: float) -> LeftOut:
    return replace(row, low=row.predicted - width, high=row.predicted + width)


def _width(recipes: Sequence[Sequence[LeftOut]]) -> float:
    """Return the half width of the 90% interval of a run of another recipe; NaN without recipes.

    The mean errors of m recipes count as m draws about 0, so that another one is Student's t of m degrees; the errors
    about these means as normal.
    """
    from scipy.stats import t

    if not recipes:
        return np.nan
    errors = [np.array([row.predicted - row.true for row in rows]) for rows in recipes]
    means, m = np.array([row.mean() for row in errors]), len(errors)
    within = float(np.sqrt(np.mean([row.var() for row in errors])))
    between = float(np.sqrt(np.mean(means**2) * (1 + 1 / m)))
    return float(np.hypot(t.ppf(UPPER, m) * between, t.ppf(UPPER, np.inf) * within))


def _coverage(left_out: Mapping[str, Sequence[LeftOut]]) -> float:
    shares = [np.mean([row.low <= row.true <= row.high for row in rows]) for rows in left_out.values()]
    return float(np.mean(shares)) if len(shares) > 1 else np.nan


def _disagreement(points: Endpoints, left_out: Mapping[str, Sequence[LeftOut]]) -> str:
    """Return why the recipes disagree too much; empty if each other's links beat the mean of all scores."""
    if len(left_out) < MIN_RECIPES:
        return "the losses of the recipes do not overlap, so that nothing shows whether they share a link"
    missed = [np.sqrt(np.mean([(row.predicted - row.true) ** 2 for row in rows])) for rows in left_out.values()]
    error, spread = float(np.sqrt(np.mean(np.square(missed)))), float(np.std(points.score))
    if error < spread:
        return ""
    return (
        f"at equal loss the recipes disagree: the link of the others misses a recipe by {100 * error:.1f} points, and "
        f"all scores lie within {100 * spread:.1f} of their mean; a loss nearer to the task, or scores of small runs "
        "of this recipe, would help"
    )


def _outside(points: Endpoints, found: LossPrediction, loss: str) -> str:
    lowest, highest = float(points.loss.min()), float(points.loss.max())
    if lowest <= found.loss <= highest:
        return ""
    return (
        f"the loss on {loss} is predicted as {found.loss:.4g}, and scores were seen from {lowest:.4g} to "
        f"{highest:.4g}; larger runs of other recipes with scores would help"
    )
