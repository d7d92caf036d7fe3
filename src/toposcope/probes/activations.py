"""Hidden states, dead units and saturated units on a small fixed batch, measured by a monitor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.homology import spectral_measures
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.point_clouds import CLOUD_KINDS, means, measure_cloud, spectral_statistics
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, ProbeInput, Shape, Value, guarded


class ActivationsProbe(Probe, frozen=True, tag="activations"):
    """Outputs of the blocks on a small fixed batch: ranks, spectra, H0 and H1; dead and saturated units.

    The row ``hidden.01`` is the output of the first block, and so on; the row of the network has the means. Outputs
    have the statistics of `hidden_states`, on at most 512 tokens. ``dead_units`` and ``saturated_units`` are shares of
    the inputs of the second matrix of a block's MLP (see ``docs/methods/monitor.md``), absent if that matrix is not
    recognised.
    """

    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = {**CLOUD_KINDS, **dict.fromkeys(("dead_units", "saturated_units"), "control")}
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"training"})
    NORM: ClassVar[str] = "rms_radius"

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of a forward pass and of measuring its point clouds."""
        return 0.05 * len(shapes) + 3e-8 * sum(m * n for m, n in shapes.values())

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the outputs in the input ``training``: ``states`` and ``units``, by pseudo-layer."""
        found = subject.inputs["training"]
        rows = []
        for name, states in found.states.items():
            result = guarded(name, lambda name=name, states=states: _measured(name, states, found.units.get(name, {})))  # type: ignore[misc]
            if isinstance(result, Measurement):
                rows.append(result.statistics)
            yield result
        if rows and len(rows) == len(found.states):
            yield guarded(NETWORK, lambda: Measurement(NETWORK, NETWORK, self.combine(rows)))

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Average the statistics that all blocks have."""
        shared = set.intersection(*(set(row) for row in rows))
        return means([{name: row[name] for name in sorted(shared)} for row in rows])


def _measured(name: str, states: Any, units: Mapping[str, float]) -> Measurement:
    spectral = spectral_statistics(spectral_measures(states))
    cloud = measure_cloud(states.astype(np.float64), metric="euclidean", normalize=False, max_dimension=1)
    flag = "" if spectral["rms_radius"] else "degenerate"
    return Measurement(name, HIDDEN, {**spectral, **cloud.statistics, **units}, cloud.diagrams, flag)
