"""The clustering coefficient of the graph of every weight matrix, a baseline of neural persistence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.homology.matrix_controls import clustering_coefficient
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Failure, Measurement, Probe, Subject, Value, each_layer, stacked


class ClusteringProbe(Probe, frozen=True, tag="clustering"):
    """``coefficient`` of every layer (see `clustering_coefficient`); for the network the mean over layers."""

    KIND: ClassVar[Kind] = "control"

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""

        def measure_layer(layer: Layer) -> Measurement:
            W = layer.read()
            coefficient = clustering_coefficient(W, name=f"layer {layer.name}")
            flag = "" if W.any() else "degenerate"
            return Measurement(layer.name, layer.role, {"coefficient": coefficient}, flag=flag)

        yield from each_layer(self, subject, measure_layer)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take the mean over layers."""
        return {"coefficient": np.mean(stacked(rows, "coefficient"), axis=0)}
