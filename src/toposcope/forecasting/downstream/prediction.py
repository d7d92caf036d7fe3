"""Scores that models which are not trained yet would reach on tasks, from a ladder of small ones."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.choice import choose, mean_errors, weights_of
from toposcope.forecasting.downstream.endpoints import endpoints, score_error
from toposcope.forecasting.downstream.fits import MOVEMENT_ERROR, Places, TaskFits
from toposcope.forecasting.downstream.intervals import Miss, half_width, interval
from toposcope.forecasting.downstream.ladder import Ladder, Rung, ladder_of, scored_tasks
from toposcope.forecasting.downstream.methods import LADDER_METHODS
from toposcope.forecasting.downstream.predicted import LeftOut, Model, Predictions, TaskPrediction
from toposcope.forecasting.downstream.refusals import (
    chance_of,
    refusal_of_fit,
    refusal_of_ladder,
    refusal_of_model,
    refusal_of_width,
)
from toposcope.forecasting.downstream.selection import models_of
from toposcope.forecasting.downstream.unfinished import FINISHED, Correction, correction
from toposcope.forecasting.downstream.wording import headline, html
from toposcope.forecasting.wording import counted
from toposcope.logs.evaluations import Evaluations, read_evaluations
from toposcope.progress import Progress, silent
from toposcope.typing import Vector

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart

DEFAULT = "default"
FIRST, TWO_STAGE = "log_accuracy", "two_stage"
"""The method that is taken where rungs left out prefer no other, and the one whose link is drawn beside direct laws."""
METHODS = (*(method.name for method in LADDER_METHODS), "olmo_ladder")
"""Methods that can be asked for by name."""


@dataclass(frozen=True, eq=False)
class DownstreamReport(Predictions):
    """Predictions of tasks.

    Attributes
    ----------
    predictions : tuple of TaskPrediction
        Of each model the tasks, in the order of both.
    loss_names : mapping
        The loss that is linked to the score of each task; empty if none is.
    remarks : tuple of str
        Of the evaluations and of the ladder, a sentence each.
    """

    def __repr__(self) -> str:
        return f"<DownstreamReport: {' '.join(headline(self)).rstrip('.')}>"

    def _repr_html_(self) -> str:
        return html(self)

    def plot(self) -> "Chart":
        """Draw the scores of the ladder over compute, with the predictions and their intervals.

        Returns
        -------
        Chart
        """
        from toposcope.forecasting.downstream.figure import ladder_figure

        return ladder_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dictionaries; what is unknown is None."""
        from toposcope.forecasting.downstream.tables import left_out_table, predictions_table

        left_out = left_out_table(self)
        predictions = [
            {**row, "methods": dict(each.methods), "errors": dict(each.errors)}
            for row, each in zip(predictions_table(self).to_dicts(), self.predictions, strict=True)
        ]
        return {
            "predictions": predictions,
            "left_out": left_out.to_dicts(),
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
        A text is read by `toposcope.forecasting.downstream.selection.models_of`: ``N=7B,D=4T``, or the name of a run.
    tasks : sequence of str, optional
        All by default.
    loss : str
        The loss to link to the score: a metric of the tasks or the name of a corpus. By default the task's own.
    method : str
        One of `METHODS`, or ``default``: what predicts rungs best that are left out.
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
    ('log_accuracy', '55.5% (50.0% to 61.0%)')
    """
    if isinstance(evaluations, (str, Path)):
        evaluations = read_evaluations(evaluations)
    if method not in (DEFAULT, *METHODS):
        raise ToposcopeError(f"method {method}: {choices(method, (DEFAULT, *METHODS))}")
    models = _models(models, evaluations)
    ladders, remarks = _ladders(evaluations, tasks, loss, recipe)
    names = [model.name for model in models]
    own = {task: {rung.run: rung for rung in ladder.rungs if rung.run in names} for task, ladder in ladders.items()}
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
    errors = {task: {name: fit.errors(name) for name in fit.names} for task, fit in fits.items()}
    comparable = {task: {name: fit.comparable_errors(name) for name in fit.names} for task, fit in fits.items()}
    weights = weights_of(comparable)
    chosen = choose(comparable, FIRST) if method == DEFAULT else dict.fromkeys(fits, method)
    for task in [task for task, fit in fits.items() if chosen[task] not in fit.names]:
        refusals[task] = f"{method} cannot be fitted to this ladder: it needs a loss and more runs; use another method"
        del fits[task]
    judged = {}
    if fits:
        progress("rungs left out", 0, len(fits))
    for i, (task, fit) in enumerate(fits.items()):
        judged[task] = _left_out(fit, chosen[task], weights)
        progress("rungs left out", i + 1, len(fits))
    misses = [miss for each in judged.values() for miss, _, _ in each]
    predictions, corrected = [], set[str]()
    for model in models:
        for task, ladder in ladders.items():
            if task in fits:
                known = tuple(_with_interval(*each, misses) for each in judged[task])
                found = _Basis(task, fits[task], chosen[task], mean_errors(errors[task]), weights, known)
                own_rung = own[task].get(model.name)
                by_itself = _own_correction(found, model, own_rung)
                corrected |= {model.name} if by_itself is not None else set()
                predictions.append(_predict(found, model, own_rung, by_itself, half_width(misses)))
            else:
                nothing = (np.nan, np.nan, np.nan, refusals[task])
                itself = own[task].get(model.name)
                predictions.append(TaskPrediction(task, ladder.target, model, *nothing, own=itself, ladder=ladder))
    loss_names = {task: ladder.loss_name for task, ladder in ladders.items()}
    remarks += [
        f"{task}: {ladders[task].loss_name} is missing or not positive at the end of {counted(len(runs), 'run')}, such "
        f"as {runs[0]}: no method uses it"
        for task, runs in ((task, fit.without_loss) for task, fit in fits.items())
        if runs
    ]
    remarks += _remarks(models, own, corrected, errors, chosen)
    return DownstreamReport(tuple(predictions), loss_names, (*evaluations.remarks, *remarks))


def _models(models: Sequence[Model | str], evaluations: Evaluations) -> list[Model]:
    if not models:
        raise ToposcopeError("no model to predict; name its parameters N and its tokens D")
    return [model if isinstance(model, Model) else models_of([model], evaluations)[0] for model in models]


def _ladders(
    evaluations: Evaluations, tasks: Sequence[str] | None, loss: str, recipe: str | None
) -> tuple[dict[str, Ladder], list[str]]:
    """Return the ladder of each task, and a remark on each that has none; tasks that were named must have one."""
    named = scored_tasks(evaluations, tasks)
    if tasks:
        return {task: ladder_of(evaluations, task, loss, recipe) for task in named}, []
    ladders, faults = {}, []
    for task in named:
        try:
            ladders[task] = ladder_of(evaluations, task, loss, recipe)
        except ToposcopeError as fault:
            faults.append(str(fault))
    if not ladders:
        raise ToposcopeError(faults[0])
    return ladders, [f"left out: {fault}" for fault in faults]


@dataclass(frozen=True, eq=False)
class _Basis:
    """What predictions of one task rest on."""

    task: str
    fits: TaskFits
    method: str
    errors: Mapping[str, float]
    weights: Mapping[str, float]
    left_out: tuple[LeftOut, ...]


def _left_out(fits: TaskFits, method: str, weights: Mapping[str, float]) -> list[tuple[Miss, LeftOut, float]]:
    """Return each rung that was left out, in each fold whose other runs left chance, with its standard deviation."""
    found = []
    for i, fold in enumerate(fits.folds):
        if not fits.leaves_chance(fold.trained):
            continue
        predicted = fits.predicted(method, fits.ends, weights, i)
        unseen = frozenset(run for run, seen in zip(fits.points.run, fold.trained, strict=True) if not seen)
        for j in np.flatnonzero(fold.predicted & np.isfinite(predicted.score)):
            score, error, true = float(predicted.score[j]), float(predicted.error[j]), float(fits.points.score[j])
            miss = Miss(fits.points.run[j], unseen, abs(score - true) / error)
            N, D = float(fits.points.N[j]), float(fits.points.D[j])
            rung = LeftOut(fits.points.run[j], N, D, method, score, np.nan, np.nan, true, fold.name)
            found.append((miss, rung, error))
    return found


def _with_interval(miss: Miss, rung: LeftOut, error: float, misses: Sequence[Miss]) -> LeftOut:
    """Return a rung left out with the interval that would have been given when it was not known."""
    low, high = interval(rung.predicted, error, half_width(misses, miss.fold))
    return replace(rung, low=low, high=high)


def _own_correction(basis: _Basis, model: Model, own: Rung | None) -> Correction | None:
    """Return what the evaluations of an unfinished run add; None without any, or if the run is finished."""
    if own is None or _share_done(own, model) >= FINISHED:
        return None
    return correction(basis.fits, basis.method, own, model.D)


def _predict(
    basis: _Basis, model: Model, own: Rung | None, by_itself: Correction | None, width: float
) -> TaskPrediction:
    fits, method = basis.fits, basis.method
    place = Places(np.array([model.N]), np.array([model.D]))
    predicted = fits.predicted(method, place, basis.weights)
    score, error = float(predicted.score[0]), float(predicted.error[0])
    refusal = refusal_of_model(fits.points, model.N, model.D)
    refusal = refusal or refusal_of_fit(
        fits.points, fits.points.score - fits.score(method, fits.ends), fits.ladder.target.n
    )
    if by_itself is not None:
        score = float(np.clip(score + by_itself.shift, 0, 1))
        noise = score_error(score, fits.points, fits.ladder.target.n)
        error = float(np.sqrt(noise**2 + by_itself.error**2 + (MOVEMENT_ERROR * (score - by_itself.observed)) ** 2))
    low, high = interval(score, error, width)
    refusal = refusal or refusal_of_width(low, high, fits.chance)
    # A direct method has no link; that of the two stages is drawn beside it.
    staged = method if fits.link(method) is not None else TWO_STAGE
    loss, loss_low, loss_high = fits.loss(staged, place)[:, 0].tolist() if staged in fits.names else [np.nan] * 3
    return TaskPrediction(
        task=basis.task,
        target=fits.ladder.target,
        model=model,
        score=np.nan if refusal else score,
        low=np.nan if refusal else low,
        high=np.nan if refusal else high,
        refusal=refusal,
        loss=loss,
        loss_low=loss_low,
        loss_high=loss_high,
        method=method,
        methods={name: float(fits.score(name, place)[0]) for name in fits.names},
        errors=basis.errors,
        left_out=basis.left_out,
        link=fits.link(staged) if staged in fits.names else None,
        own=own,
        ladder=fits.ladder,
    )


def _share_done(own: Rung, model: Model) -> float:
    known = own.D[np.isfinite(own.score)]
    return float(known[-1] / model.D) if len(known) else 1.0


def _remarks(
    models: Sequence[Model],
    own: Mapping[str, Mapping[str, Rung]],
    corrected: Set[str],
    errors: Mapping[str, Mapping[str, Vector]],
    chosen: Mapping[str, str],
) -> list[str]:
    """Return what was done with the models' own evaluations, and how the methods did on rungs left out."""
    found = []
    for model in models:
        shares = [_share_done(rungs[model.name], model) for rungs in own.values() if model.name in rungs]
        if shares and max(shares) >= FINISHED:
            found.append(f"{model.name} is already evaluated at its end: it is predicted without these evaluations")
        elif shares:
            then = "this corrects its predictions"
            if model.name not in corrected:
                then = "this corrects nothing: too few runs of the ladder were evaluated at that share of theirs"
            found.append(f"{model.name} is evaluated up to {max(shares):.0%} of its tokens; {then}")
    by_method = {name: [of[name] for of in errors.values() if name in of] for name in METHODS}
    pooled = {name: np.concatenate(of) for name, of in by_method.items() if of}
    means = {name: 100 * mean for name, mean in mean_errors(pooled).items() if np.isfinite(mean)}
    if means:
        listed = ", ".join(f"{name} {mean:.1f}" for name, mean in sorted(means.items(), key=lambda item: item[1]))
        found.append(f"mean absolute error on rungs left out, in points: {listed}")
    for name in sorted(set(chosen.values())):
        tasks = [task for task, of in chosen.items() if of == name]
        if len(tasks) < len(chosen):
            found.append(f"{name} predicts {', '.join(tasks)}")
    return found
