"""The topology of weights whose entries are permuted within each layer (see ``docs/methods/controls.md``)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.homology import neural_persistence
from toposcope.probes.feature import Kind
from toposcope.probes.neural_persistence import combine_persistence, persistence_statistics
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Shape, Value
from toposcope.probes.rips import RipsProbe, combine_diagrams
from toposcope.seeds import derive_seed


class PlaceboTwinProbe(Probe, frozen=True, tag="placebo_twin"):
    """The statistics of `neural_persistence` and `rips` of every layer with its entries permuted."""

    KIND: ClassVar[Kind] = "control"
    ROWS: ClassVar[bool] = True
    LEAST: ClassVar[Mapping[str, int]] = {"max_dimension": 0, "max_points": 1}

    max_dimension: int = 1  # as of `rips`
    max_points: int | None = None  # as of `rips`
    seed: int = 42  # of the permutations; each layer has its own, derived from its name

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the clouds, and of sorting, permuting and a few passes."""
        return self._rips().expected_seconds(shapes) + sum(1.5e-7 * m * n for m, n in shapes.values())

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the largest cloud, its distances and edges."""
        return self._rips().expected_bytes(shapes)

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        twin = permuted(layer.matrix(), derive_seed(self.seed, "placebo twin", layer.name))
        persistence = neural_persistence(twin, name=f"layer {layer.name}")
        cloud = self._rips().measure_rows(twin, layer.name, layer.role)
        statistics = persistence_statistics(persistence) | cloud.statistics
        flag = "degenerate" if persistence.degenerate else cloud.flag
        return Measurement(layer.name, layer.role, statistics, flag=flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Combine as `neural_persistence` and `rips` do."""
        return combine_persistence(rows) | combine_diagrams(rows, np.linalg.norm)

    def _rips(self) -> RipsProbe:
        return RipsProbe(max_dimension=self.max_dimension, max_points=self.max_points)


def permuted(matrix: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return a matrix of the same shape and entries, which lie where their rank and the seed put them."""
    entries = np.sort(matrix, axis=None)
    np.random.default_rng(seed).shuffle(entries)
    return entries.reshape(matrix.shape)
