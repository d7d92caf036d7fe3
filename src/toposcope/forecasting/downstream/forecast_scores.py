"""The score of a task that a run in progress will end with: from the forecast of its final loss."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from toposcope.errors import ToposcopeError, choices
from toposcope.forecasting.downstream.held_out import NORMAL
from toposcope.forecasting.downstream.ladder import ladder_of, losses_for, scored_tasks
from toposcope.forecasting.downstream.score_link import TaskScores, score_link, task_scores
from toposcope.forecasting.forecast_report import ForecastReport
from toposcope.logs.columns import target_of
from toposcope.logs.evaluations import Evaluations, read_evaluations
from toposcope.seeds import derive_seed
from toposcope.typing import Vector

N_DRAWS = 2000
"""Of the final loss."""


def with_scores(
    report: ForecastReport,
    evaluations: Evaluations | str | Path,
    *,
    tasks: Sequence[str] | None = None,
    loss: str = "",
    recipe: str | None = None,
    seed: int = 0,
) -> ForecastReport:
    """Add to a forecast the scores that the run will end with, with the errors of the forecast and of the link.

    Parameters
    ----------
    report : ForecastReport
        Of the run's loss.
    evaluations : Evaluations, str or Path
        Of a ladder of other runs: scores of the tasks and the loss that the log is of.
    tasks : sequence of str, optional
        All by default.
    loss : str
        The loss of the evaluations that is that of the log; needed where they hold several.
    recipe : str, optional
        Needed where the evaluations hold several; by default the family of the log if it is one of them.
    seed : int

    Returns
    -------
    ForecastReport
        With ``scores``; of a run that diverged without.

    Raises
    ------
    ToposcopeError
        If a task, loss or recipe is unknown, or the losses are in units that cannot be compared.
    """
    if report.log.diverged is not None:
        return report
    if not isinstance(evaluations, Evaluations):
        evaluations = read_evaluations(evaluations)
    recipes = evaluations.table["recipe"].unique().to_list()
    if recipe is None and len(recipes) > 1 and report.log.family in recipes:
        recipe = report.log.family
    found: list[TaskScores] = []
    for task in scored_tasks(evaluations, tasks):
        name = loss or _only_loss(evaluations, task)
        ladder = ladder_of(evaluations, task, name, recipe)
        factor = _factor(report, name)
        draws = factor * _final_losses(report, seed)
        log = report.log
        model = (log.name, log.parameters, log.tokens_per_step * report.schedule.last_step, factor * report.loss)
        found.append(task_scores(score_link(ladder, task, seed), [model], draws[None], seed))
    return replace(report, scores=tuple(found))


def _only_loss(evaluations: Evaluations, task: str) -> str:
    corpora, own = losses_for(evaluations, task)
    if len(corpora) == 1:
        return corpora[0]
    offered = corpora or own
    if not offered:
        raise ToposcopeError(f"task {task}: the evaluations have no loss; add the loss that the log is of")
    raise ToposcopeError(
        f"task {task}: name the loss of the evaluations that the log is of (--loss); {choices('', offered)}"
    )


def _factor(report: ForecastReport, name: str) -> float:
    """Return what turns losses of the log into the unit that the name of the ladder's loss states."""
    unit, theirs = report.log.unit, target_of(name).unit
    if theirs.endswith("per byte") != unit.endswith("per byte") and theirs.endswith("per byte"):
        raise ToposcopeError(f"{report.log.name}: its loss is in {unit}, that of the ladder ({name}) in {theirs}")
    if not theirs.startswith("bits") and not unit.startswith("bits"):
        return 1.0
    if not theirs.startswith("bits"):  # nats is what no name states: the log's unit holds
        return 1.0
    return 1.0 if unit.startswith("bits") else float(1 / np.log(2))


def _final_losses(report: ForecastReport, seed: int) -> Vector:
    """Return draws of the final loss: normal to either side, as wide as the forecast's interval."""
    random = np.random.default_rng(derive_seed(seed, "forecast", "scores"))
    standard = random.standard_normal(N_DRAWS)
    low, high = report.interval
    if not np.isfinite(low):
        error = report.log.final_loss()[1]
        return np.maximum(report.loss + (error if np.isfinite(error) else 0.0) * standard, 1e-6)
    side = np.where(standard < 0, report.loss - low, high - report.loss) / NORMAL
    return np.maximum(report.loss + side * standard, 1e-6)
