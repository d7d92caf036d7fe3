"""Persistence of gradient matrices on fixed batches: of the training loss, or of a text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence
from toposcope.probes.feature import Kind
from toposcope.probes.neural_persistence import combine_persistence, persistence_statistics
from toposcope.probes.probe import NOISE, Failure, Measurement, Probe, ProbeInput, Shape, Value, each_layer, stacked
from toposcope.probes.rips import RipsProbe, combine_diagrams, with_noise

if TYPE_CHECKING:
    from torch import Tensor

NORM = "gradient_norm"


class GradientRipsProbe(Probe, frozen=True, tag="gradient_rips"):
    """Persistence of each layer's gradient: as the point cloud of its rows, and as a bipartite graph.

    The loss is that of runs which the study trained on batches of their training text, of any other model on windows of
    the study's text.

    ``H0.*``, ``H1.*`` as in `rips`; ``np_mean``, ``np_norm``, ``np_normalized`` as in `neural_persistence`; and the
    Frobenius norm ``gradient_norm``, for the network that of one long vector.
    """

    VERSION: ClassVar[int] = 4
    KIND: ClassVar[Kind] = "topology"
    ROWS: ClassVar[bool] = True
    KINDS: ClassVar[Mapping[str, Kind]] = {NORM: "norm"}
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"gradients"})
    REPEATS: ClassVar[frozenset[str]] = frozenset({"batches"})
    NORM: ClassVar[str] = NORM
    LEAST: ClassVar[Mapping[str, int]] = {
        "max_dimension": 0,
        "max_points": 1,
        "batches": 1,
        "sequences": 1,
        "length": 2,
    }

    max_dimension: int = 1  # see `toposcope.homology.rips`
    max_points: int | None = None  # see `toposcope.homology.rips`
    # number of fixed batches. The first gives the statistics and diagrams; with several, each statistic also has
    # ``<name>.noise``, the standard deviation over them (ddof 1). For the network this is an upper bound: all layers
    # see the same batches, so that their noise may add up
    batches: int = 1
    sequences: int = 8  # windows of the text in a batch, spread evenly; of a run trained by the study, its batch size
    length: int = 128  # tokens of a window; at most the model's context

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the clouds of all batches."""
        return self.batches * self._row_probe().expected_seconds(shapes)

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the gradients and the largest cloud."""
        return 4 * self.batches * sum(m * n for m, n in shapes.values()) + self._row_probe().expected_bytes(shapes)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        gradients, lowered = subject.gradients(self.batches, self.sequences, self.length)

        def measure(layer: Layer) -> Measurement:
            if layer.name not in gradients[0]:
                raise ToposcopeError(
                    f"layer {layer.name}: it is no parameter of the model that is built of its weights"
                )
            return self._measure(layer, [gradient[layer.name] for gradient in gradients], lowered)

        yield from each_layer(self, subject, measure)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Combine norms as those of one long vector, diagrams as `rips` does, neural persistence by its mean."""
        result = combine_diagrams(rows, np.sum) | combine_persistence(rows)
        # Neither changes more than the vector of all layers' norms, so its noise is at most this.
        result |= {n: np.linalg.norm(stacked(rows, n), axis=0) for n in rows[0] if n.removesuffix(NOISE) == NORM}
        means = [name for name in rows[0] if name.startswith("np_") and name.endswith(NOISE)]
        return result | {name: np.mean(stacked(rows, name), axis=0) for name in means}

    def _measure(self, layer: Layer, gradients: "Sequence[Tensor]", lowered: str) -> Measurement:
        measurements = [self._measure_one(layer, gradient) for gradient in gradients]
        first = measurements[0]
        statistics = with_noise([measurement.statistics for measurement in measurements])
        flag = ", ".join(filter(None, (lowered, first.flag)))
        return Measurement(layer.name, layer.role, statistics, first.diagrams, flag)

    def _row_probe(self) -> RipsProbe:
        return RipsProbe(max_dimension=self.max_dimension, max_points=self.max_points)

    def _measure_one(self, layer: Layer, gradient: "Tensor") -> Measurement:
        cloud = self._row_probe().measure_rows(gradient, layer.name, layer.role)
        graph = neural_persistence(gradient, name=f"layer {layer.name}")
        norm = {NORM: float(np.linalg.norm(gradient.double().numpy()))}
        return Measurement(
            layer.name,
            layer.role,
            norm | cloud.statistics | persistence_statistics(graph),
            cloud.diagrams | {"NP": graph.diagram},
            flag="degenerate" if graph.degenerate else cloud.flag,
        )
