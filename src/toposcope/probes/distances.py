"""The distance of each diagram from the previous checkpoint's (see ``docs/methods/diagrams.md``)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology import diagram_distances
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, ProbeInput, Value, each_layer, guarded, stacked


class DistancesProbe(Probe, frozen=True, tag="distances"):
    """``H0.wasserstein_1``, ``H0.wasserstein_2``, ``H0.bottleneck`` and so on, to the layer at the previous checkpoint.

    For the network, the first-order distances are added, the second-order ones combine as a Euclidean norm, and the
    bottleneck distance is the largest of the layers.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "topology"
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"diagrams", "previous"})

    # the probe whose diagrams are compared. It must be declared too; of several, the first is used. For hidden states
    # every row is compared by itself, also ``network``
    of: Literal["rips", "neural_persistence", "hidden_states"] = "rips"

    def source(self, probes: Sequence[Probe]) -> Probe:
        """Return the probe whose diagrams are compared."""
        for probe in probes:
            if probe.name() == self.of and not getattr(probe, "pooled", False):
                return probe
        raise ToposcopeError(f'probes: distances compares the diagrams of {self.of}; declare name = "{self.of}" too')

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        if self.of == "hidden_states":
            for name in sorted(subject.wanted):
                role = NETWORK if name == NETWORK else HIDDEN
                yield guarded(name, lambda name=name, role=role: self._measure(name, role, subject))  # type: ignore[misc]
        else:
            yield from each_layer(self, subject, lambda layer: self._measure(layer.name, layer.role, subject))

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Add first-order distances, combine second-order ones as a Euclidean norm, take the largest bottleneck."""
        return {name: _COMBINE[name.partition(".")[2]](stacked(rows, name), axis=0) for name in rows[0]}

    def _measure(self, layer: str, role: str, subject: ProbeInput) -> Measurement:
        for step, diagrams in (("this", subject.diagrams), ("the previous", subject.previous_diagrams)):
            if layer not in diagrams:
                raise ToposcopeError(f"layer {layer}: {self.of} has no diagram of it at {step} checkpoint")
        statistics: dict[str, float] = {}
        before = subject.previous_diagrams[layer]
        for name, diagram in subject.diagrams[layer].items():
            distances = diagram_distances(before[name], diagram)._asdict()
            if not np.isfinite(distances["bottleneck"]):
                raise ToposcopeError(
                    f"layer {layer}: {name} has {diagram.n_essential} essential and {diagram.n_truncated} truncated "
                    f"classes, before {before[name].n_essential} and {before[name].n_truncated}: infinitely far apart; "
                    f"take no threshold in {self.of}"
                )
            statistics |= {f"{name}.{distance}": value for distance, value in distances.items()}
        return Measurement(layer, role, statistics)

    def degree(self, statistic: str) -> int:
        """Return the power of the scale; 0 for diagrams of neural persistence."""
        return 0 if self.of == "neural_persistence" else 1


_COMBINE: dict[str, Callable[..., Any]] = {
    "wasserstein_1": np.sum,
    "wasserstein_2": np.linalg.norm,
    "bottleneck": np.max,
}
