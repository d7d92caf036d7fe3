"""Scores that models which are not trained yet would reach on tasks, from a ladder of small ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.extend import Progress, ToposcopeError, choices, counted, silent
from toposcope_downstream.evaluations import Evaluations, read_evaluations
from toposcope_downstream.fits import FINISHED, Places, TaskFits, correction
from toposcope_downstream.held_out import Miss, half_width, interval, of_all_tasks, unseen
from toposcope_downstream.ladder import Ladder, LadderModel, endpoints, ladder_of, score_error, scored_tasks
from toposcope_downstream.methods import LADDER_METHODS
from toposcope_downstream.predicted import (
    HeldOutScore,
    Model,
    TaskPrediction,
    headline,
    held_out_table,
    predictions_table,
)
from toposcope_downstream.refusals import (
    chance_of,
    refusal_of_fit,
    refusal_of_ladder,
    refusal_of_model,
    refusal_of_width,
)
from toposcope_downstream.score_link import MOVEMENT_ERROR
from toposcope_downstream.selection import models_of

if TYPE_CHECKING:
    from toposcope.extend import Chart

DEFAULT, TWO_STAGE = "pooled", "two_stage"
"""The mean of all methods, and the one whose link is drawn next to direct laws."""
METHODS = (*(method.name for method in LADDER_METHODS), "olmo_ladder")  # methods that can be asked for by name


@dataclass(frozen=True, eq=False)
class DownstreamReport:
    """Predictions of tasks."""

    predictions: tuple[TaskPrediction, ...]  # of each model the tasks, in the order of both
    loss_names: Mapping[str, str]  # the loss that is linked to the score of each task; empty if none is
    remarks: tuple[str, ...] = ()  # of the evaluations and of the ladder, a sentence each

    def __repr__(self) -> str:
        return f"<DownstreamReport: {' '.join(headline(self.predictions)).rstrip('.')}>"

    def plot(self) -> "Chart":
        """Draw the scores of the ladder over compute, with the predictions and their intervals."""
        from toposcope_downstream.figure import ladder_figure

        return ladder_figure(self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dictionaries; what is unknown is None."""
        predictions = [
            {**row, "methods": dict(each.methods), "errors": dict(each.errors)}
            for row, each in zip(predictions_table(self.predictions).to_dicts(), self.predictions, strict=True)
        ]
        return {
            "predictions": predictions,
            "held_out": held_out_table(self.predictions).to_dicts(),
            "losses": dict(self.loss_names),
            "remarks": list(self.remarks),
        }


def downstream(
    evaluations: Evaluations | str | Path,
    models: Sequence[Model | str],
    *,
    tasks: Sequence[str] | None = None,
    loss: str = "",
    method: str = DEFAULT,
    recipe: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> DownstreamReport:
    r"""Predict the scores of models on tasks from a ladder of small ones.

    Parameters
    ----------
    evaluations : Evaluations, str or Path
    models : sequence of Model or str
        A text is read by `toposcope_downstream.selection.models_of`: ``N=7B,D=4T``, or the name of a run.
    tasks : sequence of str, optional
        All by default.
    loss : str
        The loss to link to the score: a metric of the tasks or the name of a corpus. By default the task's own.
    method : str
        One of `METHODS`, or ``pooled``: their mean, by how they predict held-out models at the distance of the model.
    recipe : str, optional
        Needed where the evaluations hold several.
    seed : int
    progress : callable

    Raises
    ------
    ToposcopeError
        If there is no such task, recipe, loss or method, or no model is given.

    Examples
    --------
    >>> import tempfile
    >>> rows = ["run,N,D,task,metric,value,n,chance"]
    >>> for N, D in [(N, D) for N in (1e8, 2e8, 4e8, 8e8) for D in (1e10, 3e10, 1e11)]:
    ...     score = 0.25 + 0.75 * np.exp(-2 * (N / 1e8) ** -0.3 - 2 * (D / 1e9) ** -0.35)
    ...     rows.append(f"{N:g}-{D:g},{N},{D},quiz,acc,{score},5000,0.25")
    >>> file = Path(tempfile.mkdtemp()) / "scores.csv"
    >>> _ = file.write_text("\n".join(rows))
    >>> found = downstream(file, [Model("large", 3e9, 1e12)]).predictions[0]
    >>> found.method, f"{found.score:.1%} ({found.low:.1%} to {found.high:.1%})"
    ('pooled', '55.5% (50.5% to 60.5%)')
    """
    if isinstance(evaluations, (str, Path)):
        evaluations = read_evaluations(evaluations)
    if method not in (DEFAULT, *METHODS):
        raise ToposcopeError(f"method {method}: {choices(method, (DEFAULT, *METHODS))}")
    if not models:
        raise ToposcopeError("no model to predict; name its parameters N and its tokens D")
    asked = [model if isinstance(model, Model) else models_of([model], evaluations)[0] for model in models]
    ladders, remarks = _ladders(evaluations, tasks, loss, recipe)
    names = [model.name for model in asked]
    own = {task: {each.run: each for each in ladder.models if each.run in names} for task, ladder in ladders.items()}
    ladders = {task: ladder.without(names) for task, ladder in ladders.items()}
    fits: dict[str, TaskFits] = {}
    refusals: dict[str, str] = {}
    progress("ladders", 0, len(ladders))
    for i, (task, ladder) in enumerate(ladders.items()):
        chance = chance_of(ladder)
        refusals[task] = refusal_of_ladder(ladder, endpoints(ladder), chance)
        if not refusals[task]:
            assert chance is not None
            fits[task] = TaskFits(ladder, chance, seed)
        progress("ladders", i + 1, len(ladders))
    named = "" if method == DEFAULT else method
    evidence = of_all_tasks([fit.evidence for fit in fits.values()]) if fits else None
    for task, fit in [*fits.items()]:
        if named and named not in fit.names:
            refusals[task] = (
                f"{method} cannot be fitted to this ladder: it needs a loss and more runs; use another method"
            )
            del fits[task]
        elif evidence is not None:
            fit.weigh(evidence, named)
    held_out = {}
    if fits:
        progress("held-out models", 0, len(fits))
    for i, (task, fit) in enumerate(fits.items()):
        held_out[task] = _held_out(fit, method)
        progress("held-out models", i + 1, len(fits))
    misses = [miss for each in held_out.values() for miss, _, _ in each]
    known = {}
    for task, rows in held_out.items():  # with the intervals that would have been given when they were not known
        ends = [interval(row.predicted, error, half_width(misses, miss.fold)) for miss, row, error in rows]
        known[task] = tuple(
            replace(row, low=low, high=high) for (_, row, _), (low, high) in zip(rows, ends, strict=True)
        )
    predictions, corrected = [], set[str]()
    for model in asked:
        for task, ladder in ladders.items():
            own_model = own[task].get(model.name)
            nothing = TaskPrediction(task, ladder.target, model, refusal=refusals[task], own=own_model, ladder=ladder)
            if task not in fits:
                predictions.append(nothing)
                continue
            found, is_corrected = _predict(nothing, fits[task], method, half_width(misses))
            corrected |= {model.name} if is_corrected else set()
            errors = {name: float(np.nanmean(of)) for name, of in fits[task].evidence.off.items() if len(of)}
            if known[task]:
                errors[method] = float(np.mean([abs(row.predicted - row.true) for row in known[task]]))
            predictions.append(replace(found, errors=errors, held_out=known[task]))
    loss_names = {task: ladder.loss_name for task, ladder in ladders.items()}
    remarks += [
        f"{task}: {loss_names[task]} is missing or not positive at the end of {counted(len(fit.without_loss), 'run')}, "
        f"such as {fit.without_loss[0]}: no method uses it"
        for task, fit in fits.items()
        if fit.without_loss
    ]
    for model in asked:
        shares = [_share_done(of[model.name], model) for of in own.values() if model.name in of]
        if shares:
            remarks.append(_remark_on_own(model, max(shares), model.name in corrected))
    remarks += _remark_on_methods(predictions)
    return DownstreamReport(tuple(predictions), loss_names, (*evaluations.remarks, *remarks))


def _ladders(
    evaluations: Evaluations, tasks: Sequence[str] | None, loss: str, recipe: str | None
) -> tuple[dict[str, Ladder], list[str]]:
    """Return the ladder of each task, and a remark on each that has none; tasks that were named must have one."""
    ladders, faults = {}, []
    for task in scored_tasks(evaluations, tasks):
        try:
            ladders[task] = ladder_of(evaluations, task, loss, recipe)
        except ToposcopeError as fault:
            if tasks:
                raise
            faults.append(str(fault))
    if not ladders:
        raise ToposcopeError(faults[0])
    return ladders, [f"left out: {fault}" for fault in faults]


def _held_out(fits: TaskFits, method: str) -> list[tuple[Miss, HeldOutScore, float]]:
    """Return each model that was held out, in each fold whose other runs left chance, with its standard deviation."""
    found, points = [], fits.points
    for i, fold in enumerate(fits.folds):
        if not fits.leaves_chance(fold.trained):
            continue
        predicted = fits.predicted(fits.ends, i)
        for j in np.flatnonzero(fold.predicted & np.isfinite(predicted.score)):
            score, error, true = (float(each[j]) for each in (predicted.score, predicted.error, points.score))
            miss = Miss(points.run[j], unseen(fold, points.run), abs(score - true) / error)
            N, D = float(points.N[j]), float(points.D[j])
            found.append(
                (miss, HeldOutScore(points.run[j], N, D, method, score, np.nan, np.nan, true, fold.name), error)
            )
    return found


def _predict(nothing: TaskPrediction, fits: TaskFits, method: str, width: float) -> tuple[TaskPrediction, bool]:
    """Return the prediction, and whether the model's own evaluations corrected it."""
    model, own = nothing.model, nothing.own
    place = Places(np.array([model.N]), np.array([model.D]))
    predicted = fits.predicted(place)
    score, error = float(predicted.score[0]), float(predicted.error[0])
    n = fits.ladder.target.n
    refusal = refusal_of_model(fits.points, model.N, model.D)
    refusal = refusal or refusal_of_fit(fits.points, fits.points.score - fits.pooled(fits.ends), n)
    unfinished = own is not None and _share_done(own, model) < FINISHED
    by_itself = correction(fits, own, model.D) if own is not None and unfinished else None
    if by_itself is not None:
        score = float(np.clip(score + by_itself.shift, 0, 1))
        noise = score_error(score, fits.points, n)
        error = float(np.sqrt(noise**2 + by_itself.error**2 + (MOVEMENT_ERROR * (score - by_itself.observed)) ** 2))
    low, high = interval(score, error, width)
    refusal = refusal or refusal_of_width(low, high, fits.chance)
    # A direct method has no link; that of the two stages is drawn next to it.
    staged = method if method in fits.names and fits.link(method) is not None else TWO_STAGE
    loss, loss_low, loss_high = fits.loss(staged, place)[:, 0].tolist() if staged in fits.names else [np.nan] * 3
    found = replace(
        nothing,
        refusal=refusal,
        loss=loss,
        loss_low=loss_low,
        loss_high=loss_high,
        method=method,
        methods=dict(zip(fits.names, fits.scores(place)[:, 0].tolist(), strict=True)),
        shares=dict(zip(fits.names, fits.shares(place)[0].tolist(), strict=True)),
        link=fits.link(staged) if staged in fits.names else None,
    )
    return (found if refusal else replace(found, score=score, low=low, high=high)), by_itself is not None


def _share_done(own: LadderModel, model: Model) -> float:
    known = own.D[np.isfinite(own.score)]
    return float(known[-1] / model.D) if len(known) else 1.0


def _remark_on_own(model: Model, share: float, is_corrected: bool) -> str:
    if share >= FINISHED:
        return f"{model.name} is already evaluated at its end: it is predicted without these evaluations"
    then = "this corrects its predictions"
    if not is_corrected:
        then = "this corrects nothing: too few runs of the ladder were evaluated at that share of theirs"
    return f"{model.name} is evaluated up to {share:.0%} of its tokens; {then}"


def _remark_on_methods(predictions: Sequence[TaskPrediction]) -> list[str]:
    """Return the mean error of each method on held-out models, over tasks."""
    by_task = {each.task: each.errors for each in predictions if each.errors}.values()
    names = {name: None for errors in by_task for name in errors}
    means = {name: 100 * float(np.mean([of[name] for of in by_task if name in of])) for name in names}
    listed = ", ".join(f"{name} {mean:.1f}" for name, mean in sorted(means.items(), key=lambda item: item[1]))
    return [f"mean absolute error on held-out models, in points: {listed}"] if listed else []
