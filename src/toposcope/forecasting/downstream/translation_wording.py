"""Sentences and tables of a new recipe's losses and scores, as the command and the page write them."""

import numpy as np
import polars as pl

from toposcope.forecasting.downstream.predicted import Model
from toposcope.forecasting.downstream.translations import TranslationReport
from toposcope.forecasting.downstream.wording import MAX_LISTED, unnamed, with_interval
from toposcope.forecasting.wording import short

LEFT_OUT = ("recipe", "loss", "run", "N", "D", "reach", "method", "predicted", "true")


def translations_headline(report: TranslationReport) -> list[str]:
    """Return the answer: a sentence for each model."""
    models = dict.fromkeys(each.model for loss in report.losses for each in loss.predictions)
    return [f"{report.recipe}, {_size(model)}: {_predictions_of(report, model)}." for model in models]


def translations_table(report: TranslationReport) -> pl.DataFrame:
    """Return ``model, of, what, predicted, low, high, method, error, held, refused``, a row for each model and target.

    ``error`` is the error of the method on what was left out (of losses the median, relative; of scores the mean
    difference), and ``held`` the share of it within 90% intervals.
    """
    texts = ("model", "of", "what", "method", "refused")
    rows = report.rows
    schema = {name: pl.String() if name in texts else pl.Float64() for name in rows[0]}
    return pl.DataFrame(rows, schema=schema).with_columns(pl.col(pl.Float64).fill_nan(None))


def translations_left_out(report: TranslationReport) -> pl.DataFrame:
    """Return ``of, recipe, loss, run, N, D, reach, method, predicted, true`` of runs left out; ``of`` is the target."""
    texts = ("recipe", "loss", "run", "method")
    schema = {"of": pl.String(), **{name: pl.String() if name in texts else pl.Float64() for name in LEFT_OUT}}
    rows = [(each.loss, *(getattr(run, name) for name in LEFT_OUT)) for each in report.losses for run in each.left_out]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _predictions_of(report: TranslationReport, model: Model) -> str:
    """Write the predictions for a model, scores first, and what cannot be told."""
    scores = [each for task in report.scores for each in task.predictions if each.model == model]
    tasks = {each.task for each in scores}
    parts = [f"{each.task} {with_interval(each)}" for each in scores if not each.refusal]
    refused = [each.task for each in scores if each.refusal]
    for translation in report.losses:
        for prediction in translation.predictions:
            if prediction.model != model or (translation.loss in tasks and parts):
                continue
            if prediction.refusal:
                refused.append(f"loss on {translation.loss}")
            else:
                ends = (
                    f" (90%: {prediction.low:.3f} to {prediction.high:.3f})"
                    if np.isfinite(prediction.low)
                    else ", without interval"
                )
                parts.append(f"loss on {translation.loss} {prediction.loss:.3f}{ends}")
    if len(parts) > MAX_LISTED:
        parts = [*parts[:MAX_LISTED], f"{len(parts) - MAX_LISTED} more below"]
    unknown = f"cannot be told: {', '.join(refused)}" if refused else ""
    return "; ".join(filter(None, (", ".join(parts), unknown)))


def _size(model: Model) -> str:
    size = f"{short(model.N)} parameters on {short(model.D)} tokens"
    return size if model.name == unnamed(model.N, model.D) else f"{model.name} ({size})"
