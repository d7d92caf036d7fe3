"""What stopping early saves and costs, rule by rule, against stopping every run at the same fraction of its steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.analysis import Trajectory
from toposcope.extend import (
    LEVEL,
    PUBLISHED,
    Forecaster,
    LoggedRun,
    RefusedError,
    ToposcopeError,
    Vector,
    joined,
    planned,
)
from toposcope.logs import Run
from toposcope.probes import Feature
from toposcope_experiments.early_stopping.stopping_rules import (
    FRACTION,
    GAIN,
    LAST,
    LOSS,
    NEURAL_PERSISTENCE,
    RULES,
    grid,
)
from toposcope_experiments.early_stopping.tried_rules import (
    BETTER,
    NOT_SHOWN,
    WORSE,
    Course,
    TriedRules,
    Watched,
    try_rules,
)

Gain = Callable[[str, int], float]
"""Of a run and a step: the further fall of its loss until its end, in nats, as predicted from what was seen until that
step; NaN where nothing can be said."""

MIN_CHECKPOINTS = 3  # checkpoints with a loss that a run must have
BATCH_LOSS = "batch_loss"
FLOPS_PER_WEIGHT = 6  # training FLOP per parameter and token


@dataclass(frozen=True, eq=False)
class EarlyStopping(TriedRules):
    """What the rules would have done to the complete runs of a study; losses are in nats."""

    notes: tuple[str, ...]  # what was left out, a sentence each

    def summary(self) -> list[str]:
        """Return what was found, a sentence a rule."""
        if not len(self.rules):
            return ["No rule can be tried. " + " ".join(self.notes)]
        return [_sentence(row) for row in self.rules.iter_rows(named=True)]


def early_stopping(
    found: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame, gain: Gain | None = None
) -> EarlyStopping:
    """Try every rule at every setting of its grid on every complete run.

    The loss is the target to trust: the validation loss if it is known, never one batch unless there is nothing else. A
    measurement is a checkpoint at which it is known. Neural persistence is the mean normalised one (Rieck et al. 2019,
    Def. 4), or where that was not measured ``np_mean``, ours or published.
    """
    courses, notes = _courses(found, log, runs, gain)
    if not courses:
        notes.append("There is no complete run with a loss.")
    for rule in RULES:
        lacking = [course.run for course in courses if not course.watched(rule)]
        if lacking:
            which = "all runs" if len(lacking) == len(courses) else joined(lacking)
            notes.append(f"{NAMES[rule]} is left out of {which}: {LACKING[rule]}.")
    tried = try_rules(courses, {rule: list(grid(rule)) for rule in RULES})
    return EarlyStopping(tried.stops, tried.matched, tried.rules, tuple(notes))


def gain_by(forecaster: Forecaster, logs: Iterable[Run]) -> Gain:
    """Return the further fall of the loss that a forecaster predicts from the log and the schedule, without siblings.

    The fall is that of its curve from the last step seen, so that the noise of the last batch has no part in it.
    """
    runs: dict[str, LoggedRun] = {}
    for log in logs:
        with suppress(ToposcopeError):
            runs[log.name] = LoggedRun(log, planned(log, last_step=log.last_step or int(log.steps[-1])))

    def gain(run: str, step: int) -> float:
        seen = runs[run].log.until(step) if run in runs else None
        if seen is None:
            return np.nan
        try:
            forecast = forecaster.fit(seen, runs[run].schedule, ())
        except RefusedError:
            return np.nan
        return float(forecast.curve[0]) - forecast.loss if len(forecast.curve) else np.nan

    return gain


def loss_of(trajectory: Trajectory) -> tuple[Vector, Vector, str]:
    """Return steps and losses where the target to trust is known, and its name; the trajectory has a target."""
    target = next((name for name in trajectory.targets if name != BATCH_LOSS), BATCH_LOSS)
    loss = trajectory.targets[target]
    known = np.isfinite(loss)
    return trajectory.steps[known].astype(np.float64), loss[known], target


def _courses(
    found: Sequence[Trajectory], log: pl.DataFrame, runs: pl.DataFrame, gain: Gain | None
) -> tuple[list[Course], list[str]]:
    """Return the runs that rules can be tried on, and why others cannot be."""
    complete = dict(runs.filter(status="complete").select("run", "last_step").iter_rows())
    sizes = dict(runs.select("run", "n_parameters").iter_rows())
    courses, notes = [], []
    for t in found:
        last = complete.get(t.run, -1)
        steps, losses, target = loss_of(t) if t.targets else (np.empty(0), np.empty(0), "")
        if t.run not in complete or last not in (None, int(t.steps[-1])):
            notes.append(f"{t.run} is left out: it did not end, or its last checkpoint was not measured.")
        elif len(steps) < MIN_CHECKPOINTS or int(steps[-1]) != int(t.steps[-1]) or not steps[-1] > 0:
            needs = f"a loss at {MIN_CHECKPOINTS} checkpoints, the last one among them"
            notes.append(f"{t.run} is left out: it needs {needs}.")
        else:
            at = np.isin(t.steps, steps)
            feature = _feature(t)
            gains = np.array([gain(t.run, int(step)) if gain else np.nan for step in steps])
            flops = _flops(t, steps, log.filter(run=t.run), sizes.get(t.run))
            watched = {LOSS: Watched(target, -losses)}
            if feature:
                watched[NEURAL_PERSISTENCE] = Watched(str(feature), t.features[feature][at], 0.0)
            courses.append(Course(t.run, steps, target, losses, flops, watched, gains))
    if any(course.target == BATCH_LOSS for course in courses):
        which = joined([course.run for course in courses if course.target == BATCH_LOSS])
        notes.append(f"Of {which} only the loss of single batches is known: what stopping costs there is noisy.")
    return courses, notes


def _feature(trajectory: Trajectory) -> Feature | None:
    """Return the neural persistence of weights, normalised if it was measured; None without any."""
    measured = [f for f in trajectory.features if f.probe in ("neural_persistence", PUBLISHED)]
    candidates = [f for statistic in ("np_normalized", "np_mean") for f in measured if f.statistic == statistic]
    return next((f for f in candidates if np.isfinite(trajectory.features[f]).any()), None)


def _flops(trajectory: Trajectory, steps: Vector, log: pl.DataFrame, n_parameters: int | None) -> Vector:
    """Return the FLOPs spent until each step: as logged, else 6 a weight and token; NaN if neither is known."""
    logged = log.select("step", "flops").drop_nulls()
    if len(logged):
        at, spent = (logged.get_column(name).to_numpy() for name in ("step", "flops"))
        return np.asarray(np.interp(steps, at, spent))
    tokens = trajectory.tokens[np.isin(trajectory.steps, steps)]
    per_token = float(FLOPS_PER_WEIGHT * n_parameters) if n_parameters else np.nan
    return per_token * tokens


LACKING = {NEURAL_PERSISTENCE: "neural persistence was not measured", GAIN: "nothing could be predicted"}
NAMES = {
    NEURAL_PERSISTENCE: "Patience on neural persistence (Rieck et al.)",
    LOSS: "Patience on the loss",
    GAIN: "Forecast gain below a price",
    FRACTION: "Fixed fraction of the steps",
    LAST: "Last step",
}


def _sentence(row: Mapping[str, float | str]) -> str:
    """Say of a rule what it saves and pays, and whether it differs from a fixed fraction."""
    verdict = {
        BETTER: "it is better than a fixed fraction",
        WORSE: "it is worse than a fixed fraction",
        NOT_SHOWN: "it is not shown to be better or worse than a fixed fraction",
    }[str(row["verdict"])]
    few = ""
    if row["verdict"] == NOT_SHOWN and float(row["min_p"]) >= LEVEL:
        few = f", which {row['n_runs']} run{'s'[: row['n_runs'] != 1]} cannot show"
    return (
        f"{NAMES[str(row['rule'])]}: over {row['n_settings']} settings and {row['n_runs']} "
        f"run{'s'[: row['n_runs'] != 1]} it saves {float(row['saved']):.0%} of the steps on the mean and pays "
        f"{float(row['paid']):.3f} nats; a fixed fraction that saves as much pays {float(row['paid_fixed']):.3f} "
        f"({row['n_less']} settings pay less than theirs, {row['n_more']} more; p {float(row['p']):.3g}, "
        f"Holm {float(row['p_adjusted']):.3g}): {verdict}{few}."
    )
