"""What a rule may know of the logged runs of a sweep."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.forecasting.sweeps.rule import AFTER_WARM_UP, RULES
from toposcope.forecasting.sweeps.sweep import SweepRun, configuration_of
from toposcope.logs import Run
from toposcope.logs.caching import cached
from toposcope.logs.columns import compares_validation
from toposcope.logs.schedules.logged import logged_rates
from toposcope.logs.schedules.recognised import warm_up_end
from toposcope.logs.table import ByStep

N_BLOCKS = 50  # of a run's planned steps: training losses are means over each
TRAINING, VALIDATION = "training", "validation"


class InSweep(NamedTuple):
    """A run as it was logged, and whether it goes on."""

    name: str
    run: Run
    goes_on: bool


def sweep_runs(runs: Sequence[InSweep]) -> list[SweepRun]:
    """Return what a rule may know of runs.

    They are compared by validation loss where at least half of them log it, else by training loss; those of one family
    and unit with each other.

    Parameters
    ----------
    runs : sequence of InSweep

    Returns
    -------
    list of SweepRun
        In the same order.
    """
    kind = VALIDATION if compares_validation([each.run.validation is not None for each in runs]) else TRAINING
    sizes = np.array([[each.run.parameters, each.run.tokens_per_step] for each in runs]).reshape(-1, 2)
    costs = sizes.prod(axis=1) if np.isfinite(sizes).all() else np.ones(len(runs))
    found = []
    for each, cost in zip(runs, costs.tolist(), strict=True):
        one = cached(each.run, None, ("sweep run", kind), partial(_sweep_run, each.run, kind))
        configuration = configuration_of(each.name)
        found.append(replace(one, name=each.name, configuration=configuration, goes_on=each.goes_on, cost=cost))
    return found


def _sweep_run(run: Run, kind: str) -> SweepRun:
    last = run.last_step or (run.last_seen if run.is_complete and run.diverged is None else None)
    curve = run.validation if kind == VALIDATION else run.training
    unknown = ""
    if last is None:
        unknown = "how many steps are planned is not logged; give them with --steps"
    elif curve is None:
        unknown = f"no {kind} loss is logged"
    elif run.need_not_fall:
        unknown = "the loss need not fall where training goes well"
    if last is None or curve is None:
        curve = ByStep(run.steps[:0], run.loss[:0])
    elif kind == TRAINING:
        curve = in_blocks(curve, last)
    later = curve.steps > 0
    steps, losses = curve.steps[later], curve.values[later]
    warm_up = _warm_up(run)
    if run.diverged is not None and last is not None and not unknown and not _may_fall_again(run, last, warm_up):
        sound = steps < run.diverged.step
        end = max(run.last_seen, run.diverged.step, *steps[sound][-1:] + 1)
        steps, losses = np.append(steps[sound], end), np.append(losses[sound], math.inf)
    return SweepRun(
        run.name, run.name, steps, losses, last, warm_up,
        group=f"{run.family}, {run.unit}", reached=int(run.last_seen), unknown=unknown,
    )  # fmt: skip


def _may_fall_again(run: Run, last_step: int, warm_up: int) -> bool:
    """Return whether a run that diverged has only risen so far, in its warm-up or before runs are compared."""
    is_number = run.diverged is not None and run.steps[-1] >= run.diverged.step and bool(np.isfinite(run.loss[-1]))
    return is_number and run.last_seen < max(AFTER_WARM_UP * warm_up, RULES["low"].shares[0] * last_step)


def in_blocks(curve: ByStep, last_step: int) -> ByStep:
    """Return the means of a loss over equal blocks of the planned steps that are full, each at its last row."""
    block = (curve.steps * N_BLOCKS - 1) // last_step
    is_full = curve.steps[-1] >= last_step or curve.steps[-1] * N_BLOCKS % last_step == 0
    ends = np.flatnonzero(np.diff(block, append=block[-1:] + is_full))
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    if not len(ends):
        return ByStep(curve.steps[:0], curve.values[:0])
    sums = np.add.reduceat(curve.values[: ends[-1] + 1], starts)
    return ByStep(curve.steps[ends], sums / (ends - starts + 1))


def _warm_up(run: Run) -> int:
    """Return where the logged learning rate reached its peak, or where it still rises; 0 if no rise was logged."""
    try:
        rates = logged_rates(run)
    except ToposcopeError:  # no rate can be read; health says so
        return 0
    end = 0.0 if rates is None else warm_up_end(*rates[:2])
    return 0 if rates is None or end <= rates[0][0] else math.ceil(end)
