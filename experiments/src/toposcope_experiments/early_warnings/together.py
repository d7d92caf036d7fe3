"""The loss and several other quantities as alerts that share one rate of false alarms."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toposcope.extend import FALSE_ALARM_RATE
from toposcope_experiments.early_warnings.detector import Alarms
from toposcope_experiments.early_warnings.referee import (
    ScoredRun,
    Trial,
    count_alarms,
    halves,
    quiet_halves,
    reaction,
    set_threshold,
)
from toposcope_experiments.early_warnings.traces import QUIET


class Joint(NamedTuple):
    """Several quantities watched at once, on the runs that set nothing of them."""

    names: tuple[str, ...]
    at: Mapping[str, int]  # by run, the first alarm of any, in steps from the onset
    false_alarms: int
    quiet_steps: int


def most_alerts(trials: Mapping[str, Trial]) -> int:
    """Return how many thresholds the quiet runs can set that share the rate: each needs one alarm in each half."""
    return min((int(f.quiet_steps * FALSE_ALARM_RATE + 1e-9) for t in trials.values() for f in t.folds), default=0)


def try_together(runs: Sequence[ScoredRun], trials: Mapping[str, Trial]) -> Joint:
    """Watch the quantities of trials at once, by their choices, each at its equal share of the rate.

    Alarms at most `MIN_APART` steps apart are one, whichever quantity raises them.
    """
    quiet_half, kind_half = quiet_halves(runs), halves(run.kind for run in runs if run.kind != QUIET)
    at: dict[str, int] = {}
    n_false = n_steps = 0
    for half in (0, 1):
        choices = {name: trial.folds[half].choice for name, trial in trials.items()}
        own, others = ([run for run in runs if quiet_half.get(run.run) == side] for side in (half, 1 - half))
        judged = sum(run.judged_steps for run in own)
        rate = FALSE_ALARM_RATE / len(choices)
        thresholds = {
            name: set_threshold([run.alarms[name][choice] for run in own], judged, rate)
            for name, choice in choices.items()
        }
        for run in others:
            found = [(run.alarms[name][choice], thresholds[name]) for name, choice in choices.items()]
            steps = np.sort(np.concatenate([alarms.steps[alarms.scores > limit] for alarms, limit in found]))
            n_false += count_alarms(Alarms(steps, np.ones(len(steps)), steps), 0.0)
            n_steps += run.judged_steps
        for run in runs:
            if run.onset is not None and kind_half.get(run.kind) == 1 - half:
                at[run.run] = min(
                    reaction(run, run.alarms[name][choice], thresholds[name])[0]
                    for name, choice in choices.items()
                    if choice in run.alarms.get(name, {})
                )
    return Joint(tuple(trials), at, n_false, n_steps)
