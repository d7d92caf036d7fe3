"""How far features move over training, where they turn, and which layers move first (docs/methods/moves.md)."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis import tuning
from toposcope.analysis.change_points import noise_level
from toposcope.analysis.trajectories import Trajectory
from toposcope.probes.feature import Feature
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


def onset(steps: NDArray[np.int64], values: Vector) -> tuple[int, float] | None:
    """Return when a feature of a layer has left its first value, and how far it goes."""
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    distance = np.abs(values - values[:1])
    departure = np.minimum(distance, np.append(distance[1:], np.inf))
    if not len(values) or not departure.max() > 0:
        return None
    largest = float(departure.max())
    return int(steps[np.argmax(departure > largest / 2)]), largest


def onset_table(trajectories: Iterable[Trajectory], features: Sequence[Feature]) -> pl.DataFrame:
    """Return when each layer has left its first value, by feature."""
    rows = [
        (t.run, str(feature), layer, t.roles.get(layer, ""), left[0], left[1] / start if start else np.inf)
        for t in trajectories
        for feature in features
        for layer, of_layer in t.layers.items()
        if (values := of_layer.get(feature.of_group(layer))) is not None
        if (left := onset(t.steps, values)) is not None
        if (start := abs(float(values[np.isfinite(values)][0]))) is not None
    ]
    texts = dict.fromkeys(("run", "feature", "layer", "role"), pl.String)
    table = pl.DataFrame(rows, schema={**texts, "step": pl.Int64, "departure": pl.Float64}, orient="row")
    finite = pl.when(pl.col("departure").is_finite()).then("departure")
    largest = finite.max().over("run", "feature").fill_null(0.0)
    moves = table.with_columns(moves=pl.col("departure") >= tuning.MIN_MOVE_SHARE * largest)
    first = pl.when("moves").then("step").min().over("run", "feature")
    return moves.with_columns(is_first=pl.col("moves") & (pl.col("step") == first))
