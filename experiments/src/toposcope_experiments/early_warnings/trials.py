"""The scored runs, the trials of everything measured and of several quantities at once, and what each adds."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from toposcope.extend import FALSE_ALARM_RATE, Matrix, Tables, derive_seed
from toposcope_experiments.early_warnings.detector import Alarms
from toposcope_experiments.early_warnings.precursors import PRECURSORS
from toposcope_experiments.early_warnings.referee import (
    LOSS,
    MATRIX_NORM,
    N_RESAMPLES,
    Reaction,
    ScoredRun,
    Trial,
    count_alarms,
    halves,
    quiet_halves,
    reaction,
    seldom,
    set_threshold,
    try_contestant,
    warning,
)
from toposcope_experiments.early_warnings.traces import QUIET

LEADS, IN_SOME, NOT_SHOWN, UNDETERMINED = "leads the loss", "leads it in some kinds", "not shown to", "cannot be told"
AT_CADENCE = "not shown to, measured so rarely"
GRADIENT, H0_TOTAL = PRECURSORS["gradient_norm"].title, PRECURSORS["h0_total"].title


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


class EarlyWarningData:
    """The scored runs, the trials of everything measured and of the published rules, and the tables of the page."""

    def __init__(
        self, runs: list[ScoredRun], makers: "Mapping[str, Callable[[EarlyWarningData], pl.DataFrame]]"
    ) -> None:
        self.runs = runs
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers)

    @cached_property
    def trials(self) -> dict[str, Trial]:
        """The trial of each quantity, the loss first."""
        names = dict.fromkeys([LOSS, *(name for run in self.runs for name in run.alarms)])
        return {name: self._trial(name) for name in names if name not in self.controls}

    @cached_property
    def cadences(self) -> dict[str, int]:
        """The steps between two measurements of each quantity that is not measured at each."""
        return {name: k for run in self.runs for name, k in run.cadences.items() if k > 1}

    @cached_property
    def controls(self) -> dict[str, Trial]:
        """The trials of the loss and the gradient norm known as rarely as others are, and of the twin of H0 totals."""
        names = (seldom(name, k) for k in sorted(set(self.cadences.values())) for name in (LOSS, GRADIENT, MATRIX_NORM))
        return {name: self._trial(name) for name in names if any(name in run.alarms for run in self.runs)}

    def _trial(self, name: str) -> Trial:
        alarms = {run.run: run.alarms[name] for run in self.runs if name in run.alarms}
        return try_contestant(name, self.runs, alarms)

    @cached_property
    def together(self) -> Joint | None:
        """The loss and what leads it, as alerts that share one rate: those that gain most, where they are too many."""
        rows = self.tables["precursors"].filter(pl.col("verdict").is_in([LEADS, IN_SOME]))
        names = [LOSS, *rows["precursor"].to_list()[: max(0, most_alerts(self.trials) - 1)]]
        return try_together(self.runs, {name: self.trials[name] for name in names}) if len(names) > 1 else None

    def published(self, name: str, threshold: float | None) -> Trial:
        """Return the trial of a published rule, at its own threshold or at that of the one rate of false alarms."""
        alarms = {run.run: {name: run.rules[name]} for run in self.runs if name in run.rules}
        return try_contestant(name, self.runs, alarms, threshold)

    def reactions(self, name: str) -> Mapping[str, Reaction]:
        """Return the held-out runs of a quantity or a control."""
        return (self.trials | self.controls)[name].reactions

    def gained(self, name: str) -> dict[str, float]:
        """Return the steps of warning that each run gains from a quantity next to the loss.

        Both at half of the rate, against the loss alone at the whole of it: the same rate of false alarms.
        """
        loss, own = self.reactions(LOSS), self.reactions(name)
        return {
            run: float(warning(min(own[run].at_half, loss[run].at_half)) - warning(loss[run].at))
            for run in own
            if run in loss
        }

    def gained_by_chance(self, name: str) -> Matrix:
        """Return the same, shape (N_RESAMPLES, runs), with alarms of quiet runs at the same steps, drawn for each."""
        loss, own = self.reactions(LOSS), self.reactions(name)
        rng = np.random.default_rng(derive_seed(44, "alarms of quiet runs", name))
        columns = [
            warning(np.minimum(rng.choice(each.by_chance_at_half, N_RESAMPLES), loss[run].at_half))
            - warning(loss[run].at)
            for run, each in own.items()
            if run in loss
        ]
        return np.stack(columns, axis=1)
