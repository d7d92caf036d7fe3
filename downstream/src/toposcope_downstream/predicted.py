"""Predicted scores of tasks: what a prediction holds, and the sentences and tables it is written in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from toposcope.extend import ACCURACY, UNDETERMINED, ToposcopeError, Vector, counted, short
from toposcope_downstream.evaluations import MAX_SIZE, Target
from toposcope_downstream.ladder import Ladder, LadderModel

MAX_LISTED = 4  # tasks whose scores stand in one sentence; of more it gives the range
TEXTS = frozenset({"model", "task", "unit", "run", "largest_run", "method", "refused", "fold", "link"})
"""Columns of words; the others hold numbers."""
PREDICTIONS = (
    *("model", "N", "D", "task", "unit", "score", "low", "high", "own", "chance", "largest_run", "largest_score"),
    *("largest_noise", "loss", "loss_low", "loss_high", "method", "error", "refused"),
)
METHODS = ("model", "task", "method", "score", "error", "share")
HELD_OUT = ("task", "run", "N", "D", "method", "predicted", "low", "high", "true", "fold")
LADDER = ("task", "run", "N", "D", "loss", "score", "noise")


@dataclass(frozen=True)
class Model:
    """A model to predict: one that is not trained yet, or an unfinished run."""

    name: str  # rows of the evaluations under this name are of this model itself: they are no model of the ladder
    N: float  # parameters, counted as those of the ladder are
    D: float  # tokens at the end of its training

    def __post_init__(self) -> None:
        for what, value in (("parameters N", self.N), ("tokens D", self.D)):
            if not 1 / MAX_SIZE <= value <= MAX_SIZE:
                raise ToposcopeError(f"model {self.name}: {what} is {value:g}; expected a positive number up to 1e30")


@dataclass(frozen=True)
class HeldOutScore:
    """A model that was held out and predicted from smaller ones."""

    run: str
    N: float
    D: float
    method: str
    # with its 90% interval. Fits and the width in standard deviations are those without the held-out models; the
    # method, and the weights of the others, are chosen once, by all folds
    predicted: float
    low: float
    high: float
    true: float
    fold: str = ""  # what was held out


@dataclass(frozen=True, eq=False)
class TaskPrediction:
    """The score of a model on a task."""

    task: str
    target: Target
    model: Model
    score: float = np.nan  # with its 90% interval; NaN where refused
    low: float = np.nan
    high: float = np.nan
    refusal: str = ""  # why the score cannot be told and what would help; empty if it is predicted
    loss: float = np.nan  # predicted, with its 90% interval, by the method of ``link``; NaN without losses
    loss_low: float = np.nan
    loss_high: float = np.nan
    method: str = ""  # the method of ``score``
    methods: Mapping[str, float] = field(default_factory=dict)  # what each method predicts, by its name
    shares: Mapping[str, float] = field(default_factory=dict)  # by which methods are pooled to ``score``
    # the mean absolute error of each method, and of the pooled ones, on held-out models
    errors: Mapping[str, float] = field(default_factory=dict)
    held_out: tuple[HeldOutScore, ...] = ()
    # from losses to scores, of the method of ``score``, or of ``two_stage`` next to a method that needs no loss; None
    # without losses
    link: Callable[[ArrayLike], Vector] | None = None
    own: LadderModel | None = None  # evaluations of the model itself, if there are any
    ladder: Ladder = field(kw_only=True)


def cannot_be_told(reason: str) -> str:
    """Say that something cannot be told, and why."""
    return f"{UNDETERMINED}: {reason}"


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


def with_interval(score: float, low: float, high: float, target: Target) -> str:
    """Write a predicted score with its interval, if it has one."""
    if not np.isfinite(low):
        return written(score, target)
    return f"{written(score, target)} (90%: {written(low, target)} to {written(high, target)})"


def unnamed(N: float, D: float) -> str:
    """Return the name of a model that was given none."""
    return f"{short(N)} on {short(D)} tokens"


def described(model: Model) -> str:
    """Write a model's size and tokens, with its name if it was given one."""
    size = f"{short(model.N)} parameters on {short(model.D)} tokens"
    return size if model.name == unnamed(model.N, model.D) else f"{model.name} ({size})"


def predictions_by(
    predictions: Sequence[TaskPrediction], key: Callable[[TaskPrediction], str]
) -> dict[str, list[TaskPrediction]]:
    """Return the predictions by what a function says of them, such as `task_of` or `model_of`."""
    groups: dict[str, list[TaskPrediction]] = {}
    for each in predictions:
        groups.setdefault(key(each), []).append(each)
    return groups


def task_of(prediction: TaskPrediction) -> str:
    """Return the name of its task."""
    return prediction.task


def model_of(prediction: TaskPrediction) -> str:
    """Return the name of its model."""
    return prediction.model.name


def headline(predictions: Sequence[TaskPrediction]) -> list[str]:
    """Return the answer: a sentence for each model."""
    return [_sentence(found) for found in predictions_by(predictions, model_of).values()]


def basis(predictions: Sequence[TaskPrediction]) -> list[str]:
    """Return what the answer rests on: the ladder, and how predictions of held-out models came out."""
    models = {model.run: model for each in predictions for model in each.ladder.models}
    if not models:
        return []
    sizes = sorted(model.N for model in models.values())
    n_sizes = len(set(sizes))
    span = short(sizes[0]) if n_sizes == 1 else f"{short(sizes[0])} to {short(sizes[-1])}"
    subject = "The model has" if len(predictions_by(predictions, model_of)) == 1 else "The models have"
    sentences = [
        f"The ladder has {counted(len(models), 'run')} of {counted(n_sizes, 'size')}, {span} parameters. "
        f"{subject} {times_largest(predictions)} times the compute of its largest run."
    ]
    if record := held_out_record(predictions):
        sentences.append(record)
    elif any(not each.refusal for each in predictions):
        sentences.append(
            "No run could be held out to test this: five smaller ones that leave chance would have to remain. Only the "
            "fit supports the interval."
        )
    return sentences


def times_largest(predictions: Sequence[TaskPrediction]) -> str:
    """Write how many times the compute of the largest ladder model the models have; nothing without any."""
    most = max((model.N * model.D[-1] for each in predictions for model in each.ladder.models), default=np.inf)
    ratios = sorted({each.model.N * each.model.D / most for each in predictions} - {0.0})
    ends = (f"{r:,.0f}" if 10 <= r < 1e6 else f"{r:.2g}" for r in ratios[:: max(len(ratios) - 1, 1)])
    return " to ".join(dict.fromkeys(ends))


def held_out_record(predictions: Sequence[TaskPrediction]) -> str:
    """Say how far predictions of held-out models were off, and how often their intervals held; empty without any."""
    seen = {(each.task, row) for each in predictions for row in chosen_held_out(each)}
    if not seen:
        return ""
    off = float(np.mean([abs(row.predicted - row.true) for _, row in seen]))
    held, judged = held_of(predictions)
    one = len(seen) == 1
    sentence = (
        f"{counted(len(seen), 'prediction')} of held-out models, from smaller ones, {'is' if one else 'are'} "
        f"{100 * off:.1f} points off{'' if one else ' on average'}"
    )
    return sentence + (f"; the 90% interval holds the true score in {held:,} of {judged:,}." if judged else ".")


def held_of(predictions: Sequence[TaskPrediction]) -> tuple[int, int]:
    """Return how many 90% intervals of held-out models hold the true score, and how many there are."""
    rows = {(each.task, row) for each in predictions for row in chosen_held_out(each) if row.low <= row.high}
    return sum(row.low <= row.true <= row.high for _, row in rows), len(rows)


def chosen_held_out(prediction: TaskPrediction) -> list[HeldOutScore]:
    """Return the held-out models as the method of the prediction predicted them."""
    return [row for row in prediction.held_out if row.method == prediction.method]


def score_of(prediction: TaskPrediction) -> str:
    """Write the predicted score with its interval."""
    return with_interval(prediction.score, prediction.low, prediction.high, prediction.target)


def _sentence(predictions: Sequence[TaskPrediction]) -> str:
    name = described(predictions[0].model)
    predicted = [each for each in predictions if not each.refusal]
    refused = [each.task for each in predictions if each.refusal]
    if not predicted:
        tasks = f"the score of {refused[0]}" if len(refused) == 1 else f"none of {len(refused)} scores"
        verb = "cannot be told" if len(refused) == 1 else "can be told"
        reason = f": {predictions[0].refusal.rstrip('.')}" if len({each.refusal for each in predictions}) == 1 else ""
        return f"{name}: {tasks} {verb}{reason}{'' if reason.endswith('?') else '.'}"
    if len(predicted) <= MAX_LISTED:
        scores = ", ".join(f"{each.task} {score_of(each)}" for each in predicted)
    else:
        ranked = sorted(predicted, key=lambda each: each.score)
        ends = [f"{written(each.score, each.target)} ({each.task})" for each in (ranked[0], ranked[-1])]
        scores = f"{len(predicted)} tasks predicted, from {ends[0]} to {ends[1]}"
    if len(refused) > MAX_LISTED:
        return f"{name}: {scores}; {len(refused)} others cannot be told."
    return f"{name}: {scores}" + (f"; {cannot_be_told(', '.join(refused))}." if refused else ".")


def predictions_table(predictions: Sequence[TaskPrediction]) -> pl.DataFrame:
    """Return a row of `PREDICTIONS` for each model and task; what is unknown or refused is null."""
    rows = []
    for each in predictions:
        scored = [model for model in each.ladder.models if np.isfinite(model.final_score)]
        largest = max(scored, key=lambda model: model.N * model.D[-1], default=None)
        row: dict[str, Any] = {
            "model": each.model.name, "N": each.model.N, "D": each.model.D, "task": each.task,
            "unit": each.target.unit, "chance": each.target.chance, "refused": each.refusal,
        }  # fmt: skip
        if each.own is not None:
            row["own"] = each.own.final_score
        if largest is not None:
            row |= {
                "largest_run": largest.run, "largest_score": largest.final_score, "largest_noise": largest.score_noise,
            }  # fmt: skip
        if not each.refusal:
            names = ("score", "low", "high", "loss", "loss_low", "loss_high", "method")
            row |= {name: getattr(each, name) for name in names} | {"error": each.errors.get(each.method)}
        rows.append(row)
    return table_of(rows, PREDICTIONS)


def methods_table(predictions: Sequence[TaskPrediction]) -> pl.DataFrame:
    """Return ``model, task, method, score``, the mean absolute ``error`` on held-out models, its ``share``."""
    rows = [
        {
            "model": each.model.name, "task": each.task, "method": name, "score": each.methods.get(name),
            "error": each.errors.get(name), "share": each.shares.get(name),
        }
        for each in predictions
        for name in each.methods
    ]  # fmt: skip
    return table_of(rows, METHODS)


def held_out_table(predictions: Sequence[TaskPrediction]) -> pl.DataFrame:
    """Return ``task, run, N, D, method, predicted, low, high, true`` of held-out models; ``fold`` names them."""
    rows = [
        {"task": task} | vars(row)
        for task, found in predictions_by(predictions, task_of).items()
        for row in dict.fromkeys(row for each in found for row in each.held_out)
    ]
    return table_of(rows, HELD_OUT)


def ladder_table(predictions: Sequence[TaskPrediction]) -> pl.DataFrame:
    """Return ``task, run, N, D, loss, score`` at the end of each ladder model, and the ``noise`` of its last scores."""
    rows = [
        {
            "task": task, "run": model.run, "N": model.N, "D": model.D[-1], "loss": model.final_loss,
            "score": model.final_score, "noise": model.score_noise,
        }
        for task, found in predictions_by(predictions, task_of).items()
        for model in found[0].ladder.models
    ]  # fmt: skip
    return table_of(rows, LADDER)


def table_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], texts: frozenset[str] = TEXTS) -> pl.DataFrame:
    """Return a table: columns of words as texts, the others as numbers; what is missing or NaN is null."""
    schema = {name: pl.String() if name in texts else pl.Float64() for name in columns}
    full = [tuple(row.get(name) for name in columns) for row in rows]
    return pl.DataFrame(full, schema=schema, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))


def frame_of(rows: Sequence[tuple[Any, ...]], texts: Sequence[str], numbers: Sequence[str]) -> pl.DataFrame:
    """Return rows of words and then of numbers as a table; NaN stays."""
    schema = {**dict.fromkeys(texts, pl.String()), **dict.fromkeys(numbers, pl.Float64())}
    return pl.DataFrame(rows, schema=schema, orient="row")
