"""Neural persistence and H0 of random matrices with the shape of each layer, as a reference for its values."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.homology import neural_persistence, rips
from toposcope.homology.matrix_controls import ENSEMBLES, Ensemble, random_matrix
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Value, lowered, stacked
from toposcope.seeds import derive_seed

MAX_ENTRIES = 20 * 2**20  # for one shape and ensemble: fewer than 20 matrices beyond 1024 x 1024
MIN_DRAWS = 3  # the fewest matrices with a usable spread
CACHED_SHAPES = 512  # whose references a process caches

Shape = tuple[int, ...]


class RandomMatricesProbe(Probe, frozen=True, tag="random_matrices"):
    """Means and standard deviations (ddof 1) over random matrices of a layer's shape, of five ensembles.

    ``gaussian.np_mean``, ``gaussian.np_mean.sd``, ``gaussian.H0.total``, ``gaussian.H0.total.sd`` and so on, and
    ``n_draws``. ``H0.total`` is that of the matrix divided by its Frobenius norm, to compare with the scale-free twin
    of the layer's. They depend only on the shape: they are computed once for each, at the first checkpoint of a run.
    """

    KIND: ClassVar[Kind] = "control"
    ROWS: ClassVar[bool] = True
    SCALE_FREE: ClassVar[bool] = True
    ONCE: ClassVar[bool] = True
    LEAST: ClassVar[Mapping[str, int]] = {"draws": MIN_DRAWS}

    # matrices of each ensemble, at least 3. For large shapes only as many as have 20 x 2^20 entries in total, but never
    # fewer than 3: all 20 up to 1024 x 1024, 5 of 2048 x 2048, 3 of 4096 x 4096
    draws: int = 20
    seed: int = 42

    def by_layer(self) -> bool:
        """Return False: layers of one shape are measured together."""
        return False

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        shape = layer.shape[::-1] if layer.transposed else layer.shape
        flag = lowered(draws=(self.draws, n_draws(shape, self.draws)))
        return Measurement(layer.name, layer.role, dict(_references(shape, self.draws, self.seed)), flag=flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take the mean of ``np_mean`` over layers."""
        result = {"n_draws": np.min(stacked(rows, "n_draws"), axis=0)}
        for ensemble in ENSEMBLES:
            name = f"{ensemble}.np_mean"
            result[name] = np.mean(stacked(rows, name), axis=0)
            result[f"{name}.sd"] = np.linalg.norm(stacked(rows, f"{name}.sd"), axis=0) / len(rows)
        return result


def n_draws(shape: Shape, draws: int) -> int:
    """Return how many matrices of a shape are drawn, where `draws` are asked for."""
    return min(draws, max(MIN_DRAWS, MAX_ENTRIES // math.prod(shape)))


@lru_cache(CACHED_SHAPES)
def _references(shape: Shape, draws: int, seed: int) -> Mapping[str, float]:
    count = n_draws(shape, draws)
    result = {"n_draws": float(count)}
    for ensemble in ENSEMBLES:
        draws_of_ensemble = [
            _measured(ensemble, shape, derive_seed(seed, ensemble, *shape, draw)) for draw in range(count)
        ]
        for name, values in zip(("np_mean", "H0.total"), np.transpose(draws_of_ensemble), strict=True):
            result[f"{ensemble}.{name}"] = float(values.mean())
            result[f"{ensemble}.{name}.sd"] = float(values.std(ddof=1))
    return result


def _measured(ensemble: Ensemble, shape: Shape, seed: int) -> tuple[float, float]:
    """Return the neural persistence, and the total of H0 divided by the norm; 0 for a matrix of zeros."""
    m, n = shape
    W = random_matrix(ensemble, (m, n), seed)
    norm = float(np.linalg.norm(W))
    (components,) = rips(W, max_dimension=0)
    return neural_persistence(W).mean, float(components.lifetimes.sum()) / norm if norm else 0.0
