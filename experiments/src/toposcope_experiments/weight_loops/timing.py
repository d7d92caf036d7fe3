"""When a feature changes, next to when the network generalises."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.extend import LEVEL, UNDETERMINED, Steps, Vector, adjusted, sign_flip
from toposcope_experiments.grokking.design import TREATED
from toposcope_experiments.grokking.experiment import MeasuredRuns
from toposcope_experiments.weight_loops.features import kinds_of

LAST, SMOOTHED = 3, 5  # measurements whose mean is where a feature ends, and of a running median
MIN_CHANGE = 3.0  # deviations of the difference between two measurements; a smaller change has no time
MIN_RUNS, MIN_SHARE = 6, 0.75  # runs that a verdict needs, and of them those in which the feature changes at all
EARLIER, TOGETHER, LATER, UNCHANGED = "earlier", "together", "later", "does not change"
RULE = (
    f"A feature's time is the first step at which its running median of {SMOOTHED} measurements has gone half of the "
    f"way from the initial weights to the mean of its last {LAST}; the time of generalisation is that of the accuracy "
    f"on other pairs. A change of less than {MIN_CHANGE:g} standard deviations of the difference between two "
    f"measurements has no time. '{TOGETHER}': in {MIN_SHARE:.0%} of the runs they are at most one measurement apart. "
    f"'{EARLIER}', '{LATER}': the mean lag differs from 0 by flipping signs, at level {LEVEL:g}, Holm over features. "
    f"'{UNCHANGED}': it has a time in less than {MIN_SHARE:.0%} of the runs."
)


def timing_table(measured: Sequence[MeasuredRuns]) -> pl.DataFrame:
    """Return when each feature changes, over the runs of a network that generalise, on all its tasks.

    ``architecture, feature, kind, n_runs, n_timed, lag, p, p_adjusted, verdict``; ``lag`` is the median in steps, below
    0 where the feature changes first.
    """
    rows = []
    for architecture in dict.fromkeys(m.runs[0].architecture.name for m in measured):
        of = [m for m in measured if m.runs[0].architecture.name == architecture]
        kinds = kinds_of(architecture)
        lags = {feature: np.concatenate([_lags(m, feature) for m in of]) for feature in kinds}
        timed = {feature: values[np.isfinite(values)] for feature, values in lags.items()}
        p = np.array([sign_flip(values) if len(values) >= MIN_RUNS else np.nan for values in timed.values()])
        for (feature, kind), p_own, p_adjusted in zip(kinds.items(), p, adjusted(p), strict=True):
            numbers = {"n_runs": len(lags[feature]), "n_timed": len(timed[feature])}
            lag = float(np.median(timed[feature])) if len(timed[feature]) else np.nan
            verdict = _verdict(lags[feature], timed[feature], p_adjusted, int(np.diff(of[0].steps)[0]))
            rows.append(
                {"architecture": architecture, "feature": feature, "kind": kind, **numbers}
                | {"lag": lag, "p": p_own, "p_adjusted": p_adjusted, "verdict": verdict}
            )
    return pl.DataFrame(rows)


def _lags(measured: MeasuredRuns, feature: str) -> Vector:
    """Return by how many steps a feature follows generalisation, by run that generalises; NaN without a time."""
    found = []
    for i in measured.places(TREATED.name):
        if np.isfinite(measured.generalised[i]):
            series = measured.features[feature], measured.log["validation_accuracy"]
            own, generalised = (half_time(measured.steps, values[:, i]) for values in series)
            found.append(own - generalised)
    return np.array(found)


def half_time(steps: Steps, values: Vector) -> float:
    """Return the first step at which known values have gone half of their way; NaN if they hardly change."""
    from scipy.ndimage import median_filter  # slow to import

    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) < 2 * LAST:
        return np.nan
    change = float(values[-LAST:].mean() - values[0])
    noise = 1.4826 * float(np.median(np.abs(np.diff(values) - np.median(np.diff(values)))))
    if not abs(change) > MIN_CHANGE * noise:
        return np.nan
    gone = (median_filter(values, SMOOTHED, mode="nearest") - values[0]) / change >= 0.5
    return float(steps[gone.argmax()]) if gone.any() else np.nan


def _verdict(lags: Vector, timed: Vector, p_adjusted: float, every: int) -> str:
    if len(lags) < MIN_RUNS:
        return UNDETERMINED
    if len(timed) < MIN_SHARE * len(lags):
        return UNCHANGED
    if (np.abs(timed) <= every).mean() >= MIN_SHARE:
        return TOGETHER
    if p_adjusted < LEVEL:
        return EARLIER if timed.mean() < 0 else LATER
    return UNDETERMINED
