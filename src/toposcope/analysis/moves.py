"""How features move over a run, and where they turn (docs/methods/moves.md)."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import tuning
from toposcope.analysis.trajectory import Trajectory
from toposcope.typing import Vector


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
    threshold = max(tuning.MIN_TURN_SHARE * float(np.ptp(values)), tuning.MIN_TURN_NOISE * noise)
    extremes = {"peak": int(values.argmax()), "dip": int(values.argmin())}
    heights = {turn: float(np.abs(values[at] - values[[0, -1]]).min()) for turn, at in extremes.items()}
    turn = max(heights, key=lambda name: heights[name])
    if not heights[turn] > threshold:
        return Move(first, last, change)
    return Move(first, last, change, turn, int(steps[extremes[turn]]), float(values[extremes[turn]]))


def noise_level(times: Vector, y: Vector) -> float:
    """Return the robust standard deviation of pseudo-residuals."""
    before = (times[2:] - times[1:-1]) / (times[2:] - times[:-2])
    left = y[1:-1] - before * y[:-2] - (1 - before) * y[2:]
    return float(np.median(np.abs(left / np.sqrt(1 + before**2 + (1 - before) ** 2))) / 0.6745)


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
