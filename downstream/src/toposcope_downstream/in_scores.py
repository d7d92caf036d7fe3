"""Losses that are predicted elsewhere, in scores of tasks: the arms of a decision, the final loss of a forecast."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.extend import (
    NORMAL_WIDTH,
    Advice,
    FittedScalingLaw,
    ForecastReport,
    Matrix,
    ToposcopeError,
    Vector,
    calibration_of,
    choices,
    continued,
    derive_seed,
    scaled,
    target_of,
)
from toposcope_downstream.evaluations import Evaluations, read_evaluations
from toposcope_downstream.ladder import endpoints, ladder_of, losses_for, scored_tasks
from toposcope_downstream.score_link import ArmScore, TaskScores, score_link, scores_dicts, task_scores

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
MAX_MISMATCH, MAX_NAMED_MISMATCH = 0.05, 0.2  # of the ladder's losses from the law of the points; if the user names it

SEED = 0


@dataclass(frozen=True, eq=False)
class AdviceInTasks:
    """What is advised, in scores."""

    tasks: tuple[TaskScores, ...]  # their arms are the continued run and the fresh one, or the planned model alone
    remarks: tuple[str, ...]

    @property
    def arms(self) -> tuple[ArmScore, ...]:
        """The arms of all tasks."""
        return tuple(arm for task in self.tasks for arm in task.arms)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each task and arm."""
        return scores_dicts(self.tasks)


def in_tasks(
    advice: Advice,
    evaluations: Evaluations | str | Path,
    *,
    tasks: Sequence[str] | None = None,
    loss: str = "",
    recipe: str | None = None,
) -> AdviceInTasks:
    """Put the losses of an advice into scores of tasks, with the errors of the law and of the link."""
    evaluations, recipes = _read(evaluations)
    families = {str(family) for family in advice.fitted.points.family}
    if recipe is None and len(recipes) > 1 and len(families) == 1 and families < set(recipes):
        (recipe,) = families
    models, draws = _losses(advice)
    found, remarks = [], []
    for task in scored_tasks(evaluations, tasks):
        name, off = _loss_of_points(advice.fitted, evaluations, task, loss, recipe)
        link = score_link(ladder_of(evaluations, task, name, recipe), task, SEED)
        found.append(task_scores(link, models, draws, SEED))
        if off > MAX_MISMATCH:
            remarks.append(f"{name} is {off:.0%} from the loss of the points at equal N and D: is it the same loss?")
    judged = sum(each.link.judged for each in found)
    if judged:
        held = sum(each.link.held for each in found)
        remarks.append(f"scores of {held} of {judged} held-out runs lie within the 90% intervals of their links")
    return AdviceInTasks(tuple(found), tuple(dict.fromkeys((*evaluations.remarks, *remarks))))


def _read(evaluations: Evaluations | str | Path) -> tuple[Evaluations, list[str]]:
    read = evaluations if isinstance(evaluations, Evaluations) else read_evaluations(evaluations)
    return read, read.table["recipe"].unique().to_list()


def _losses(advice: Advice) -> tuple[list[tuple[str, float, float, float]], Matrix]:
    """Return the models with their losses, and draws of these: laws of the bootstrap, with the scatter of runs."""
    fitted, decision = advice.fitted, advice.decision
    calibration = calibration_of(fitted)
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:400] or [fitted.law]
    if decision is not None:
        ways = (("continue the run", decision.continued, continued), ("best fresh run", decision.scaled, scaled))
        models = [(name, arm.parameters, arm.tokens, arm.loss) for name, arm, _ in ways]
        drawn = np.array([[way(law, decision.run).loss for law in laws] for _, _, way in ways])
    else:
        plan = advice.plan
        models = [("best fresh run", plan.N.value, plan.D.value, plan.loss.value)]
        drawn = np.array([[float(law.loss(plan.N.value, plan.D.value)) for law in laws]])
    random = np.random.default_rng(derive_seed(SEED, "decision", "in tasks"))
    middle = np.median(drawn, axis=1, keepdims=True)
    scatter = calibration.scatter * random.standard_t(calibration.degrees_of_freedom, drawn.shape)
    return models, np.maximum(middle + calibration.narrowing * (drawn - middle) + scatter, 1e-6)


def _loss_of_points(
    fitted: FittedScalingLaw, evaluations: Evaluations, task: str, named: str, recipe: str | None
) -> tuple[str, float]:
    """Return the loss of the evaluations that the points are of, and how far it is from the law of the points."""
    off = {
        name: _mismatch(fitted, evaluations, task, name, recipe)
        for name in ([named] if named else chain(*losses_for(evaluations, task)))
    }
    known = {name: value for name, value in off.items() if np.isfinite(value)}
    if not known:
        raise ToposcopeError(
            f"task {task}: no loss in the evaluations to link it to; add the loss that the points are of"
        )
    best = min(known, key=lambda name: known[name])
    if known[best] > (MAX_NAMED_MISMATCH if named else MAX_MISMATCH):
        raise ToposcopeError(
            f"task {task}: no loss of the evaluations is that of the points; the nearest, {best}, is "
            f"{known[best]:.0%} away from the law of the points at equal N and D"
            + ("" if named else "; name it with --loss, or evaluate the loss that the points are of")
        )
    return best, known[best]


def _mismatch(fitted: FittedScalingLaw, evaluations: Evaluations, task: str, name: str, recipe: str | None) -> float:
    points = endpoints(ladder_of(evaluations, task, name, recipe))
    known = np.isfinite(points.loss) & (points.loss > 0)
    if not known.any():
        return float("inf")
    expected = fitted.law.loss(points.N[known], points.D[known])
    return float(np.median(np.abs(np.log(points.loss[known] / expected))))


def forecast_in_tasks(
    report: ForecastReport,
    evaluations: Evaluations | str | Path,
    *,
    tasks: Sequence[str] | None = None,
    loss: str = "",
    recipe: str | None = None,
) -> tuple[TaskScores, ...]:
    """Return the scores that a forecast run will end with, with the errors of the forecast and of the link.

    A run that diverged has none.
    """
    if report.log.diverged is not None:
        return ()
    evaluations, recipes = _read(evaluations)
    if recipe is None and len(recipes) > 1 and report.log.family in recipes:
        recipe = report.log.family
    found: list[TaskScores] = []
    for task in scored_tasks(evaluations, tasks):
        name = loss or _only_loss(evaluations, task)
        ladder = ladder_of(evaluations, task, name, recipe)
        factor = _factor(report, name)
        draws = factor * _final_losses(report)
        log = report.log
        model = (log.name, log.parameters, log.tokens_per_step * report.schedule.last_step, factor * report.loss)
        found.append(task_scores(score_link(ladder, task, SEED), [model], draws[None], SEED))
    return tuple(found)


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
    if theirs.endswith("per byte") and not unit.endswith("per byte"):
        raise ToposcopeError(f"{report.log.name}: its loss is in {unit}, that of the ladder ({name}) in {theirs}")
    # nats is what no name states: the log's unit holds
    return float(1 / np.log(2)) if theirs.startswith("bits") and not unit.startswith("bits") else 1.0


def _final_losses(report: ForecastReport) -> Vector:
    """Return draws of the final loss: normal to either side, as wide as the forecast's interval."""
    standard = np.random.default_rng(derive_seed(SEED, "forecast", "scores")).standard_normal(2000)
    low, high = report.interval
    if not np.isfinite(low):
        error = report.log.final_loss()[1]
        return np.maximum(report.loss + (error if np.isfinite(error) else 0.0) * standard, 1e-6)
    side = np.where(standard < 0, report.loss - low, high - report.loss) / NORMAL_WIDTH
    return np.maximum(report.loss + side * standard, 1e-6)
