"""Loops of every weight matrix, next to random ones of its spectrum and norms; see ``docs/methods/weight-loops.md``."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.homology import dowker, dowker_null
from toposcope.homology.dowker import MIN_DRAWS, SCORED, dowker_bytes, expected_seconds, loop_values
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Shape, Value, stacked
from toposcope.seeds import derive_seed

SECONDS_PER_PRODUCT = 1e-8  # of a null, for each entry and row of the smaller side: some ten eigendecompositions


class DowkerProbe(Probe, frozen=True, tag="dowker"):
    """``count``, ``total``, ``longest`` of the bars of H1 of each layer's Dowker filtration, and the z of each.

    The z, ``count.z`` and so on, are against `toposcope.homology.dowker_null`, whose ``misfit`` is reported. For the
    network, sums and the largest; of the z their sum divided by the root of the number of layers (Stouffer 1949).
    """

    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = {"misfit": "control"}
    SCALE_FREE: ClassVar[bool] = True
    LEAST: ClassVar[Mapping[str, int]] = {"draws": MIN_DRAWS}
    SUMMARY: ClassVar[Sequence[str]] = ("count", "count.z")

    # random matrices that each layer is compared with: the time is that of so many more layers, and of their spectra
    draws: int = 20
    seed: int = 42

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the layers and of their random matrices."""
        sizes = [(m * n, min(m, n)) for m, n in shapes.values()]
        loops = (1 + self.draws) * sum(expected_seconds(size) for size, _ in sizes)
        return loops + self.draws * SECONDS_PER_PRODUCT * sum(size * side for size, side in sizes)

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the largest layer, three copies in float64 and its loops."""
        return max((24 * m * n + dowker_bytes(m * n) for m, n in shapes.values()), default=0)

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        matrix, name = layer.matrix(), f"layer {layer.name}"
        h0, h1 = dowker(matrix, name=name)
        null = dowker_null(matrix, draws=self.draws, seed=derive_seed(self.seed, layer.name), name=name)
        scores = {f"{key}.z": z for key, z in null.scores(h1).items()}
        statistics = {**loop_values(h1), **scores, "misfit": null.misfit}
        flag = "" if matrix.any() else "degenerate"
        return Measurement(layer.name, layer.role, statistics, {"H0": h0, "H1": h1}, flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take sums and the largest, and of the z of all layers the one of their sum."""
        largest = {key: np.max(stacked(rows, key), axis=0) for key in ("longest", "misfit")}
        sums = {key: np.sum(stacked(rows, key), axis=0) for key in ("count", "total")}
        scored = [f"{key}.z" for key in SCORED if all(f"{key}.z" in row for row in rows)]
        return {**sums, **largest, **{z: np.sum(stacked(rows, z), axis=0) / np.sqrt(len(rows)) for z in scored}}
