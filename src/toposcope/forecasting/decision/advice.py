"""What to do with a budget: what to train, or whether a run in progress should have it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.cooldown import CoolDown
from toposcope.forecasting.decision.calibration import Calibration, calibration_of
from toposcope.forecasting.decision.decision import (
    COOL_DOWN,
    Decision,
    RunInProgress,
    continue_or_scale,
    with_cool_down,
)
from toposcope.forecasting.scaling.frontier import Frontier, approaches
from toposcope.forecasting.scaling.planner import Plan, plan
from toposcope.forecasting.scaling.points import Points, counted_per, points_of_family
from toposcope.forecasting.scaling.scaling_law import RESAMPLES, FittedScalingLaw, scaling_law
from toposcope.forecasting.stored_cooldowns import read_cool_downs
from toposcope.logs import Run, read_log
from toposcope.logs.sizes import with_sizes
from toposcope.progress import Progress, silent
from toposcope.wording import short

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart

# Scaling laws and decisions: docs/methods/scaling.md, docs/decision.md
MAX_SIZE_RATIO = 1.5  # of the best sizes by two approaches, beyond which they part
MAX_STEPS_TO_DECAY = 0.1  # of the steps seen, to a decay that is forecast by its measured gain: near, not at 50%


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do with a budget, and the law that says so."""

    fitted: FittedScalingLaw
    plan: Plan  # the best fresh run of the budget
    decision: Decision | None  # none without a run in progress
    calibration: Calibration | None  # of the probability of the decision; none without one
    # how N* grows with compute, by each approach of Hoffmann et al. 2022 that these points allow, the law first
    frontiers: list[Frontier]
    # where the best size is not identifiable, or another approach gives one far from the law's; a sentence each
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # what was assumed or ignored, a sentence each

    def __repr__(self) -> str:
        if self.decision is not None:
            return f"<Advice: {self.decision.answer}, probability that scaling wins {self.decision.probability:.2f}>"
        N, D, loss = short(self.plan.N.value), short(self.plan.D.value), self.plan.loss.value
        return f"<Advice: {N} parameters on {D} tokens for {self.plan.budget_flops:.3g} FLOP, loss {loss:.3f}>"

    def plot(self) -> "Chart":
        """Draw either way over the budget; without a run in progress, the loss over parameters by budget."""
        from toposcope.forecasting.decision.figure import decision_figure, isoflop_figure

        if self.decision is None:
            return isoflop_figure(self.fitted, self.plan)
        return decision_figure(self.fitted, self.decision)


def decide(
    points: Points | str | Path,
    *,
    budget: float | None = None,
    extra: float | None = None,
    log: Run | str | Path | None = None,
    parameters: float | None = None,
    tokens: float | None = None,
    cool_down: float | None = None,
    measured: Sequence[CoolDown] | str | Path = (),
    family: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Progress = silent,
) -> Advice:
    """Decide what to train with a budget, or whether to continue a run in progress or to train a larger model.

    The scaling law L = E + A / N^alpha + B / D^beta is fitted to the points. Its uncertainty comes from resampled runs
    and from how single runs scatter about it.

    Parameters
    ----------
    points : Points, str or Path
        Losses of earlier runs; a path is a table with columns N, D and loss, perhaps run and family.
    budget : float, optional
        Floating-point operations to train a model with. Give either this or `extra`.
    extra : float, optional
        Floating-point operations for the run in progress or, in its place, for a fresh one.
    log : Run, str or Path, optional
        Of the run in progress.
    parameters, tokens : float, optional
        Of the run in progress, if its log lacks them; the tokens it was trained on so far.
    cool_down : float, optional
        Share of the steps spent on cool-down. Default: 0.2 for points along runs at a constant rate, else 0.
    measured : sequence of CoolDown, str or Path
        What cool-downs of the run from now on would bring: the answers of `toposcope.cooldown`, or the file that
        ``toposcope cooldown --json`` wrote. To cool down now is then a third way to spend the extra compute.
    family : str, optional
        Whose points to fit, where they are of several.
    resamples, seed : int
        Of the bootstrap.
    progress : callable

    Returns
    -------
    Advice

    Raises
    ------
    ToposcopeError
        If the points do not determine a law, arguments do not go together, or a number is out of range.

    Examples
    --------
    >>> from itertools import product
    >>> grid = list(product((5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)))
    >>> N, D = (np.array(axis) for axis in zip(*grid, strict=True))
    >>> points = Points(N, D, 1.8 + 400 / N**0.34 + 2000 / D**0.36)
    >>> decide(points, budget=1e21, resamples=20)
    <Advice: 2.32B parameters on 71.8B tokens for 1e+21 FLOP, loss 2.309>
    """
    if (budget is None) == (extra is None):
        raise ToposcopeError("give either a budget, for what to train, or extra compute, for a run in progress")
    for name, flops in (("budget", budget), ("extra", extra)):
        if flops is not None and not (isfinite(flops) and flops > 0):
            raise ToposcopeError(
                f"{name} {flops:g}: expected a number of floating-point operations above 0, as in 1e21"
            )
    of_a_run = {"log": log, "parameters": parameters, "tokens": tokens, "cool-down": cool_down}
    given = [*(name for name, value in of_a_run.items() if value is not None), *(["measured"] if measured else [])]
    if budget is not None and given:
        raise ToposcopeError(f"{given[0]}: it belongs to a run in progress; give extra compute in place of a budget")
    missing = [name for name in ("parameters", "tokens") if of_a_run[name] is None]
    if extra is not None and log is None and missing:
        raise ToposcopeError(f"{missing[0]} of the run in progress missing; give it, or the log of the run")
    points = points_of_family(points, family)
    cool_downs = read_cool_downs(measured) if isinstance(measured, str | Path) else measured
    run: RunInProgress | None = None
    assumed: list[str] = []
    stale = ""  # why what was measured is none of the run as it is now
    if extra is not None:
        if log is not None and not isinstance(log, Run):
            log = with_sizes(read_log(log))
        N0, D0 = float(parameters or 0), float(tokens or 0)
        if log is not None:
            N0, D0, known = run_of_log(log, points, parameters, tokens)
            assumed = [known, *log.remarks]
        share, reason = cool_down_of(points, log, cool_down)
        run = RunInProgress(N0, D0, extra, share)
        stale = _not_measured_now(cool_downs[0], points, log) if cool_downs else ""
        assumed += [reason, *(beyond_plan(log, run) if log is not None else ())]
    flops = extra if extra is not None else float(budget or 0)
    fitted = scaling_law(points, resamples=resamples, seed=seed, progress=progress)
    law, best = fitted.law, plan(fitted, flops)
    decision = calibration = None
    if run is not None:
        calibration = calibration_of(fitted)
        decision = continue_or_scale(law, fitted.bootstrap, run, calibration)
        if cool_downs and not stale:
            try:
                decision = with_cool_down(decision, law, cool_downs)
            except ToposcopeError as error:
                stale = str(error)
        assumed += [f"the measured cool-down is not weighed: {stale}"] if stale else []
    notes = [*assumed, *points.remarks, *fitted.remarks, *best.remarks]
    if calibration is not None:
        notes.append(
            f"single runs scatter about the law by {calibration.scatter:.3f} nats, as the residuals of "
            f"{len(np.unique(points.run))} runs show; probabilities allow for it"
        )
    frontiers, refused = approaches(fitted, seed=seed)
    notes += [f"no cross-check by {name}: {reason}" for name, reason in refused.items()]
    return Advice(
        fitted=fitted,
        plan=best,
        decision=decision,
        calibration=calibration,
        frontiers=frontiers,
        warnings=(*([best.undetermined] if best.undetermined else ()), *_disagreements(frontiers, best)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _disagreements(frontiers: Sequence[Frontier], plan: Plan) -> Iterator[str]:
    """Yield a sentence for each approach whose best size for the budget is far from the law's."""
    law, *others = frontiers
    names = {"parabolas": "parabolas through points of equal compute", "envelope": "the lower envelope of the curves"}
    for each in others:
        size = each.optimal_parameters(plan.budget_flops)
        if abs(np.log(size / plan.N.value)) > np.log(MAX_SIZE_RATIO):
            yield (
                f"Law and {each.approach} part: by {names[each.approach]} the best size for this budget is "
                f"{short(size)} parameters (N* ~ C^{each.a.value:.2f}), by the law {short(plan.N.value)} "
                f"(N* ~ C^{law.a.value:.2f}); so far apart, neither is reliable."
            )


def cool_down_of(points: Points, log: Run | None = None, declared: float | None = None) -> tuple[float, str]:
    """Return the share of the steps that either arm spends on cool-down, and a sentence on why.

    Points along runs are losses before a cool-down, unless the run has begun it: both arms then need one. Where each
    point is the end of a run, the tokens of its cool-down are among its tokens.
    """
    if declared is not None:
        return declared, f"the cool-down takes {100 * declared:.0f}% of the steps of either arm, as declared"
    if len(points) == len(np.unique(points.run)):
        return 0.0, (
            "each point is the end of a run, taken to be annealed: tokens of the cool-down are among the tokens of "
            "either arm, and no others are set aside"
        )
    if log is not None and _is_decaying(log):
        return 0.0, "the learning rate of the run falls already: no further cool-down is set aside"
    return COOL_DOWN, (
        f"points lie along runs at constant rate: {100 * COOL_DOWN:.0f}% of the steps of either arm are its cool-down, "
        "whose tokens count half; losses are those before the drop at its end, which is taken as equal on both arms"
    )


def _not_measured_now(measured: CoolDown, points: Points, log: Run | None) -> str:
    """Return why a measured cool-down is none of the run as it is now; empty if it is one."""
    if any("per byte" in remark for remark in points.remarks):
        return "it is in nats per token, the points are in nats per byte"
    if log is None:
        return ""
    if _is_decaying(log):
        return "the learning rate of the run falls already"
    if not (1 - MAX_STEPS_TO_DECAY) * log.last_seen <= measured.step <= (1 + MAX_STEPS_TO_DECAY) * log.last_seen:
        return (
            f"it was measured at step {measured.step:,}, and the log ends at step {log.last_seen:,}: measure it there"
        )
    return ""


def beyond_plan(log: Run, run: RunInProgress) -> tuple[str, ...]:
    """Return a sentence if the budget goes beyond the schedule that the run was planned with; else nothing."""
    planned = np.nan if log.last_step is None else log.tokens_per_step * log.last_step
    end = run.tokens_if_continued
    if not planned < end:
        return ()
    beyond = f"the run is planned to {short(planned)} tokens, the budget takes it to {short(end)}: "
    if _is_decaying(log):
        return (beyond + "its learning rate falls already, and what it costs to raise it again is not in the law",)
    return (beyond + "its schedule has to be stretched to there",)


def _is_decaying(log: Run) -> bool:
    rates = log.learning_rate[np.isfinite(log.learning_rate)]
    return len(rates) > 1 and bool(rates[-1] < 0.99 * rates.max() and rates.argmax() < len(rates) - 1)


def run_of_log(log: Run, points: Points, parameters: float | None, tokens: float | None) -> tuple[float, float, str]:
    """Return N0 and D0 of a run, from its log or as declared, and a sentence on what is known of it."""
    if log.diverged is not None:
        raise ToposcopeError(
            f"{log.name}: {log.diverged}; there is nothing to continue but a checkpoint from before that: give the log "
            "up to there"
        )
    N0 = log.parameters if parameters is None else parameters
    D0 = log.tokens_per_step * float(log.last_seen) if tokens is None else tokens
    for what, option, value in (("parameters", "--parameters", N0), ("tokens", "--tokens", D0)):
        if not value > 0:
            raise ToposcopeError(
                f"{log.name}: {what} of the run unknown from its log and what lies next to it; give {option}"
            )
    each = next((each for each in ("byte", "character") if f"losses are per {each}" in points.remarks), "token")
    if counted_per(log.unit) != each:
        raise ToposcopeError(
            f"{log.name}: its loss is in {log.unit}, that of the points in nats per {each}; they cannot be compared"
        )
    families = {family for family in points.family.tolist() if family}
    if log.family and families and log.family not in families:
        raise ToposcopeError(f"{log.name}: of family {log.family}, the points of {', '.join(sorted(families))}")
    known = f"{log.name}: {short(N0)} parameters, {short(D0)} tokens so far"
    if not (log.family and families):
        known += "; whether it shares data, tokenizer and recipe with the points, as the law assumes, is unknown"
    return N0, D0, known
