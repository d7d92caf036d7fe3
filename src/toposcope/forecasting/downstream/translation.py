"""A new recipe's larger models: losses from a few small runs and other recipes' laws, scores by the link of these."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.verdict import cannot_be_told
from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.ladder import Endpoints, Ladder, endpoints, ladder_of
from toposcope.forecasting.downstream.loss_to_loss import (
    METHODS,
    Donor,
    Donors,
    HeldOutLoss,
    corpora_of,
    donor_drift,
    error_of,
    errors_by_curve,
    fit_methods,
    growth,
    larger_held_out,
    loss_curve,
    recipes_of,
    small_ones,
    training_corpus,
)
from toposcope.forecasting.downstream.methods import Link, TwoStage
from toposcope.forecasting.downstream.predicted import (
    MAX_LISTED,
    HeldOutScore,
    Model,
    TaskPrediction,
    described,
    score_of,
    table_of,
)
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.downstream.refusals import chance_of, refusal_of_ladder, refusal_of_width
from toposcope.forecasting.downstream.score_link import link_of
from toposcope.forecasting.held_out import coverage_by_group, each_out, quantile
from toposcope.forecasting.scaling.points import Points
from toposcope.forecasting.scaling.scaling_law import scaling_law
from toposcope.logs.evaluations import Evaluations, read_evaluations
from toposcope.progress import Progress, silent

SCORE_METHOD = "link_of_other_recipes"
MIN_RUNS = 3  # of the new recipe, for holding out the larger half
MIN_RECIPES = 2  # donors of a link: with one nothing shows whether it holds for another recipe
ROWS = ("model", "of", "what", "predicted", "low", "high", "method", "error", "held", "refused")
HELD_OUT = ("of", "recipe", "loss", "run", "N", "D", "reach", "method", "predicted", "true")
TEXTS = frozenset({"model", "of", "what", "method", "refused", "recipe", "loss", "run"})


@dataclass(frozen=True)
class LossPrediction:
    """The loss of a model on a corpus or a task with its 90% interval; NaN where refused, NaN ends without one."""

    model: Model
    loss: float
    low: float
    high: float
    refusal: str = ""
    methods: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Translation:
    """Predicted losses of a new recipe."""

    recipe: str
    loss: str
    runs: Points
    predictions: tuple[LossPrediction, ...]
    donors: tuple[Donor, ...] = ()
    method: str = ""
    # the median absolute error of each method on the held-out curves that it is chosen by, as a share of the loss
    errors: Mapping[str, float] = field(default_factory=dict)
    coverage: float = np.nan  # share of the runs of held-out curves within the 90% interval from the other curves
    held_out: tuple[HeldOutLoss, ...] = ()
    remarks: tuple[str, ...] = ()


def translate(
    evaluations: Evaluations, recipe: str, models: Sequence[Model], *, loss: str = "", method: str = DEFAULT
) -> Translation:
    """Predict a loss of a recipe's larger models from a few small runs of it and the scaling laws of other recipes."""
    if not models:
        raise ToposcopeError("no model to predict; name its parameters N and its tokens D")
    for what, name, known in (
        ("method", method, (DEFAULT, *METHODS)),
        ("recipe", recipe, recipes := recipes_of(evaluations)),
    ):
        if name not in known:
            raise ToposcopeError(f"{what} {name}: {choices(name, known)}")
    loss = loss or training_corpus(evaluations, recipe)
    if not loss:
        raise ToposcopeError(
            f"recipe {recipe}: no corpus whose name begins as it does; name the loss, one of "
            f"{', '.join(corpora_of(evaluations))}"
        )

    @cache
    def donor(recipe: str, loss: str) -> Donor:
        points = loss_curve(evaluations, recipe, loss)
        return Donor(recipe, points, scaling_law(points, resamples=0).law)

    def donors_of(names: Sequence[str], loss: str) -> Donors:
        on_own = tuple(donor(name, training_corpus(evaluations, name) or loss) for name in names)
        return Donors(on_own, tuple(donor(name, loss) for name in names))

    names, remarks = [], []
    for other in recipes:
        try:
            if other != recipe:
                donors_of([other], loss)
                names.append(other)
        except ToposcopeError as error:
            remarks.append(f"{other} is not used: {error}")
    runs = loss_curve(evaluations, recipe, loss)
    runs = runs.where(~np.isin(runs.run, [model.name for model in models]))

    def refused(why: str) -> Translation:
        predictions = [LossPrediction(model, np.nan, np.nan, np.nan, why) for model in models]
        return Translation(recipe, loss, runs, tuple(predictions))

    if not names:
        return refused("; ".join(["no other recipe has a law to lend", *remarks]))
    if not len(runs):
        return refused(f"no run of {recipe} with its loss on {loss}; train a small one")
    donors = donors_of(names, loss)
    found, reasons = fit_methods(runs, donors)
    if method != DEFAULT and method not in found:
        return refused(reasons.get(method, f"{method}: needs shared_shape and own_law"))

    def curves_held_out() -> Iterator[HeldOutLoss]:
        """Take each donor on each corpus for a new recipe with such runs; and hold out the larger half of its own."""
        for name, _, others in each_out(dict(zip(names, names, strict=True))):
            for corpus in dict.fromkeys([*corpora_of(evaluations), loss]):
                own = training_corpus(evaluations, name)
                if not others and own in ("", corpus):
                    continue
                try:
                    curve = donor(name, corpus).points
                    lenders = donors_of(others, corpus) if others else donors_of([name], own)
                except ToposcopeError:
                    continue  # a corpus on which one of them has no law is no case
                yield from larger_held_out(curve, small_ones(curve, runs), (name, corpus), lenders)
        if len(runs) >= MIN_RUNS:
            yield from larger_held_out(runs, np.median(runs.C) >= runs.C, (recipe, loss), donors)

    held_out = tuple(curves_held_out())
    # curves on training corpora choose for a loss on one, those on others for the rest
    is_own = loss == training_corpus(evaluations, recipe)
    alike = [row for row in held_out if (row.loss == training_corpus(evaluations, row.recipe)) == is_own] or held_out
    best = method if method != DEFAULT else min(found, key=lambda name: error_of(alike, name))
    errors, drift = errors_by_curve(held_out, best), donor_drift(donors)
    width_at_runs = quantile(np.concatenate([*errors.values()])) if errors else np.nan
    top = max(float(donor.points.C.max()) for donor in donors.on_own)
    predictions = []
    for model in models:
        by_method = {name: float(at(np.array([model.N]), np.array([model.D]))[0]) for name, at in found.items()}
        value, compute = by_method[best], 6 * model.N * model.D
        width = width_at_runs * growth(compute / float(runs.C.max()))
        if best != "own_law":
            width = float(np.hypot(width, drift * max(np.log(compute / top), 0.0)))
        low, high = float(value * np.exp(-width)), float(value * np.exp(width))
        predictions.append(LossPrediction(model, value, low, high, methods=by_method))
    if not errors:
        remarks.append("no interval: nothing larger could be held out of any recipe")
    off = {name: [row.error * growth(row.reach) for row in alike if row.method == name] for name in found}
    return Translation(
        recipe, loss, runs, tuple(predictions), donors.on_own, best,
        {name: float(np.median(each)) if each else np.nan for name, each in off.items()},
        coverage_by_group(errors), held_out, tuple(remarks),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class TaskTranslation:
    """Predicted scores of a new recipe on a task."""

    task: str
    loss: str
    predictions: tuple[TaskPrediction, ...]
    translation: Translation
    errors: Mapping[str, float] = field(default_factory=dict)  # mean absolute error on each recipe, by the others' link
    coverage: float = np.nan  # how often a recipe's scores lay within the intervals that the others give
    remarks: tuple[str, ...] = ()


def translate_score(
    evaluations: Evaluations, recipe: str, task: str, models: Sequence[Model], *, loss: str = "", method: str = DEFAULT
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
    ends = {name: endpoints(ladder) for name, ladder in ladders.items()}
    ends = {name: points.where(np.isfinite(points.loss + points.score)) for name, points in ends.items()}
    ends = {name: points for name, points in ends.items() if len(points)}
    pooled = Ladder(evaluations.targets[task], tuple(each for of in ladders.values() for each in of.models), loss)
    chance, link, why = chance_of(pooled), None, ""
    held_out: dict[str, list[HeldOutScore]] = {}
    if len(ends) < MIN_RECIPES:
        why = f"{len(ends)} other recipe{'' if len(ends) == 1 else 's'} with scores and this loss; 2 are needed"
    else:
        points = _pooled([*ends.values()])
        why = refusal_of_ladder(pooled, points, chance)
        if not why and chance is not None:
            held_out = _recipes_held_out(ends, chance)
            why, link = _disagreement(points, held_out), _link(points, chance)
    errors = {name: float(np.abs([row.predicted - row.true for row in rows]).mean()) for name, rows in held_out.items()}
    predictions = []
    for found in translation.predictions:
        each = TaskPrediction(
            task, pooled.target, found.model, loss=found.loss, loss_low=found.low, loss_high=found.high, ladder=pooled
        )
        refusal = why
        if not why and link is not None and chance is not None:
            score, ends_of = float(link(found.loss)), link(np.array([found.high, found.low]))
            half = float(np.hypot(_width([*held_out.values()]), np.ptp(ends_of) / 2))
            low, high = max(score - half, 0.0), min(score + half, 1.0)
            refusal = found.refusal or _outside(points, found, loss)
            refusal = refusal or (f"the loss on {loss} has no interval" if np.isnan(half) else "")
            refusal = refusal or refusal_of_width(low, high, chance)
        if refusal or link is None:
            predictions.append(replace(each, refusal=refusal))
            continue
        predictions.append(
            replace(
                each, score=score, low=low, high=high, method=SCORE_METHOD, methods={SCORE_METHOD: score}, link=link,
                errors={SCORE_METHOD: float(np.mean([*errors.values()]))},
                held_out=tuple(row for rows in held_out.values() for row in rows),
            )
        )  # fmt: skip
    shares = [np.mean([row.low <= row.true <= row.high for row in rows]) for rows in held_out.values()]
    coverage = float(np.mean(shares)) if len(shares) > 1 and not why else np.nan
    return TaskTranslation(
        task, loss, tuple(predictions), translation, errors, coverage, (*remarks, *translation.remarks)
    )


def _pooled(parts: Sequence[Endpoints]) -> Endpoints:
    N, D, loss, score = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("N", "D", "loss", "score")
    )
    noise = float(np.sqrt(np.mean([part.noise**2 for part in parts])))
    return Endpoints(tuple(run for part in parts for run in part.run), N, D, loss, score, noise)


def _link(points: Endpoints, chance: float) -> Link:
    """Return the sigmoid of the two stages, its scores by least squares in the measured losses."""
    stages = TwoStage()
    found = link_of(stages, points, chance, stages.fit_link(points, chance, np.ones((1, len(points))))[0])
    assert isinstance(found, Link)
    return found


def _recipes_held_out(ends: Mapping[str, Endpoints], chance: float) -> dict[str, list[HeldOutScore]]:
    """Return the runs of each recipe by the link of the others, where these were seen at such losses."""
    found: dict[str, list[HeldOutScore]] = {}
    for name, points, parts in each_out(ends):
        others = _pooled(parts)
        inside = points.where((points.loss >= others.loss.min()) & (points.loss <= others.loss.max()))
        columns = (inside.N, inside.D, _link(others, chance)(inside.loss), inside.score)
        rows = [
            HeldOutScore(run, N, D, SCORE_METHOD, predicted, np.nan, np.nan, true, f"without {name}")
            for run, N, D, predicted, true in zip(inside.run, *(column.tolist() for column in columns), strict=True)
        ]
        found |= {name: rows} if rows else {}
    widths = {name: _width(others) for name, _, others in each_out(found)}
    return {
        name: [replace(row, low=row.predicted - widths[name], high=row.predicted + widths[name]) for row in rows]
        for name, rows in found.items()
    }


def _width(recipes: Sequence[Sequence[HeldOutScore]]) -> float:
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
    return float(np.hypot(t.ppf(0.95, m) * between, t.ppf(0.95, np.inf) * within))


def _disagreement(points: Endpoints, held_out: Mapping[str, Sequence[HeldOutScore]]) -> str:
    """Return why the recipes disagree too much; empty if each other's links beat the mean of all scores."""
    if len(held_out) < MIN_RECIPES:
        return "the losses of the recipes do not overlap, so that nothing shows whether they share a link"
    missed = [np.mean([(row.predicted - row.true) ** 2 for row in rows]) for rows in held_out.values()]
    error, spread = float(np.sqrt(np.mean(missed))), float(np.std(points.score))
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
            (found, each.loss, "loss", found.loss, each.method, each.errors.get(each.method), each.coverage)
            for each in self.losses for found in each.predictions
        ]  # fmt: skip
        scores = [
            (found, each.task, "score", found.score, found.method, found.errors.get(found.method), each.coverage)
            for each in self.scores for found in each.predictions
        ]  # fmt: skip
        rows: list[tuple[Any, ...]] = [*losses, *scores]
        return [
            dict(zip(ROWS, (row.model.name, *what, row.low, row.high, *checked, row.refusal), strict=True))
            for row, what, checked in ((row[0], row[1:4], row[4:]) for row in rows)
        ]

    @property
    def table(self) -> pl.DataFrame:
        """The rows as a table; what is unknown is null."""
        return table_of(self.rows, ROWS, TEXTS)

    @property
    def held_out(self) -> pl.DataFrame:
        """A row of `HELD_OUT` for each held-out run; ``of`` is the target."""
        rows = [{"of": each.loss} | vars(run) for each in self.losses for run in each.held_out]
        return table_of(rows, HELD_OUT, TEXTS)

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
        parts: tuple[Translation | TaskTranslation, ...] = (*self.losses, *self.scores)
        return tuple(dict.fromkeys(remark for each in parts for remark in each.remarks))

    def to_dict(self) -> dict[str, Any]:
        """Return the predictions, what each method predicts and misses, and all that was held out."""
        losses = [
            {"loss": each.loss, "methods": [dict(found.methods) for found in each.predictions]}
            | _checks(each, each.held_out)
            for each in self.losses
        ]
        scores = [
            {"task": each.task, "loss": each.loss} | _checks(each, each.predictions[0].held_out) for each in self.scores
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
        return "; ".join(filter(None, (", ".join(parts), cannot_be_told(", ".join(refused)) if refused else "")))


def _checks(each: Translation | TaskTranslation, held_out: Sequence[HeldOutLoss | HeldOutScore]) -> dict[str, Any]:
    return {"errors": dict(each.errors), "held": each.coverage, "held_out": [vars(row) for row in held_out]}


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
