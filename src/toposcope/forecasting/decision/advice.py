"""All that is said to who has a budget: what to train with it, and whether a run in progress should have it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.decision.decision import COOL_DOWN, Decision, RunInProgress, decide
from toposcope.forecasting.decision.equal_flop_pairs import Learnt, learn_calibration
from toposcope.forecasting.scaling.frontier import Frontier, approaches
from toposcope.forecasting.scaling.inference import InferencePlan, best_for_budget
from toposcope.forecasting.scaling.planner import OverTraining, Plan, over_training, plan
from toposcope.forecasting.scaling.repeated_data import RepeatedPlan, plan_repeated
from toposcope.forecasting.scaling.scaling_law import RESAMPLES, FittedLaw, fit_scaling_law
from toposcope.forecasting.wording import short
from toposcope.logs import Log
from toposcope.logs.points import Points
from toposcope.progress import Progress, silent

STEADY = 0.99
"""Share of its peak above which a learning rate has not begun to fall."""


@dataclass(frozen=True)
class Wishes:
    """What else is to be told of a budget; None for what is not.

    Attributes
    ----------
    inference_tokens : float or None
        To be read or written over the model's life.
    unique_tokens : float or None
        Of the data, which are read again where they do not suffice.
    over_training : float or None
        How many times smaller than the compute-optimal one the model should be.
    """

    inference_tokens: float | None = None
    unique_tokens: float | None = None
    over_training: float | None = None


@dataclass(frozen=True, eq=False)
class Advice:
    """The answer.

    Attributes
    ----------
    fitted : FittedLaw
    plan : Plan
        The best fresh run of the budget.
    decision : Decision or None
        None without a run in progress.
    learnt : Learnt or None
        How sure the decision may be; None without one.
    over_training, repeated, inference
        What was wished for; else None.
    frontiers : list of Frontier
        How N* grows with compute by each approach of Hoffmann et al. 2022 that can be taken, the law first.
    notes : tuple of str
        What was assumed or ignored, a sentence each.
    """

    fitted: FittedLaw
    plan: Plan
    decision: Decision | None
    learnt: Learnt | None
    over_training: OverTraining | None
    repeated: RepeatedPlan | None
    inference: InferencePlan | None
    frontiers: list[Frontier]
    notes: tuple[str, ...]


def advise(
    points: Points,
    budget: float,
    run: RunInProgress | None = None,
    wishes: Wishes | None = None,
    *,
    notes: Sequence[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Progress = silent,
) -> Advice:
    """Fit the scaling law to points and answer by it.

    Parameters
    ----------
    points : Points
        Of one family.
    budget : float
        Floating-point operations; those of the run in progress if there is one.
    run : RunInProgress, optional
    wishes : Wishes, optional
    notes : sequence of str
        What was assumed before.
    resamples, seed : int
        Of the bootstrap.
    progress : callable

    Raises
    ------
    ToposcopeError
        If the points tell no law, or a number makes no sense.
    """
    fitted = fit_scaling_law(points, resamples=resamples, seed=seed, progress=progress)
    planned = plan(fitted, budget)
    learnt = learn_calibration(points, seed) if run is not None else None
    decision = None
    if run is not None and learnt is not None:
        decision = decide(fitted.law, fitted.bootstrap, run, learnt.calibration)
    law, wishes = fitted.law, wishes or Wishes()
    unique, served, k = wishes.unique_tokens, wishes.inference_tokens, wishes.over_training
    repeated = plan_repeated(law, budget, unique) if unique is not None else None
    told = [*notes, *points.remarks, *fitted.remarks, *planned.remarks, *(repeated.remarks if repeated else ())]
    if learnt is not None:
        told.append(learnt.remark)
    frontiers, refused = approaches(fitted, seed=seed)
    told += [f"no cross-check by {name}: {why}" for name, why in refused.items()]
    return Advice(
        fitted=fitted,
        plan=planned,
        decision=decision,
        learnt=learnt,
        over_training=over_training(law, budget, k) if k is not None else None,
        repeated=repeated,
        inference=best_for_budget(law, budget, served) if served is not None else None,
        frontiers=frontiers,
        notes=tuple(dict.fromkeys(told)),
    )


def cool_down_of(points: Points, log: Log | None = None, declared: float | None = None) -> tuple[float, str]:
    """Return the share of the steps that the cool-down takes on either arm, and why, as a sentence.

    Points that lie along runs are of losses before a cool-down, unless the runs had begun theirs: both arms then need
    one. Points of one for a run are of its end, and the law counts the tokens of the cool-down as they are.
    """
    if declared is not None:
        return declared, f"the cool-down takes {100 * declared:.0f}% of the steps of either arm, as declared"
    if len(points) == len(np.unique(points.run)):
        return 0.0, (
            "each point is the end of a run, taken to be annealed: tokens of the cool-down are among the tokens of "
            "either arm, and no others are set aside"
        )
    if log is not None and _falls(log):
        return 0.0, "the learning rate of the run falls already: no further cool-down is set aside"
    return COOL_DOWN, (
        f"points lie along runs at constant rate: {100 * COOL_DOWN:.0f}% of the steps of either arm are its cool-down, "
        "whose tokens count half; losses are told before the drop at its end, which is taken as equal on both arms"
    )


def beyond_plan(log: Log, run: RunInProgress) -> tuple[str, ...]:
    """Return, as a sentence, that the budget goes beyond the schedule that the run was planned with; else nothing."""
    planned = np.nan if log.last_step is None else log.tokens_per_step * log.last_step
    end = run.tokens_if_continued
    if not planned < end:
        return ()
    told = f"the run is planned to {short(planned)} tokens, the budget takes it to {short(end)}: "
    if _falls(log):
        return (told + "its learning rate falls already, and what it costs to raise it again is not in the law",)
    return (told + "its schedule has to be stretched to there",)


def _falls(log: Log) -> bool:
    rates = log.learning_rate[np.isfinite(log.learning_rate)]
    return len(rates) > 1 and bool(rates[-1] < STEADY * rates.max() and rates.argmax() < len(rates) - 1)


def run_of_log(log: Log, points: Points, parameters: float | None, tokens: float | None) -> tuple[float, float, str]:
    """Return N0 and D0 of a run, from its log or as declared, and what is not known of it, as a sentence.

    Raises
    ------
    ToposcopeError
        If nothing tells N0 or D0, or the run cannot be compared with the points.
    """
    N0 = log.parameters if parameters is None else parameters
    D0 = log.tokens_per_step * float(log.steps[-1]) if tokens is None else tokens
    for what, option, value in (("parameters", "--parameters", N0), ("tokens", "--tokens", D0)):
        if not value > 0:
            raise ToposcopeError(f"{log.name}: the log does not tell the run's {what}; give {option}")
    per_byte = any("per byte" in remark for remark in points.remarks)
    if log.unit.endswith("per byte") != per_byte:
        raise ToposcopeError(
            f"{log.name}: its loss is in {log.unit}, that of the points in nats per {'byte' if per_byte else 'token'}; "
            "they cannot be compared"
        )
    families = {family for family in points.family.tolist() if family}
    if log.family and families and log.family not in families:
        raise ToposcopeError(f"{log.name}: of family {log.family}, the points of {', '.join(sorted(families))}")
    known = f"{log.name}: {short(N0)} parameters, {short(D0)} tokens so far"
    if not (log.family and families):
        known += "; nothing tells whether it shares data, tokenizer and recipe with the points, which the law is of"
    return N0, D0, known
