"""A new recipe's larger models: scores by other recipes' link from a loss; reports on corpora and tasks together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.verdict import cannot_be_told
from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.ladder import Endpoints, Ladder, endpoints, ladder_of
from toposcope.forecasting.downstream.loss_to_loss import recipes_of
from toposcope.forecasting.downstream.methods import Link, TwoStage
from toposcope.forecasting.downstream.predicted import (
    MAX_LISTED,
    LeftOut,
    Model,
    TaskPrediction,
    described,
    score_of,
    table_of,
)
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.downstream.refusals import chance_of, refusal_of_ladder, refusal_of_width
from toposcope.forecasting.downstream.score_link import link_of
from toposcope.forecasting.downstream.translation import LossPrediction, Translation, translate
from toposcope.logs.evaluations import Evaluations, read_evaluations
from toposcope.progress import Progress, silent

METHOD = "link_of_other_recipes"
UPPER = 0.95  # end of a 90% interval, as a quantile
MIN_RECIPES = 2  # donors: with one nothing shows whether the link holds for another recipe
ROWS = ("model", "of", "what", "predicted", "low", "high", "method", "error", "held", "refused")
LEFT_OUT = ("of", "recipe", "loss", "run", "N", "D", "reach", "method", "predicted", "true")
TEXTS = frozenset({"model", "of", "what", "method", "refused", "recipe", "loss", "run"})


@dataclass(frozen=True, eq=False)
class TaskTranslation:
    """Predicted scores of a new recipe on a task.

    ``errors`` holds the mean absolute error on each recipe by the link of the others, ``coverage`` how often a recipe's
    scores lay within the intervals that the others give.
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
    method: str = DEFAULT,
) -> TaskTranslation:
    """Predict the score of a recipe's larger models on a task by the link of other recipes.

    The loss of the models is predicted by `translate` from small runs of the recipe, which need no scores; the score
    follows by a sigmoid in that loss, fitted to the ends of the runs of all other recipes. By default the loss is that
    of the task's right answers.
    """
    if task not in evaluations.targets:
        raise ToposcopeError(f"task {task}: {choices(task, evaluations.tasks)}")
    loss = loss or task
    ladders, remarks = {}, []
    for name in recipes_of(evaluations):
        try:
            if name != recipe:
                ladder = ladder_of(evaluations, task, "" if loss == task else loss, name)
                if not ladder.loss_name:
                    raise ToposcopeError(f"task {task} has no loss of its own; name a corpus")
                ladders[name] = ladder
        except ToposcopeError as error:
            remarks.append(f"{name} lends no link: {error}")
    translation = translate(evaluations, recipe, models, loss=loss, method=method)
    remarks += translation.remarks
    ends = {name: endpoints(ladder) for name, ladder in ladders.items()}
    ends = {name: points.where(np.isfinite(points.loss + points.score)) for name, points in ends.items()}
    ends = {name: points for name, points in ends.items() if len(points)}
    pooled = Ladder(
        evaluations.targets[task], tuple(rung for ladder in ladders.values() for rung in ladder.rungs), loss
    )
    nothing = [
        TaskPrediction(
            task, pooled.target, found.model, np.nan, np.nan, np.nan, loss=found.loss, loss_low=found.low,
            loss_high=found.high, ladder=pooled,
        )
        for found in translation.predictions
    ]  # fmt: skip
    left_out: dict[str, list[LeftOut]] = {}
    points, chance = _pooled(list(ends.values())) if ends else None, chance_of(pooled)
    if len(ends) < MIN_RECIPES or points is None:
        why = f"{len(ends)} other recipe{'' if len(ends) == 1 else 's'} with scores and this loss; 2 are needed"
    elif not (why := refusal_of_ladder(pooled, points, chance)):
        assert chance is not None
        left_out = _recipes_left_out(ends, chance)
        why = _disagreement(points, left_out)
    errors = {
        name: float(np.mean(np.abs([row.predicted - row.true for row in rows]))) for name, rows in left_out.items()
    }
    result = TaskTranslation(recipe, task, loss, (), translation, errors, remarks=tuple(remarks))
    if why or points is None or chance is None:
        return replace(result, predictions=tuple(replace(each, refusal=why) for each in nothing))
    width, link = _width(list(left_out.values())), _link(points, chance)
    rows = tuple(row for rows in left_out.values() for row in rows)
    predictions = []
    for each, found in zip(nothing, translation.predictions, strict=True):
        why = found.refusal or _outside(points, found, loss)
        score, ends_of = float(link(found.loss)), link(np.array([found.high, found.low]))
        half = float(np.hypot(width, np.ptp(ends_of) / 2)) if np.isfinite(ends_of).all() else np.nan
        low, high = max(score - half, 0.0), min(score + half, 1.0)
        why = why or (f"the loss on {loss} has no interval" if np.isnan(half) else refusal_of_width(low, high, chance))
        if why:
            predictions.append(replace(each, refusal=why))
            continue
        mean_error = {METHOD: float(np.mean(list(errors.values())))}
        predictions.append(
            replace(
                each, score=score, low=low, high=high, method=METHOD, methods={METHOD: score}, errors=mean_error,
                left_out=rows, link=link,
            )
        )  # fmt: skip
    shares = [np.mean([row.low <= row.true <= row.high for row in rows]) for rows in left_out.values()]
    coverage = float(np.mean(shares)) if len(shares) > 1 else np.nan
    return replace(result, predictions=tuple(predictions), coverage=coverage)


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
    return {
        name: [replace(row, low=row.predicted - widths[name], high=row.predicted + widths[name]) for row in rows]
        for name, rows in found.items()
    }


def _width(recipes: Sequence[Sequence[LeftOut]]) -> float:
    """Return the half width of the 90% interval of a run of another recipe; NaN without recipes.

    Recipes miss by an amount of their own, which counts as often as there are recipes, and runs scatter about it.
    """
    from scipy.stats import t

    if not recipes:
        return np.nan
    errors = [np.array([row.predicted - row.true for row in rows]) for rows in recipes]
    means, m = np.array([row.mean() for row in errors]), len(errors)
    within = float(np.sqrt(np.mean([row.var() for row in errors])))
    between = float(np.sqrt(np.mean(means**2) * (1 + 1 / m)))
    return float(np.hypot(t.ppf(UPPER, m) * between, t.ppf(UPPER, np.inf) * within))


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


@dataclass(frozen=True, eq=False)
class TranslationReport:
    """Predictions for a new recipe: losses on corpora and tasks, and scores on tasks with the losses they rest on."""

    recipe: str
    losses: tuple[Translation, ...]
    scores: tuple[TaskTranslation, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row of `ROWS` for each model and corpus or task; what is unknown is NaN."""
        losses = [
            (found.model.name, each.loss, "loss", found.loss, found.low, found.high, each.method,
             each.errors.get(each.method), each.coverage, found.refusal)
            for each in self.losses for found in each.predictions
        ]  # fmt: skip
        scores = [
            (found.model.name, each.task, "score", found.score, found.low, found.high, found.method,
             found.errors.get(found.method), each.coverage, found.refusal)
            for each in self.scores for found in each.predictions
        ]  # fmt: skip
        return [dict(zip(ROWS, row, strict=True)) for row in (*losses, *scores)]

    @property
    def table(self) -> pl.DataFrame:
        """The rows as a table; what is unknown is null."""
        return table_of(self.rows, ROWS, TEXTS)

    @property
    def left_out(self) -> pl.DataFrame:
        """Return a row of `LEFT_OUT` for each run left out; ``of`` is the target."""
        return table_of(
            [{"of": each.loss} | vars(run) for each in self.losses for run in each.left_out], LEFT_OUT, TEXTS
        )

    @property
    def headline(self) -> list[str]:
        """The answer: a sentence for each model."""
        models = dict.fromkeys(found.model for each in self.losses for found in each.predictions)
        return [f"{self.recipe}, {described(model)}: {self._predictions_of(model)}." for model in models]

    @property
    def basis(self) -> list[str]:
        """What the predictions rest on, a sentence each."""
        return [
            f"loss on {each.loss}: {len(each.runs)} small runs of {self.recipe}, and the laws of "
            f"{', '.join(donor.recipe for donor in each.donors)}"
            for each in self.losses
            if each.donors
        ]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Of all parts, each once."""
        parts = [*(each.remarks for each in self.losses), *(each.remarks for each in self.scores)]
        return tuple(dict.fromkeys(remark for part in parts for remark in part))

    def to_dict(self) -> dict[str, Any]:
        """Return the predictions, what each method predicts and misses, and all that was left out."""
        losses = [
            {
                "loss": each.loss,
                "methods": [dict(found.methods) for found in each.predictions],
                "errors": dict(each.errors),
                "held": each.coverage,
                "left_out": [vars(row) for row in each.left_out],
            }
            for each in self.losses
        ]
        scores = [
            {
                "task": each.task,
                "loss": each.loss,
                "errors": dict(each.errors),
                "held": each.coverage,
                "left_out": [vars(row) for row in each.predictions[0].left_out],
            }
            for each in self.scores
        ]
        parts = {"losses": losses, "scores": scores, "remarks": list(self.remarks)}
        return {"recipe": self.recipe, "predictions": self.rows, **parts}

    def _predictions_of(self, model: Model) -> str:
        """Write the predictions for a model, scores first, and what cannot be told."""
        scores = [found for each in self.scores for found in each.predictions if found.model == model]
        tasks = {found.task for found in scores}
        parts = [f"{found.task} {score_of(found)}" for found in scores if not found.refusal]
        refused = [found.task for found in scores if found.refusal]
        for each in self.losses:
            for found in each.predictions:
                if found.model != model or (each.loss in tasks and parts):
                    continue
                if found.refusal:
                    refused.append(f"loss on {each.loss}")
                    continue
                ends = f" (90%: {found.low:.3f} to {found.high:.3f})"
                ends = ends if np.isfinite(found.low) else ", without interval"
                parts.append(f"loss on {each.loss} {found.loss:.3f}{ends}")
        if len(parts) > MAX_LISTED:
            parts = [*parts[:MAX_LISTED], f"{len(parts) - MAX_LISTED} more below"]
        unknown = cannot_be_told(", ".join(refused)) if refused else ""
        return "; ".join(filter(None, (", ".join(parts), unknown)))


def translations(
    evaluations: Evaluations | str | Path,
    recipe: str,
    models: Sequence[Model],
    names: Sequence[str] = (),
    *,
    loss: str = "",
    method: str = DEFAULT,
    progress: Progress = silent,
) -> TranslationReport:
    """Predict losses on corpora and scores on tasks of a recipe's larger models, from small runs of it."""
    if not isinstance(evaluations, Evaluations):
        evaluations = read_evaluations(evaluations)
    losses: list[Translation] = []
    scores: list[TaskTranslation] = []
    names = names or ("",)
    progress("corpora and tasks", 0, len(names))
    for i, name in enumerate(names):
        if name in evaluations.targets:
            scores.append(translate_score(evaluations, recipe, name, models, loss=loss, method=method))
            losses.append(scores[-1].translation)
        else:
            losses.append(translate(evaluations, recipe, models, loss=name, method=method))
        progress("corpora and tasks", i + 1, len(names))
    return TranslationReport(recipe, tuple(losses), tuple(scores))
