"""What a rule may know of the logged runs of a sweep."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.rule import loss_at
from toposcope.forecasting.sweeps.sweep import SHARES, SweepRun, configuration_of
from toposcope.logs import Run, final_training_loss
from toposcope.logs.caching import cached
from toposcope.logs.schedules.declared import plan_of, read_declared
from toposcope.logs.schedules.schedule import Schedule, planned
from toposcope.logs.table import ByStep

MEAN_OVER = 0.1  # of the steps up to a share: the training loss there is the mean of their rows
TRAINING, VALIDATION = "training", "validation"


class InSweep(NamedTuple):
    """A run as it was logged, and whether it goes on."""

    name: str
    run: Run
    goes_on: bool


def sweep_runs(runs: Sequence[InSweep], schedule: str = "", last_step: int | None = None) -> list[SweepRun]:
    """Return what a rule may know of runs.

    They are compared by validation loss where at least half of them log it, else by training loss.

    Parameters
    ----------
    runs : sequence of InSweep
    schedule : str
        Of the runs whose schedule their own log does not show, such as ``wsd:decay=0.2``.
    last_step : int, optional
        Of the runs whose log does not state it.

    Returns
    -------
    list of SweepRun
        In the same order.

    Raises
    ------
    ToposcopeError
        If the declared schedule is invalid.
    """
    if schedule:
        read_declared(schedule)
    kind = loss_kind(runs)
    units = [each.run.unit for each in runs]
    unit = max(dict.fromkeys(units), key=units.count, default="")
    sizes = np.array([[each.run.parameters, each.run.tokens_per_step] for each in runs]).reshape(-1, 2)
    costs = sizes.prod(axis=1) if np.isfinite(sizes).all() else np.ones(len(runs))
    found = []
    for each, cost in zip(runs, costs.tolist(), strict=True):
        key = "sweep run", kind, schedule, last_step
        one = cached(each.run, None, key, partial(_sweep_run, each.run, kind, schedule, last_step))
        wrong = f"the loss is in {each.run.unit}, that of most runs in {unit}" if each.run.unit != unit else ""
        one = replace(one, name=each.name, configuration=configuration_of(each.name), goes_on=each.goes_on)
        found.append(replace(one, cost=cost, unknown=one.unknown or wrong))
    return found


def loss_kind(runs: Sequence[InSweep]) -> str:
    """Return by which loss runs are compared."""
    return VALIDATION if 2 * sum(each.run.validation is not None for each in runs) >= len(runs) else TRAINING


def _sweep_run(run: Run, kind: str, declared: str, last_step: int | None) -> SweepRun:
    finished = run.is_complete and run.diverged is None
    last = run.last_step or (run.last_seen if finished else last_step)
    curve = run.validation if kind == VALIDATION else run.training
    unknown = ""
    if last is None:
        unknown = "how many steps are planned is not logged; give them with --steps"
    elif curve is None:
        unknown = f"no {kind} loss is logged"
    elif run.need_not_fall:
        unknown = f"the loss need not fall where training goes well ({run.need_not_fall})"
    seen = SweepRun(run.name, run.name, run.last_seen, last, 0, {}, {}, finished=finished, unknown=unknown)
    if unknown or last is None or curve is None:
        return seen
    losses = {}
    for share in SHARES:
        at = share * last
        loss = math.inf if run.diverged and run.diverged.step <= at else _loss(curve, at, kind, run.last_seen)
        if not math.isnan(loss) and run.last_seen >= at:
            losses[share] = loss
    ended = (curve.values[-1] if kind == VALIDATION else final_training_loss(*curve)[0]) if finished else math.nan
    seen = replace(seen, losses=losses, final=float(ended))
    plan, why = _schedule(run, declared, last)
    if plan is None:
        return replace(seen, unknown_schedule=why)
    return replace(seen, warm_up=plan.warm_up, decay_left=decays_left(plan))


def _loss(curve: ByStep, at: float, kind: str, seen: int) -> float:
    """Return a loss at a step: evaluated there, or of a training loss the mean of the rows up to there."""
    if kind == VALIDATION:
        return loss_at(*curve, at)
    rows = (curve.steps > (1 - MEAN_OVER) * at) & (curve.steps <= at)
    return float(curve.values[rows].mean()) if rows.any() and seen >= at else loss_at(*curve, at)


def _schedule(run: Run, declared: str, last: int) -> tuple[Schedule | None, str]:
    """Return the schedule of a run if its own log shows it or it was declared, else why it is not known."""
    try:
        plan = planned(run, last_step=last)
        if plan.origin not in ("logged", "recognised") and declared:
            plan = planned(run, declared, last)
    except ToposcopeError as error:
        return None, str(error).removeprefix(f"{run.name}: ")
    if plan.origin == "unknown":
        return None, "no learning rate is logged; declare the schedule with --schedule, or choose another --risk"
    if plan.origin == "held":
        return None, "how the learning rate goes on is not known yet; declare it with --schedule"
    return plan, ""


def decays_left(schedule: Schedule) -> dict[float, float]:
    """Return what the rate is above that at the end, over the peak, at the shares that rules look at."""
    rates = schedule.rates
    return {share: float(rates[round(share * schedule.last_step)] - rates[-1]) / schedule.peak for share in SHARES}


def declared_schedule(text: str, last_step: int) -> Schedule:
    """Return a schedule as it was declared, of a run of which no learning rate is logged."""
    plan = plan_of(read_declared(text), None, last_step, [])
    return Schedule(plan(np.arange(last_step + 1)), origin="declared", end="declared")
