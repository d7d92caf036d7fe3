"""The clustering coefficient of the graph of every weight matrix, a baseline of neural persistence."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toposcope.checkpoints import Layer
from toposcope.homology.matrix_controls import clustering_coefficient
from toposcope.probes.feature import Kind
from toposcope.probes.point_clouds import means
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Value


class ClusteringProbe(Probe, frozen=True, tag="clustering"):
    """``coefficient`` of every layer (see `clustering_coefficient`); for the network the mean over layers."""

    KIND: ClassVar[Kind] = "control"

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure one layer."""
        W = layer.read()
        coefficient = clustering_coefficient(W, name=f"layer {layer.name}")
        flag = "" if W.any() else "degenerate"
        return Measurement(layer.name, layer.role, {"coefficient": coefficient}, flag=flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take the mean over layers."""
        return means(rows)
