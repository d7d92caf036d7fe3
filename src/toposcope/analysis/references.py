"""Trained layers compared with random matrices of their shape (docs/methods/spectral-measures.md#random-matrices)."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from toposcope.analysis.trajectories import WEIGHT_NORM, Trajectory
from toposcope.homology.matrix_controls import ENSEMBLES
from toposcope.probes.feature import TOPOLOGY, Feature

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
    return pl.DataFrame([row for t in trajectories for row in _of_run(t)], schema=schema, orient="row")


def _of_run(trajectory: Trajectory) -> Iterator[tuple[str | float, ...]]:
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
