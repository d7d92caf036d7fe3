"""Sentences and numbers of predicted scores, as the command, the page and notebooks write them."""

from collections.abc import Sequence

import numpy as np

from toposcope.forecasting.downstream.predicted import LeftOut, Predictions, TaskPrediction
from toposcope.forecasting.wording import counted, short
from toposcope.logs.columns import ACCURACY, Target
from toposcope.notebook import facts_table

MAX_LISTED = 4
"""Tasks whose scores stand in one sentence; of more it gives the range."""


def is_share(target: Target) -> bool:
    """Return whether a score is a share of questions, which is written in percent."""
    return target.unit == ACCURACY


def written(value: float | None, target: Target) -> str:
    """Write a score: shares in percent to a tenth, others to three digits; nothing if it is not finite."""
    if value is None or not np.isfinite(value):
        return ""
    return f"{100 * value:.1f}%" if is_share(target) else f"{value:.3g}"


def points(value: float | None, target: Target) -> str:
    """Write a difference of scores: of shares in points (hundredths) to a tenth."""
    if value is None or not np.isfinite(value):
        return ""
    return f"{100 * value:.1f}" if is_share(target) else f"{value:.2g}"


def predictions_by_task(report: Predictions) -> dict[str, list[TaskPrediction]]:
    """Return the predictions of each task, by its name."""
    by_task: dict[str, list[TaskPrediction]] = {}
    for each in report.predictions:
        by_task.setdefault(each.task, []).append(each)
    return by_task


def predictions_by_model(report: Predictions) -> dict[str, list[TaskPrediction]]:
    """Return the predictions of each model, by its name."""
    by_model: dict[str, list[TaskPrediction]] = {}
    for each in report.predictions:
        by_model.setdefault(each.model.name, []).append(each)
    return by_model


def headline(report: Predictions) -> list[str]:
    """Return the answer: a sentence for each model."""
    return [_sentence(predictions) for predictions in predictions_by_model(report).values()]


def basis(report: Predictions) -> list[str]:
    """Return what the answer rests on: the ladder, and how predictions of rungs left out came out."""
    rungs = {rung.run: rung for each in report.predictions for rung in each.ladder.rungs}
    if not rungs:
        return []
    sizes = sorted(rung.N for rung in rungs.values())
    n_sizes = len(set(sizes))
    span = short(sizes[0]) if n_sizes == 1 else f"{short(sizes[0])} to {short(sizes[-1])}"
    models = "The model has" if len(predictions_by_model(report)) == 1 else "The models have"
    sentences = [
        f"The ladder has {counted(len(rungs), 'run')} of {counted(n_sizes, 'size')}, {span} parameters. "
        f"{models} {times_largest(report)} times the compute of its largest run."
    ]
    if record := left_out_record(report.predictions):
        sentences.append(record)
    elif any(not each.refusal for each in report.predictions):
        sentences.append(
            "No run could be left out to test this: five smaller ones that leave chance would have to remain. Only the "
            "fit supports the interval."
        )
    return sentences


def times_largest(report: Predictions) -> str:
    """Write how many times the compute of the largest rung the models have; nothing without rungs."""
    most = max((rung.N * rung.D[-1] for each in report.predictions for rung in each.ladder.rungs), default=np.inf)
    ratios = sorted({each.model.N * each.model.D / most for each in report.predictions} - {0.0})
    if not ratios:
        return ""
    return " to ".join(dict.fromkeys(_factor(ratio) for ratio in (ratios[0], ratios[-1])))


def left_out_record(predictions: Sequence[TaskPrediction]) -> str:
    """Say how far predictions of rungs left out were off, and how often their intervals held; empty without any."""
    seen = {(each.task, rung) for each in predictions for rung in chosen_left_out(each)}
    if not seen:
        return ""
    off = float(np.mean([abs(rung.predicted - rung.true) for _, rung in seen]))
    held, judged = held_of(predictions)
    times = counted(len(seen), "prediction")
    sentence = (
        f"{times} of rungs left out, from smaller ones, {'is' if len(seen) == 1 else 'are'} {100 * off:.1f} points off"
    )
    share = f"; the 90% interval holds the true score in {held:,} of {judged:,}" if judged else ""
    return f"{sentence}{' on average' if len(seen) > 1 else ''}{share}."


def held_of(predictions: Sequence[TaskPrediction]) -> tuple[int, int]:
    """Return how many 90% intervals of rungs left out hold the true score, and how many there are."""
    rungs = {(each.task, rung) for each in predictions for rung in chosen_left_out(each) if rung.low <= rung.high}
    return sum(rung.low <= rung.true <= rung.high for _, rung in rungs), len(rungs)


def chosen_left_out(prediction: TaskPrediction) -> list[LeftOut]:
    """Return the rungs left out as the method of the prediction predicted them."""
    return [rung for rung in prediction.left_out if rung.method == prediction.method]


def with_interval(prediction: TaskPrediction) -> str:
    """Write a predicted score with its interval."""
    target = prediction.target
    if not np.isfinite(prediction.low):
        return written(prediction.score, target)
    low, high = written(prediction.low, target), written(prediction.high, target)
    return f"{written(prediction.score, target)} (90%: {low} to {high})"


def html(report: Predictions) -> str:
    """Return the report as a notebook shows it."""
    rows = [
        (
            each.task,
            each.model.name,
            each.refusal or with_interval(each),
            each.method,
            points(each.errors.get(each.method), each.target),
        )
        for each in report.predictions
    ]
    facts = {"ladder": " ".join(basis(report)), "remarks": " · ".join(report.remarks)}
    return facts_table("Predicted scores", facts, ("task", "model", "score", "method", "error on rungs left out"), rows)


def _sentence(predictions: Sequence[TaskPrediction]) -> str:
    model = predictions[0].model
    size = f"{short(model.N)} parameters on {short(model.D)} tokens"
    predicted = [each for each in predictions if not each.refusal]
    refused = [each.task for each in predictions if each.refusal]
    name = size if model.name == unnamed(model.N, model.D) else f"{model.name} ({size})"
    if not predicted:
        tasks = f"the score of {refused[0]}" if len(refused) == 1 else f"none of {len(refused)} scores"
        verb = "cannot be told" if len(refused) == 1 else "can be told"
        reason = f": {predictions[0].refusal.rstrip('.')}" if len({each.refusal for each in predictions}) == 1 else ""
        return f"{name}: {tasks} {verb}{reason}{'' if reason.endswith('?') else '.'}"
    if len(predicted) <= MAX_LISTED:
        scores = ", ".join(f"{each.task} {with_interval(each)}" for each in predicted)
    else:
        ranked = sorted(predicted, key=lambda each: each.score)
        ends = [f"{written(each.score, each.target)} ({each.task})" for each in (ranked[0], ranked[-1])]
        scores = f"{len(predicted)} tasks predicted, from {ends[0]} to {ends[1]}"
    if len(refused) > MAX_LISTED:
        return f"{name}: {scores}; {len(refused)} others cannot be told."
    return f"{name}: {scores}" + (f"; cannot be told: {', '.join(refused)}." if refused else ".")


def unnamed(N: float, D: float) -> str:
    """Return the name of a model that was given none."""
    return f"{short(N)} on {short(D)} tokens"


def _factor(ratio: float) -> str:
    return f"{ratio:,.0f}" if 10 <= ratio < 1e6 else f"{ratio:.2g}"
