"""A run of a sweep as it reports its losses to a tool that runs sweeps, and whether it stops as it reports one."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toposcope.errors import ToposcopeError, choices, warn_caller
from toposcope.forecasting.sweeps.rule import AT, RULES, Risk, StoppingRule
from toposcope.forecasting.sweeps.sweep import SweepRun, arrives, configuration_of, judge


class Reported(NamedTuple):
    """What a run reported."""

    name: str
    losses: Mapping[int, float]  # by step
    settings: Mapping[str, Any]  # those that its configuration is told by; a seed among them does not count
    last_step: Any
    warm_up: Any


def rule_of(risk: str) -> StoppingRule:
    """Return the rule of a risk."""
    for name, rule in RULES.items():
        if name == risk:
            return rule
    raise ToposcopeError(f"risk {risk!r}: {choices(str(risk), RULES)}")


def stops_now(run: SweepRun, others: Sequence[SweepRun], risk: Risk, warned: set[str]) -> bool:
    """Return whether a run stops with its last loss, where the rule compares it then.

    A run that cannot be judged goes on; a warning says why, once by reason.
    """
    rule = rule_of(risk)
    if run.unknown:
        if run.unknown not in warned:
            warned.add(run.unknown)
            warn_caller(f"{run.name} and others like it are never stopped: {run.unknown}")
        return False
    if len(run.losses) and math.isinf(run.losses[-1]):
        return True
    return arrives(run, rule) and judge(run, others, rule).stop


def as_sweep_run(run: Reported) -> SweepRun:
    """Return what a rule knows of a run."""
    kept = {name: value for name, value in run.settings.items() if configuration_of(f"{name}=0")}
    steps = np.array(sorted(step for step in run.losses if step > 0), np.int64)
    losses = np.array([run.losses[step] for step in steps.tolist()], np.float64)
    losses[~np.isfinite(losses)] = math.inf
    last, unknown = run.last_step, ""
    if not isinstance(last, int) or isinstance(last, bool) or last < 1:
        last, unknown = None, f"last_step, the number of steps that it is planned for, is {last!r}; give a whole number"
    warm_up = run.warm_up if isinstance(run.warm_up, int) else 0
    finished = bool(len(steps)) and last is not None and steps[-1] >= last * (1 - AT)
    return SweepRun(
        run.name, repr(sorted(kept.items())) if kept else run.name, steps, losses, last, warm_up,
        finished=finished, unknown=unknown,
    )  # fmt: skip
