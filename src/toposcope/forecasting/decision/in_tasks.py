"""A decision in the units of tasks: the scores that a run, a larger model or a planned one would reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.advice import Advice
from toposcope.forecasting.decision.calibration import calibration_of
from toposcope.forecasting.decision.decision import continued, scaled
from toposcope.forecasting.downstream.ladder import endpoints, ladder_of, losses_for, scored_tasks
from toposcope.forecasting.downstream.score_link import TaskScores, score_link, task_scores
from toposcope.forecasting.scaling.scaling_law import FittedScalingLaw
from toposcope.logs.evaluations import Evaluations, read_evaluations
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix

MAX_MISMATCH, MAX_NAMED_MISMATCH = 0.05, 0.2
"""Relative difference, in the middle of the ladder's runs, between their losses and those that the law of the points
gives such runs: beyond the first a loss is not that of the points, beyond the second not even if the user says so."""
MAX_LAWS = 400
"""Laws of the bootstrap that losses are drawn from."""


@dataclass(frozen=True, eq=False)
class AdviceInTasks:
    """What is advised, in scores.

    Attributes
    ----------
    tasks : tuple of TaskScores
        Their arms are the continued run and the fresh one, or the planned model alone.
    remarks : tuple of str
    """

    tasks: tuple[TaskScores, ...]
    remarks: tuple[str, ...]


def in_tasks(
    advice: Advice,
    evaluations: Evaluations | str | Path,
    *,
    tasks: Sequence[str] | None = None,
    loss: str = "",
    recipe: str | None = None,
    seed: int = 0,
) -> AdviceInTasks:
    """Put the losses of an advice into scores of tasks, with the errors of the law and of the link.

    Parameters
    ----------
    advice : Advice
    evaluations : Evaluations, str or Path
        Of a ladder of runs: scores of tasks, and the loss that the points are of.
    tasks : sequence of str, optional
        All by default.
    loss : str
        The loss of the evaluations that is that of the points; by default the one whose values agree with the law.
    recipe : str, optional
        Needed where the evaluations hold several.
    seed : int

    Raises
    ------
    ToposcopeError
        If a task, loss or recipe is unknown, or no loss of the evaluations is that of the points.
    """
    if not isinstance(evaluations, Evaluations):
        evaluations = read_evaluations(evaluations)
    recipes = evaluations.table["recipe"].unique().to_list()
    recipe = recipe if recipe in recipes or len(recipes) > 1 else None
    models, draws = _losses(advice, seed)
    found, remarks = [], []
    for task in scored_tasks(evaluations, tasks):
        name, off = _loss_of_points(advice.fitted, evaluations, task, loss, recipe)
        link = score_link(ladder_of(evaluations, task, name, recipe), task, seed)
        found.append(task_scores(link, models, draws, seed))
        if off > MAX_MISMATCH:
            remarks.append(f"{name} is {off:.0%} from the loss of the points at equal N and D: is it the same loss?")
    judged = sum(each.link.judged for each in found)
    if judged:
        held = sum(each.link.held for each in found)
        remarks.append(f"scores of {held} of {judged} runs left out lie within the 90% intervals of their links")
    return AdviceInTasks(tuple(found), tuple(dict.fromkeys((*evaluations.remarks, *remarks))))


def _losses(advice: Advice, seed: int) -> tuple[list[tuple[str, float, float, float]], Matrix]:
    """Return the models with their losses, and draws of these: laws of the bootstrap, with the scatter of runs."""
    fitted, decision = advice.fitted, advice.decision
    calibration = calibration_of(fitted)
    laws = [law for law in fitted.bootstrap if law.A > 0 and law.B > 0][:MAX_LAWS] or [fitted.law]
    if decision is not None:
        ways = (("continue the run", decision.continued, continued), ("best fresh run", decision.scaled, scaled))
        models = [(name, arm.parameters, arm.tokens, arm.loss) for name, arm, _ in ways]
        drawn = np.array([[way(law, decision.run).loss for law in laws] for _, _, way in ways])
    else:
        plan = advice.plan
        models = [("best fresh run", plan.N.value, plan.D.value, plan.loss.value)]
        drawn = np.array([[float(law.loss(plan.N.value, plan.D.value)) for law in laws]])
    random = np.random.default_rng(derive_seed(seed, "decision", "in tasks"))
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
