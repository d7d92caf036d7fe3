"""Losses and scores of a new recipe's larger models, for several corpora and tasks at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.prediction import DEFAULT
from toposcope.forecasting.downstream.task_translation import TaskTranslation, translate_score
from toposcope.forecasting.downstream.translation import Translation, translate
from toposcope.logs.evaluations import Evaluations
from toposcope.progress import Progress, silent


@dataclass(frozen=True, eq=False)
class TranslationReport:
    """Predictions for a new recipe.

    Attributes
    ----------
    recipe : str
    losses : tuple of Translation
        Of each corpus, and of each task for the loss of its right answers.
    scores : tuple of TaskTranslation
        Of each task.
    """

    recipe: str
    losses: tuple[Translation, ...]
    scores: tuple[TaskTranslation, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each model and corpus or task; what is unknown is NaN."""
        rows: list[dict[str, Any]] = []
        for each in self.losses:
            for loss in each.predictions:
                ends = {"predicted": loss.loss, "low": loss.low, "high": loss.high}
                error = {"method": each.method, "error": each.errors.get(each.method), "held": each.coverage}
                rows.append({"model": loss.model.name, "of": each.loss, "what": "loss", **ends, **error})
                rows[-1]["refused"] = loss.refusal
        for task in self.scores:
            for score in task.predictions:
                ends = {"predicted": score.score, "low": score.low, "high": score.high}
                error = {"method": score.method, "error": score.errors.get(score.method), "held": task.coverage}
                rows.append({"model": score.model.name, "of": task.task, "what": "score", **ends, **error})
                rows[-1]["refused"] = score.refusal
        return rows

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
        found = [remark for loss in self.losses for remark in loss.remarks]
        return tuple(dict.fromkeys([*found, *(remark for score in self.scores for remark in score.remarks)]))

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


def translations(
    evaluations: Evaluations | str | Path,
    recipe: str,
    models: Sequence[Model],
    names: Sequence[str] = (),
    *,
    loss: str = "",
    donors: Sequence[str] | None = None,
    corpora: Mapping[str, str] | None = None,
    method: str = DEFAULT,
    progress: Progress = silent,
) -> TranslationReport:
    """Predict losses on corpora and scores on tasks of a recipe's larger models, from small runs of it.

    Parameters
    ----------
    evaluations : Evaluations, str or Path
        Of the new recipe's small runs, and of others that reach further.
    recipe : str
    models : sequence of Model
    names : sequence of str
        Corpora and tasks; by default the corpus that the recipe was trained on. A task with scores is predicted as a
        score, with the loss that this rests on.
    loss : str
        What scores are predicted from; by default the loss of the task's right answers.
    donors, corpora, method
        As for `translate`.
    progress : callable

    Raises
    ------
    ToposcopeError
        If there is no such recipe, corpus, task, loss or method, or no model.
    """
    if not isinstance(evaluations, Evaluations):
        from toposcope.logs.evaluations import read_evaluations

        evaluations = read_evaluations(evaluations)
    losses: list[Translation] = []
    scores: list[TaskTranslation] = []
    options: dict[str, Any] = {"donors": donors, "corpora": corpora, "method": method}
    progress("corpora and tasks", 0, len(names or ("",)))
    for i, name in enumerate(names or ("",)):
        if name in evaluations.targets:
            scores.append(translate_score(evaluations, recipe, name, models, loss=loss, **options))
            losses.append(scores[-1].translation)
        else:
            losses.append(translate(evaluations, recipe, models, loss=name, **options))
        progress("corpora and tasks", i + 1, len(names or ("",)))
    return TranslationReport(recipe, tuple(losses), tuple(scores))
