"""How features move over a run, where they turn, and phases by the published study's rule (docs/methods/phases.md)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.change_points import change_points, noise_level
from toposcope.analysis.efficiency import NP_MEAN, efficiency
from toposcope.analysis.trajectory import Trajectory, cloud_feature
from toposcope.probes.feature import TOPOLOGY, Feature
from toposcope.progress import Progress, silent
from toposcope.seeds import SEED, derive_seed
from toposcope.study.kinds import PUBLISHED
from toposcope.typing import Vector

# Moves and turns: of 200 series of white noise, fewer than 1 in 10 turn (docs/methods/association.md)
MIN_TURN_SHARE, MIN_TURN_NOISE = 0.2, 4.0  # distance of an extreme from both ends, in ranges and noise deviations


@dataclass(frozen=True)
class Move:
    """A feature over one run."""

    first: float  # first and last finite value
    last: float
    change: float  # (last - first) / |first|; NaN where the first value is 0
    # ``peak`` or ``dip`` if there is an extreme between the ends from which the trajectory goes back, else empty; of
    # both, the one farther from the ends
    turn: str = ""
    turn_step: int | None = None
    turn_value: float = np.nan


def move(steps: NDArray[np.int64], values: Vector) -> Move | None:
    """Describe how a feature moves over a run."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if len(values) < 2:
        return None
    first, last = float(values[0]), float(values[-1])
    change = (last - first) / abs(first) if first else np.nan
    noise = noise_level(np.arange(len(values), dtype=np.float64), values) if len(values) > 2 else 0.0
    threshold = max(MIN_TURN_SHARE * float(np.ptp(values)), MIN_TURN_NOISE * noise)
    extremes = {"peak": int(values.argmax()), "dip": int(values.argmin())}
    heights = {turn: float(np.abs(values[at] - values[[0, -1]]).min()) for turn, at in extremes.items()}
    turn = max(heights, key=lambda name: heights[name])
    if not heights[turn] > threshold:
        return Move(first, last, change)
    return Move(first, last, change, turn, int(steps[extremes[turn]]), float(values[extremes[turn]]))


def move_table(trajectories: Iterable[Trajectory]) -> pl.DataFrame:
    """Return how every feature of the network moves: ``run, feature`` and the fields of `Move`."""
    rows = [
        {"run": t.run, "feature": str(feature), **asdict(moved)}
        for t in trajectories
        for feature, values in t.features.items()
        if (moved := move(t.steps, values)) is not None
    ]
    floats = dict.fromkeys(("first", "last", "change"), pl.Float64)
    texts = dict.fromkeys(("run", "feature"), pl.String)
    turn = {"turn": pl.String, "turn_step": pl.Int64, "turn_value": pl.Float64}
    return pl.DataFrame(rows, schema={**texts, **floats, **turn})


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
    """Apply the published rule to a feature, a change at the middle of its window (docs/methods/phases.md)."""
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
        breaks = change_points(steps, values, derive_seed(SEED, "change points", run, feature))
        rows += [{"run": run, "feature": feature, **asdict(point)} for point in breaks]
        progress("change points", done, len(phased))
    schema = {"run": pl.String, "feature": pl.String, **dict.fromkeys(("step", "low", "high"), pl.Int64)}
    return pl.DataFrame(rows, schema={**schema, "p_smooth": pl.Float64, "explained": pl.Boolean})


def _phased(trajectories: Sequence[Trajectory]) -> Iterator[tuple[str, str, NDArray[np.int64], NDArray[np.float64]]]:
    """Yield run, quantity, steps and known values of whatever has phases that are reported, the loss among them."""
    for trajectory in trajectories:
        clouds = dict.fromkeys((next(iter(trajectory.clouds.values()), ""), PUBLISHED))
        present = [cloud for cloud in clouds if cloud in trajectory.clouds]
        phased = (*PHASED, *(cloud_feature(cloud, name) for cloud in present for name in PHASED_STATES))
        series = {str(feature): trajectory.features[feature] for feature in phased if feature in trajectory.features}
        series |= dict(list(trajectory.targets.items())[:1]) | efficiency(trajectory)
        for name, values in series.items():
            known = np.isfinite(values)
            yield trajectory.run, name, trajectory.steps[known], values[known]
