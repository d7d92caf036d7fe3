"""Neural persistence of every weight matrix (Rieck et al. 2019; see ``docs/methods/neural-persistence.md``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import NeuralPersistence, neural_persistence
from toposcope.homology.neural_persistence import neural_persistence_batch
from toposcope.probes.feature import Kind
from toposcope.probes.probe import Failure, Measurement, Probe, ProbeInput, Value, each_layer, stacked
from toposcope.probes.row_blocks import largest_entry
from toposcope.probes.stacks import by_stacks


class NeuralPersistenceProbe(Probe, frozen=True, tag="neural_persistence"):
    """``np_mean``, ``np_norm``, ``np_normalized`` of every layer; for the network their means (Rieck Def. 4).

    The network also carries ``np_mean_std`` (population), ``np_mean_min`` and ``np_mean_max`` over its layers.
    """

    KIND: ClassVar[Kind] = "topology"

    # ``network`` divides every layer by the largest weight of all analysed layers (Rieck Algorithm 1)
    scale: Literal["layer", "network"] = "layer"
    p: float = 2.0
    essential: Literal["drop", "count"] = "drop"

    def __post_init__(self) -> None:
        if not 1 <= self.p < np.inf:
            raise ValueError(f"p is {self.p}; it must be a number of at least 1")

    def by_layer(self) -> bool:
        """Return whether each layer has its own scale."""
        return self.scale == "layer"

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        scale: Literal["layer"] | float = "layer"
        if self.scale == "network":
            try:
                scale = max((largest_entry(layer) for layer in subject.layers), default=0.0)
            except ToposcopeError as error:
                covered = self.covers([layer.name for layer in subject.layers])
                yield from (Failure(n, f"no network scale: {error}") for n in covered if n in subject.wanted)
                return
        yield from each_layer(self, subject, lambda layer: self._measure(layer, subject.batch, scale))

    def measure_batch(self, subjects: Sequence[ProbeInput]) -> list[list[Measurement | Failure]]:
        """Measure several checkpoints, small layers of one shape in one compiled call."""
        if self.scale == "layer":
            measure = partial(neural_persistence_batch, p=self.p, essential=self.essential)
            known = by_stacks(subjects, measure, narrow=True)
            subjects = [replace(subject, batch=found) for subject, found in zip(subjects, known, strict=True)]
        return super().measure_batch(subjects)

    def _measure(
        self, layer: Layer, known: Mapping[str, NeuralPersistence], scale: Literal["layer"] | float
    ) -> Measurement:
        persistence = known.get(layer.name) or neural_persistence(
            layer.read_narrow(), scale=scale, p=self.p, essential=self.essential, name=f"layer {layer.name}"
        )
        flag = "degenerate" if persistence.degenerate else ""
        statistics = persistence_statistics(persistence)
        return Measurement(layer.name, layer.role, statistics, {"NP": persistence.diagram}, flag)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over layers (Rieck Def. 4), and the spread of ``np_mean``."""
        return combine_persistence(rows)


def persistence_statistics(persistence: NeuralPersistence) -> dict[str, float]:
    """Return the reported statistics of one matrix."""
    return {"np_mean": persistence.mean, "np_norm": persistence.norm, "np_normalized": persistence.normalized}


def combine_persistence(rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return the means over layers of `persistence_statistics`, and the spread of ``np_mean``."""
    means = stacked(rows, "np_mean")
    return {
        **{name: np.mean(stacked(rows, name), axis=0) for name in ("np_mean", "np_norm", "np_normalized")},
        "np_mean_std": means.std(axis=0),
        "np_mean_min": means.min(axis=0),
        "np_mean_max": means.max(axis=0),
    }
