"""A run of a sweep as it reports its losses to a tool that runs sweeps, and whether it stops as it reports one."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.errors import ToposcopeError, choices, warn_caller
from toposcope.forecasting.sweeps.rule import RULES, Risk, StoppingRule
from toposcope.forecasting.sweeps.sweep import SweepRun, arrives, is_seed, judge


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
    if run.kept:
        if run.kept not in warned:
            warned.add(run.kept)
            warn_caller(f"{run.name} and others like it are never stopped: {run.kept}")
        return False
    has_diverged = bool(len(run.losses)) and math.isinf(run.losses[-1])
    return has_diverged or (arrives(run, rule) and judge(run, others, rule).stop)


def reported_run(
    name: str, losses: Mapping[int, float], settings: Mapping[str, Any], last_step: object, warm_up: object
) -> SweepRun:
    """Return what a rule knows of a run by what it reported.

    Parameters
    ----------
    name : str
    losses : mapping of int to float
        By step, of which 0 is before training.
    settings : mapping
        By which its configuration is known; a seed among them does not count.
    last_step, warm_up : object
        As the run states them; None where it does not.
    """
    kept = sorted((key, value) for key, value in settings.items() if not is_seed(key))
    steps = np.array(sorted(step for step in losses if step > 0), np.int64)
    values = np.array([losses[step] for step in steps.tolist()], np.float64)
    values[~np.isfinite(values)] = math.inf
    last, warm = _count(last_step), _count(0 if warm_up is None else warm_up)
    unknown = ""
    if not last:
        unknown = f"last_step, the number of steps that it is planned for, is {last_step!r}; give a whole number"
    elif warm is None:
        unknown = f"warm_up, the steps until the learning rate is at its peak, is {warm_up!r}; give a whole number"
    return SweepRun(name, repr(kept) if settings else name, steps, values, last or None, warm or 0, unknown=unknown)


def _count(value: object) -> int | None:
    """Return a whole number that is not negative; None of anything else."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if number >= 0 and not isinstance(value, bool) else None
