"""Layers of a run: which moves first, and how each compares with random matrices of its shape.

Definitions: docs/methods/phases.md and docs/methods/spectral-measures.md.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.trajectory import WEIGHT_NORM, Trajectory
from toposcope.homology.matrix_controls import ENSEMBLES
from toposcope.probes.feature import TOPOLOGY, Feature
from toposcope.typing import Vector

# Moves and turns: of 200 series of white noise, fewer than 1 in 10 turn (docs/methods/association.md)
MIN_MOVE_SHARE = 0.1  # a layer that moves less than this share of the most has no first move


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
    largest = pl.when(pl.col("departure").is_finite()).then("departure").max().over("run", "feature").fill_null(0.0)
    moves = table.with_columns(moves=pl.col("departure") >= MIN_MOVE_SHARE * largest)
    first = pl.when("moves").then("step").min().over("run", "feature")
    return moves.with_columns(is_first=pl.col("moves") & (pl.col("step") == first))


COMPARED = {
    "np_mean": Feature("neural_persistence", "", "np_mean", TOPOLOGY),
    "H0.total": Feature("rips", "", "H0.total", TOPOLOGY),
}
"""Statistics of the ``random_matrices`` probe, and the features that are compared with them."""
PROBE = "random_matrices"


def reference_table(trajectories: Sequence[Trajectory]) -> pl.DataFrame:
    """Compare every layer's first and last value with those of random matrices of its shape.

    H0 totals are of matrices divided by their Frobenius norm in both cases.

    Returns
    -------
    polars.DataFrame
        ``run, layer, role, statistic, ensemble, mean, sd`` of the ensemble, ``first, last`` of the layer, and their
        distance from the mean in standard deviations, ``z_first, z_last``.
    """
    floats = dict.fromkeys(("mean", "sd", "first", "last", "z_first", "z_last"), pl.Float64)
    schema = {**dict.fromkeys(("run", "layer", "role", "statistic", "ensemble"), pl.String), **floats}
    return pl.DataFrame([row for t in trajectories for row in _reference_rows(t)], schema=schema, orient="row")


def _reference_rows(trajectory: Trajectory) -> Iterator[tuple[str | float, ...]]:
    for layer, role in trajectory.roles.items():
        features = trajectory.layers[layer]
        random = {f.statistic: v for f, v in features.items() if f.probe == PROBE}
        for statistic, feature in COMPARED.items():
            values = features.get(feature.of_group(layer))
            if values is not None and statistic == "H0.total":
                norm = features.get(WEIGHT_NORM.of_group(layer))
                values = (
                    None if norm is None else np.divide(values, norm, where=norm > 0, out=np.full_like(norm, np.nan))
                )
            if values is None:
                continue
            for ensemble in ENSEMBLES:
                mean, sd = (random.get(f"{ensemble}.{statistic}{end}") for end in ("", ".sd"))
                if mean is None or sd is None or not np.isfinite(mean).any():
                    continue
                centre, spread = (float(v[np.isfinite(v)][0]) for v in (mean, sd))
                first, last = float(values[0]), float(values[-1])
                z = [(v - centre) / spread if spread > 0 else np.nan for v in (first, last)]
                yield (trajectory.run, layer, role, statistic, ensemble, centre, spread, first, last, *z)
