"""Vietoris-Rips persistence of gradient matrices on one fixed batch, for runs this study trained."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.probes.probe import Failure, Measurement, Need, Probe, Subject, each_layer
from toposcope.probes.rips import RipsProbe, check_sizes, network_statistics


class GradientRipsProbe(Probe, frozen=True, tag="gradient_rips"):
    """``H0.*``, ``H1.*`` of the rows of each layer's gradient, and its Frobenius norm ``gradient_norm``.

    Over the network as for `rips`; ``gradient_norm`` combines as of one long vector.

    Attributes
    ----------
    max_dimension, max_points
        See `toposcope.homology.rips`.
    """

    VERSION: ClassVar[int] = 2
    NEEDS: ClassVar[frozenset[Need]] = frozenset({"gradients"})

    max_dimension: int = 1
    max_points: int = 2000

    def __post_init__(self) -> None:
        check_sizes(self.max_dimension, self.max_points)

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        if subject.gradients is None:
            raise ToposcopeError("gradient_rips: only runs that this study trained can be evaluated")
        gradients = subject.gradients()
        rows = RipsProbe(max_dimension=self.max_dimension, max_points=self.max_points)

        def measure_layer(layer: Layer) -> Measurement:
            gradient: Tensor = gradients[layer.name]
            found = rows.measure_rows(gradient, layer.name, layer.role)
            norm = float(np.linalg.norm(gradient.double().numpy()))
            return Measurement(
                layer.name, layer.role, {"gradient_norm": norm, **found.statistics}, found.diagrams, found.flag
            )

        yield from each_layer(subject, measure_layer, _network)


def _network(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    norm = float(np.linalg.norm([row["gradient_norm"] for row in rows]))
    return {"gradient_norm": norm, **network_statistics(rows)}
