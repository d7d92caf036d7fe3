"""Hidden states, attention, routing and units on a small fixed batch, measured by a monitor."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.homology import spectral_measures
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.point_clouds import CLOUD_KINDS, means, measure_cloud, spectral_statistics
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, ProbeInput, Shape, Value, guarded

MAX_POINTS = 512  # evenly spaced tokens of the batch whose hidden states and queries are measured
HIDDEN_STATES = "hidden_states"
"""Stands for the spectra, H0 and H1 of the outputs of the blocks where statistics are chosen."""
KURTOSIS, LOGIT_MAX = "activation_kurtosis", "attention_logit_max"
PER_HEAD = (LOGIT_MAX, "attention_entropy")
NORMS = ("query_norm", "key_norm")
ATTENTION = (*PER_HEAD, *NORMS)
UNITS = ("dead_units", "saturated_units")
ROUTING = ("dead_experts", "routing_entropy")
STATISTICS = (HIDDEN_STATES, KURTOSIS, *ATTENTION, *UNITS, *ROUTING)
"""Names by which statistics are chosen."""
_CONTROLS = dict.fromkeys((KURTOSIS, *PER_HEAD, *UNITS, *ROUTING), "control")


class ActivationsProbe(Probe, frozen=True, tag="activations"):
    """The blocks on a small fixed batch: ranks, spectra, H0 and H1 of their outputs; attention, routing and units.

    The row ``hidden.01`` is the first block, and so on; the row of the network has the means, and the largest of
    ``attention_logit_max``. Outputs have the statistics of `hidden_states`, on at most 512 tokens; the others are
    defined in ``docs/methods/monitor.md``, and absent where a block has none. Those of a head end in ``@head.03``.
    """

    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = {**CLOUD_KINDS, **_CONTROLS, **dict.fromkeys(NORMS, "norm")}  # type: ignore[dict-item]
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"training"})
    NORM: ClassVar[str] = "rms_radius"

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of a forward pass and of measuring its point clouds."""
        return 0.05 * len(shapes) + 3e-8 * sum(m * n for m, n in shapes.values())

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the blocks in the input ``training``: ``statistics`` and ``states``, by pseudo-layer."""
        found = subject.inputs["training"]
        rows = []
        for name, others in found.statistics.items():
            states = found.states.get(name)
            result = guarded(name, lambda name=name, states=states, others=others: _measured(name, states, others))  # type: ignore[misc]
            if isinstance(result, Measurement):
                rows.append(result.statistics)
            yield result
        if rows and len(rows) == len(found.statistics):
            yield guarded(NETWORK, lambda: Measurement(NETWORK, NETWORK, self.combine(rows)))

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return the kind of a statistic, that of a head included."""
        return super().kind(statistic.partition("@head.")[0])

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Average the statistics that all blocks have; of attention and routing, over the blocks that have them."""
        of_some = (*ATTENTION, *ROUTING)
        shared = {n for n in set.intersection(*(set(row) for row in rows)) if n.partition("@head.")[0] not in of_some}
        combined = means([{name: row[name] for name in sorted(shared)} for row in rows])
        for name in of_some:
            if values := [row[name] for row in rows if name in row]:
                combined[name] = (np.max if name == LOGIT_MAX else np.mean)(np.asarray(values), axis=0)
        return combined


def _measured(name: str, states: Any, others: Mapping[str, float]) -> Measurement:
    if states is None:
        return Measurement(name, HIDDEN, dict(others))
    spectral = spectral_statistics(spectral_measures(states))
    cloud = measure_cloud(states.astype(np.float64), metric="euclidean", normalize=False, max_dimension=1)
    flag = "" if spectral["rms_radius"] else "degenerate"
    return Measurement(name, HIDDEN, {**spectral, **cloud.statistics, **others}, cloud.diagrams, flag)
