"""Norms of weights, gradients and updates, measured by a monitor after a training step."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Measurement, Probe, ProbeInput, Value, stacked

SUMS = frozenset({"nonfinite", "nonfinite_gradients"})
NORMS = frozenset({"weight_norm", "gradient_norm", "update_norm"})


class TrainingProbe(Probe, frozen=True, tag="training"):
    """Norms and counts of each layer after an optimizer step."""

    KIND: ClassVar[Kind] = "norm"
    KINDS: ClassVar[Mapping[str, Kind]] = dict.fromkeys((*SUMS, "dead_units"), "control")
    SCALE_FREE: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"training"})

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Return the monitor's measurements of a layer, from the input ``training``."""
        found: Mapping[str, dict[str, float]] = subject.inputs["training"]
        return Measurement(layer.name, layer.role, found.get(layer.name, {}))

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Combine the statistics that all layers have."""
        names = [name for name in rows[0] if all(name in row for row in rows)]
        combined = {name: _combined(name, stacked(rows, name)) for name in names if name != "update_ratio"}
        if "update_ratio" in names and {"update_norm", "weight_norm"} <= combined.keys():
            before = stacked(rows, "update_norm") / np.maximum(stacked(rows, "update_ratio"), np.finfo(float).tiny)
            combined["update_ratio"] = combined["update_norm"] / np.linalg.norm(before, axis=0)
        return combined


def _combined(name: str, values: Any) -> Any:
    if name in NORMS:
        return np.linalg.norm(values, axis=0)
    return values.sum(axis=0) if name in SUMS else values.mean(axis=0)
