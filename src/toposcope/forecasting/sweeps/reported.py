"""A run of a sweep as it reports its losses to a tool that runs sweeps, and whether it stops as it reports one."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError, choices, warn_caller
from toposcope.forecasting.sweeps.reading import decays_left, declared_schedule
from toposcope.forecasting.sweeps.rule import AT, RULES, Risk, StoppingRule, loss_at
from toposcope.forecasting.sweeps.sweep import SHARES, SweepRun, configuration_of, stops


class Reported(NamedTuple):
    """What a run reported."""

    name: str
    losses: Mapping[int, float]  # by step
    settings: Mapping[str, Any]  # those that its configuration is told by; a seed among them does not count
    last_step: Any
    schedule: Any


def rule_of(risk: str) -> StoppingRule:
    """Return the rule of a risk."""
    for name, rule in RULES.items():
        if name == risk:
            return rule
    raise ToposcopeError(f"risk {risk!r}: {choices(str(risk), RULES)}")


def stops_now(run: Reported, others: Iterable[Reported], risk: Risk, warned: set[str]) -> bool:
    """Return whether a run stops with its last loss: where that is the first at or after a share of its steps.

    A run that cannot be judged goes on; a warning says why, once by reason.
    """
    rule = rule_of(risk)
    now = _sweep_run(run, rule)
    if why := now.kept_because(rule):
        if why not in warned:
            warned.add(why)
            warn_caller(f"{run.name} and others like it are never stopped: {why}")
        return False
    before = _sweep_run(run._replace(losses=dict(sorted(run.losses.items())[:-1])), rule).losses
    arrived = [share for share in rule.shares if share in now.losses and share not in before]
    return bool(arrived) and stops(now, [_sweep_run(other, rule) for other in others], rule, arrived[-1])


def _sweep_run(run: Reported, rule: StoppingRule) -> SweepRun:
    """Return what the rule knows of a run."""
    kept = {name: value for name, value in run.settings.items() if configuration_of(f"{name}=0")}
    seen = SweepRun(run.name, repr(sorted(kept.items())) if kept else run.name, 0, None, 0, {}, {})
    last = run.last_step
    if not isinstance(last, int) or isinstance(last, bool) or last < 1:
        return _unknown(seen, f"last_step, the number of steps it is planned for, is {last!r}; give a whole number")
    steps = np.array(sorted(run.losses), np.int64)
    losses = np.array([run.losses[step] for step in steps.tolist()], np.float64)
    losses[~np.isfinite(losses)] = math.inf
    if (losses <= 0).any():
        return _unknown(seen, f"it reported {losses[losses <= 0][0]:g}, and losses are compared by their logarithms")
    at = {share: loss_at(steps, losses, share * last) for share in SHARES}
    step = int(steps[-1]) if len(steps) else 0
    finished = step >= last * (1 - AT)
    unknown, warm_up, left = "", 0, dict[float, float]()
    if rule.corrected:
        try:
            warm_up, left = _plan(str(run.schedule or ""), last)
        except ToposcopeError as error:
            unknown = str(error)
    return SweepRun(
        run.name, seen.configuration, step, last, warm_up,
        {share: loss for share, loss in at.items() if not math.isnan(loss)}, left,
        final=float(losses[-1]) if finished else math.nan, finished=finished, unknown_schedule=unknown,
    )  # fmt: skip


def _unknown(run: SweepRun, why: str) -> SweepRun:
    return SweepRun(run.name, run.configuration, run.step, None, 0, {}, {}, unknown=why)


@lru_cache(maxsize=4096)
def _plan(schedule: str, last_step: int) -> tuple[int, dict[float, float]]:
    if not schedule:
        raise ToposcopeError("its schedule is not given; declare it, such as cosine:warmup=100,final=0.1, or constant")
    plan = declared_schedule(schedule, last_step)
    return plan.warm_up, decays_left(plan)
