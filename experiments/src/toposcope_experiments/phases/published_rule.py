"""Phases by the published study's rule, and the change points of the same features (experiments/docs/phases.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import Trajectory
from toposcope.extend import (
    PUBLISHED,
    TOPOLOGY,
    Feature,
    Progress,
    Vector,
    cloud_feature,
    derive_seed,
    silent,
)
from toposcope_experiments.phases import tuning
from toposcope_experiments.phases.change_points import change_points

WINDOWS, SHARES, CONSECUTIVES = (1, 3, 5, 7, 9), (0.05, 0.1, 0.2), (2, 3, 4)
"""Settings of the rule; the published study's are 5, 10% and 3."""


class Phases(NamedTuple):
    """Steps that the rule finds."""

    # step at which the largest change of the smoothed values begins; None if they do not change, or are too few
    largest_change: int | None
    # step at which the first ``consecutive`` changes under ``share`` of the largest begin, before or after the largest;
    # None if there are none (the published study gave the last step then)
    diminishing_returns: int | None


class Sensitivity(NamedTuple):
    """The range of steps that the rule finds over its settings."""

    largest_change_first: int | None  # earliest and latest step of the largest change; None if no setting finds one
    largest_change_last: int | None
    diminishing_first: int | None  # the same of diminishing returns
    diminishing_last: int | None
    n_settings: int
    share_same: float  # share of the settings that give both steps of the published one, in (0, 1]


def phases(
    steps: NDArray[np.int64], values: Vector, window: int = 5, share: float = 0.1, consecutive: int = 3
) -> Phases:
    """Apply the published rule to a feature, a change at the middle of its window (experiments/docs/phases.md)."""
    if len(values) < window + 1 or not np.ptp(values) > 0:
        return Phases(None, None)
    change = np.abs(np.diff(np.convolve(values, np.ones(window) / window, mode="valid")))
    peak = int(np.argmax(change))
    small = change < share * change[peak]
    rows = np.flatnonzero(np.convolve(small, np.ones(consecutive, dtype=np.int64))[consecutive - 1 :] == consecutive)
    middle = window // 2
    return Phases(int(steps[peak + middle]), int(steps[rows[0] + middle]) if len(rows) else None)


def sensitivity(steps: NDArray[np.int64], values: Vector) -> Sensitivity:
    """Apply the rule with windows of 1 to 9, shares of 5 to 20% and 2 to 4 consecutive changes."""
    published = phases(steps, values)
    results = [phases(steps, values, *setting) for setting in product(WINDOWS, SHARES, CONSECUTIVES)]
    largest = [p.largest_change for p in results if p.largest_change is not None]
    diminishing = [p.diminishing_returns for p in results if p.diminishing_returns is not None]
    (first, last), (begin, end) = ((min(s, default=None), max(s, default=None)) for s in (largest, diminishing))
    return Sensitivity(first, last, begin, end, len(results), results.count(published) / len(results))


NP_MEAN = Feature("neural_persistence", "", "np_mean", TOPOLOGY)
PHASED = (
    NP_MEAN,
    Feature(PUBLISHED, "", "np_mean", TOPOLOGY),
    Feature("rips", "", "H0.total", TOPOLOGY),
    Feature("rips", "", "H1.total", TOPOLOGY),
    Feature("distances", "", "H0.wasserstein_2", TOPOLOGY),
)
"""Features whose phases are reported."""
PHASED_STATES = ("rankme", "effective_rank", "H0.total", "H1.total", "H1.entropy")
"""Statistics of hidden states whose phases are reported, for the first declared probe and for published ones."""


def phase_table(trajectories: Sequence[Trajectory]) -> pl.DataFrame:
    """Return the phases of the features that are followed, by the published rule.

    Returns
    -------
    polars.DataFrame
        ``run, feature, largest_change, diminishing_returns`` by the published rule; over other settings of it the first
        and last step found, ``largest_change_first, largest_change_last, diminishing_first, diminishing_last``,
        ``n_settings`` and the share that agree, ``share_same``.
    """
    rows = [
        (run, feature, *phases(steps, values), *sensitivity(steps, values))
        for run, feature, steps, values in _phased(trajectories)
    ]
    names = (*Phases._fields, *Sensitivity._fields)
    schema = {"run": pl.String, "feature": pl.String, **dict.fromkeys(names, pl.Int64), "share_same": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def change_point_table(trajectories: Sequence[Trajectory], progress: Progress = silent) -> pl.DataFrame:
    """Return the change points of the same features: ``run, feature, step, low, high, p_smooth, explained``."""
    rows: list[dict[str, object]] = []
    phased = list(_phased(trajectories))
    for done, (run, feature, steps, values) in enumerate(phased, start=1):
        found = change_points(steps, values, derive_seed(tuning.SEED, "change points", run, feature))
        rows += [{"run": run, "feature": feature, **asdict(point)} for point in found]
        progress("change points", done, len(phased))
    schema = {"run": pl.String, "feature": pl.String, **dict.fromkeys(("step", "low", "high"), pl.Int64)}
    return pl.DataFrame(rows, schema={**schema, "p_smooth": pl.Float64, "explained": pl.Boolean})


def _phased(trajectories: Sequence[Trajectory]) -> Iterator[tuple[str, str, NDArray[np.int64], NDArray[np.float64]]]:
    """Yield run, feature, steps and values of the features whose phases are reported, where they are known."""
    for trajectory in trajectories:
        clouds = dict.fromkeys((next(iter(trajectory.clouds.values()), ""), PUBLISHED))
        present = [cloud for cloud in clouds if cloud in trajectory.clouds]
        for feature in (*PHASED, *(cloud_feature(cloud, name) for cloud in present for name in PHASED_STATES)):
            if feature in trajectory.features:
                values = trajectory.features[feature]
                known = np.isfinite(values)
                yield trajectory.run, str(feature), trajectory.steps[known], values[known]
