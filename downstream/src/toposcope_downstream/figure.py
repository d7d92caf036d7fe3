"""Charts of predicted scores: a ladder and its link, a panel for each task; and models in the units of tasks."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import altair as alt
import numpy as np
import polars as pl

from toposcope.extend import MUTED, RUNS, Chart, budget_axis, counted, short, with_field
from toposcope_downstream.ladder import Ladder
from toposcope_downstream.panels import panels
from toposcope_downstream.predicted import TaskPrediction, frame_of, is_share, predictions_by, task_of, times_largest
from toposcope_downstream.score_link import TaskScores, scores_frame

MAX_CHECKPOINTS = 250  # checkpoints drawn in a panel; of more, evenly spaced ones of each run
SKIPPED = 0.1
"""Share of each run's checkpoints, from its beginning, that is not drawn: they are far from everything else."""
FLOPS = 6.0  # of training, for each parameter and token
ROW = 40  # height of a row, in pixels
DOT: dict[str, Any] = {"size": 45, "filled": True, "opacity": 0.9}


def ladder_figure(predictions: Sequence[TaskPrediction]) -> Chart:
    """Draw the final scores of the ladder models over compute, with chance and what is predicted."""
    colours = _Colours.of(predictions)
    compute = [_compute(model.N, model.D[-1]) for each in predictions for model in each.ladder.models]
    compute += [_compute(each.model.N, each.model.D) for each in predictions]
    x = budget_axis("compute", "training compute 6 N D (FLOP)", min(compute) / 1.6, max(compute) * 1.6)
    figures = {task: _ladder_panel(found, x, colours) for task, found in predictions_by(predictions, task_of).items()}
    caption = "Dots: models of the ladder at the end of their training, the largest ringed; dotted: chance."
    if any(not each.refusal for each in predictions):
        caption += " Diamonds: predictions with 90% intervals."
    if any(each.own is not None for each in predictions):
        caption += " Squares: what these models reached so far."
    far = times_largest(predictions)
    title = (
        f"Predicted at {far} times the compute of the largest ladder model"
        if far
        else "No run of the ladder has a score"
    )
    text = f"Scatter chart of scores over training compute, {counted(len(figures), 'panel')}. {title}."
    return Chart("ladder", title, caption, text, panels(figures))


def link_figure(predictions: Sequence[TaskPrediction]) -> Chart | None:
    """Draw score against loss, with the fitted link and the predicted points; None if no prediction has a loss."""
    colours = _Colours.of(predictions)
    figures = {
        task: _link_panel(found, colours)
        for task, found in predictions_by(predictions, task_of).items()
        if any(each.link is not None and np.isfinite(each.loss) for each in found)
    }
    if not figures:
        return None
    caption = (
        "Faint: checkpoints along training but for its first tenth; dots: at its end; line: the fitted link; dotted: "
        "chance. Diamonds: predictions with 90% intervals, next to the line if the method needs no loss."
    )
    title = "Scores rise as the loss falls"
    text = f"Scatter chart of scores against loss, {counted(len(figures), 'panel')}. {title}."
    return Chart("link", title, caption, text, panels(figures))


def _score_axis(found: Sequence[TaskPrediction], scores: Sequence[float]) -> alt.Y:
    """Return the vertical axis of the scores of a task, with chance on it."""
    target = found[0].target
    low, high = limits(scores if target.chance is None else [*scores, target.chance], share=is_share(target))
    axis = alt.Axis(format="~%" if is_share(target) else "~g", tickCount=4)
    return alt.Y("score:Q", title=None, axis=axis, scale=alt.Scale(domain=[low, high], nice=False, zero=False))


def limits(scores: Sequence[float], *, share: bool) -> tuple[float, float]:
    """Return the ends of an axis of scores; those of shares lie between 0 and 1."""
    known = [score for score in scores if np.isfinite(score)] or [0.0, 1.0]
    margin = 0.07 * (max(known) - min(known)) or 0.02
    low, high = min(known) - margin, max(known) + margin
    return (max(low, 0.0), min(high, 1.0)) if share else (low, high)


class _Colours(NamedTuple):
    """One colour for each size of the ladder and each model that is predicted; sizes share one if they are many."""

    sizes: Any
    models: alt.Color

    @classmethod
    def of(cls, predictions: Sequence[TaskPrediction]) -> Self:
        names = dict.fromkeys(map(short, sorted({model.N for each in predictions for model in each.ladder.models})))
        models = dict.fromkeys(_predicted(each) for each in predictions if not each.refusal)
        are_sizes_coloured = len(names) + len(models) <= len(RUNS)
        scale = alt.Scale(domain=[*(names if are_sizes_coloured else ()), *models])
        legend = alt.Legend(symbolOpacity=1)
        sizes, of_models = (alt.Color(f"{field}:N", scale=scale, title=None, legend=legend) for field in ("N", "model"))
        return cls(sizes if are_sizes_coloured else alt.value(MUTED), of_models)


def _ladder_panel(found: Sequence[TaskPrediction], x: alt.X, colours: _Colours) -> alt.LayerChart:
    models, predicted, own = _ends(found[0].ladder), _predictions(found), _own(found)
    y = _score_axis(found, [*models["score"], *own["score"], *_values(predicted, "score", "low", "high")])
    number = _number(found[0])
    tooltip: list[Any] = ["run:N", "N:N", alt.Tooltip("tokens:Q", format=".3~s"), alt.Tooltip("score:Q", format=number)]
    largest = alt.Chart(models.sort("compute").tail(1))
    return alt.LayerChart(layer=[
        *_chance(found[0].target.chance, y),
        largest.mark_point(size=130, filled=False, color=MUTED).encode(x, y),
        alt.Chart(models).mark_point(**DOT).encode(x, y, color=colours.sizes, tooltip=tooltip),
        *_diamonds(predicted, x, y, colours, number),
        alt.Chart(own).mark_point(shape="square", size=60, filled=False).encode(
            x, y, color=colours.models, tooltip=["model:N", alt.Tooltip("score:Q", format=number)]
        ),
    ])  # fmt: skip


def _link_panel(found: Sequence[TaskPrediction], colours: _Colours) -> alt.LayerChart:
    ladder = found[0].ladder
    along, ends = _checkpoints(ladder), _ends(ladder).filter(pl.col("loss").is_finite())
    predicted = _predictions(found).filter(pl.col("loss").is_finite())
    losses = [*along["loss"], *ends["loss"], *_values(predicted, "loss", "loss_low", "loss_high")]
    margin = 0.04 * (max(losses) - min(losses))
    low, high = min(losses) - margin, max(losses) + margin
    x = alt.X(
        "loss:Q", title=f"{ladder.loss_name.replace('_', ' ')}, falling to the right",
        scale=alt.Scale(domain=[low, high], nice=False, zero=False, reverse=True),
    )  # fmt: skip
    y = _score_axis(found, [*along["score"], *ends["score"], *_values(predicted, "score", "low", "high")])
    number = _number(found[0])
    tooltip: list[Any] = ["run:N", "N:N", alt.Tooltip("loss:Q", format=".4~g"), alt.Tooltip("score:Q", format=number)]
    reach = alt.Chart(predicted.filter(pl.col("loss_low").is_finite())).mark_rule(strokeWidth=2)
    faint = alt.Chart(along).mark_point(size=9, filled=True, opacity=0.25)
    link = next(each.link for each in found if each.link is not None)
    at = np.linspace(low, high, 120)
    curve = pl.DataFrame({"loss": at, "score": np.asarray(link(at), dtype=np.float64)})
    return alt.LayerChart(layer=[
        *_chance(found[0].target.chance, y),
        faint.encode(x, y, color=colours.sizes),
        alt.Chart(curve).mark_line(color=MUTED, clip=True).encode(x, y),
        alt.Chart(ends).mark_point(**DOT).encode(x, y, color=colours.sizes, tooltip=tooltip),
        reach.encode(with_field(x, "loss_low"), alt.X2("loss_high:Q"), y, color=colours.models),
        *_diamonds(predicted, x, y, colours, number),
    ])  # fmt: skip


def _diamonds(predicted: pl.DataFrame, x: alt.X, y: alt.Y, colours: _Colours, number: str) -> list[alt.Chart]:
    """Return marks of predictions and of their intervals."""
    tooltip: list[Any] = ["model:N", *(alt.Tooltip(f"{name}:Q", format=number) for name in ("score", "low", "high"))]
    with_interval = alt.Chart(predicted.filter(pl.col("low").is_finite()))
    diamonds = alt.Chart(predicted).mark_point(shape="diamond", size=110, filled=True, opacity=1)
    return [
        with_interval.mark_rule(strokeWidth=2).encode(x, with_field(y, "low"), alt.Y2("high:Q"), color=colours.models),
        diamonds.encode(x, y, color=colours.models, tooltip=tooltip),
    ]


def _chance(chance: float | None, y: alt.Y) -> list[alt.Chart]:
    if chance is None:
        return []
    return [alt.Chart(pl.DataFrame({"score": [chance]})).mark_rule(strokeDash=[2, 3]).encode(y)]


def _number(prediction: TaskPrediction) -> str:
    return ".1%" if is_share(prediction.target) else ".4~g"


def _ends(ladder: Ladder) -> pl.DataFrame:
    """Return ``run, N, compute, tokens, loss, score`` at the end of each ladder model that has a score."""
    rows = [
        (model.run, short(model.N), _compute(model.N, model.D[-1]), model.D[-1], model.final_loss, model.final_score)
        for model in ladder.models
        if np.isfinite(model.final_score)
    ]
    return frame_of(rows, ("run", "N"), ("compute", "tokens", "loss", "score"))


def _checkpoints(ladder: Ladder) -> pl.DataFrame:
    """Return ``N, loss, score`` along the training of the ladder models, thinned."""
    most, rows = max(2, MAX_CHECKPOINTS // max(1, len(ladder.models))), []
    for model in ladder.models:
        known = np.flatnonzero(np.isfinite(model.loss + model.score))
        known = known[int(np.ceil(SKIPPED * len(known))) :] if len(known) > 1 else known
        kept = known[np.unique(np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int))]
        rows += [(short(model.N), float(model.loss[i]), float(model.score[i])) for i in kept]
    return frame_of(rows, ("N",), ("loss", "score"))


def _predictions(found: Sequence[TaskPrediction]) -> pl.DataFrame:
    names = ("score", "low", "high", "loss", "loss_low", "loss_high")
    rows = [
        (_predicted(each), _compute(each.model.N, each.model.D), *(float(getattr(each, name)) for name in names))
        for each in found
        if not each.refusal
    ]
    return frame_of(rows, ("model",), ("compute", *names))


def _own(found: Sequence[TaskPrediction]) -> pl.DataFrame:
    """Return ``model, compute, score`` of the evaluations of the models themselves."""
    rows = [
        (_predicted(each), _compute(each.own.N, each.own.D[-1]), each.own.final_score)
        for each in found
        if each.own is not None and np.isfinite(each.own.final_score) and not each.refusal
    ]
    return frame_of(rows, ("model",), ("compute", "score"))


def _values(rows: pl.DataFrame, *columns: str) -> list[float]:
    return [value for column in columns for value in rows[column] if np.isfinite(value)]


def _predicted(prediction: TaskPrediction) -> str:
    return f"{prediction.model.name}, predicted"


def _compute(N: float, D: float) -> float:
    return FLOPS * float(N) * float(D)


def scores_figure(tasks: Sequence[TaskScores]) -> Chart | None:
    """Draw the scores of the models on each task with their 90% intervals, and chance; None if all are refused."""
    frame = scores_frame(tasks).filter(pl.col("score").is_not_null())
    if frame.is_empty():
        return None
    models = frame["model"].unique(maintain_order=True).to_list()
    names = frame["task"].unique(maintain_order=True).to_list()
    values = [*frame["low"], *frame["high"], *frame["chance"]]
    margin = 0.04 * (max(values) - min(values)) or 0.01
    domain = [max(min(values) - margin, 0), min(max(values) + margin, 1)]
    x, low, chance = (
        alt.X(f"{name}:Q", title="score (90% interval)", axis=alt.Axis(format="~%", tickCount=5), scale=scale)
        for name, scale in ((each, alt.Scale(domain=domain, nice=False)) for each in ("score", "low", "chance"))
    )
    y = alt.Y("task:N", title=None, sort=names, axis=alt.Axis(labelLimit=150))
    colour = alt.Color("model:N", scale=alt.Scale(domain=models), title=None, legend=alt.Legend(columns=1))
    layers: list[alt.Chart] = [alt.Chart(frame).mark_tick(color=MUTED, thickness=2, size=ROW - 8).encode(chance, y)]
    for i, model in enumerate(models):
        shift = ROW / 3 * (i - (len(models) - 1) / 2)
        base = alt.Chart(frame.filter(pl.col("model") == model)).encode(y, color=colour)
        layers.append(base.mark_rule(strokeWidth=2, yOffset=shift, y2Offset=shift).encode(low, x2="high:Q"))
        tooltip = ["task", "model", "score", "low", "high"]
        layers.append(base.mark_point(filled=True, size=70, opacity=1, yOffset=shift).encode(x, tooltip=tooltip))
    figure = alt.LayerChart(layer=layers).properties(height=ROW * len(names))
    clear = [each for each in tasks if each.probability > 0.8 or each.probability < 0.2]
    title = f"Scores of {counted(len(names), 'task')}"
    if len(models) > 1:
        title = f"On {len(clear)} of {counted(len(names), 'task')} one model is ahead with 80% or more"
    caption = "Dots: scores by the link from the predicted loss, with 90% intervals; grey ticks: chance."
    return Chart("scores", title, caption, f"Dot plot of predicted scores with intervals. {title}.", figure)
