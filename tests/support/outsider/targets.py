"""A new kind of input, a file ``targets.json`` of norms by layer beside the checkpoints, and a probe that needs it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.errors import ToposcopeError
from toposcope.probes import Failure, Kind, Measurement, Probe, Subject
from toposcope.probes.needs import Need, RunContext
from toposcope.probes.probe import Value, each_layer, stacked


def key(checkpoint: Checkpoint, run: RunContext) -> str:
    """Return the content of the file."""
    file = run.origin.find(checkpoint, "targets.json")
    if file is None:
        raise ToposcopeError(f"{checkpoint.location}: no targets.json beside it; save one")
    return file.read(0, file.size).tobytes().decode()


def provide(checkpoint: Checkpoint, run: RunContext) -> dict[str, float]:
    """Return the norms by layer."""
    return dict(json.loads(key(checkpoint, run)))


NEED = Need("targets", provide, key)


class TargetDistanceProbe(Probe, frozen=True, tag="target_distance"):
    """``distance``: of each layer's Frobenius norm from its target; over the network the sum."""

    KIND: ClassVar[Kind] = "norm"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"targets"})

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        targets = subject.inputs["targets"]

        def measure_layer(layer: Layer) -> Measurement:
            norm = float(np.linalg.norm(layer.matrix().astype(np.float64)))
            return Measurement(layer.name, layer.role, {"distance": abs(norm - targets[layer.name])})

        yield from each_layer(self, subject, measure_layer)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Sum over layers."""
        return {"distance": np.sum(stacked(rows, "distance"), axis=0)}
