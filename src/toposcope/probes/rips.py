"""Vietoris-Rips persistence of neurons: the rows of each weight matrix, or of all layers in one cloud (METHODS 3)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import rips, statistics
from toposcope.homology.arrays import as_float_matrix
from toposcope.probes.probe import NETWORK, POOLED, Failure, Measurement, Probe, Subject, each_layer, guarded

SUMS = ("count", "total", "total_p2", "n_significant", "n_zero", "n_essential", "n_truncated")
LARGEST = ("max", "cover_radius")
MEANS = ("entropy", "entropy_normalized")


class RipsProbe(Probe, frozen=True, tag="rips"):
    """``H0.*``, ``H1.*`` of the rows of each layer; over the network the sums over layers (``TP_k`` is ``Hk.total``).

    Over the network ``mean`` is total / count, ``max`` and ``cover_radius`` are the largest, the entropies are means.

    Attributes
    ----------
    max_dimension, max_points, threshold
        See `toposcope.homology.rips`.
    pooled : bool
        One cloud of all layers' rows, zero-padded to the widest, as the published study made it.
    """

    VERSION: ClassVar[int] = 2

    max_dimension: int = 1
    max_points: int = 2000
    threshold: float | None = None
    pooled: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.max_dimension, self.max_points)
        if self.threshold is not None and not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}; it must be at least 0")

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return every layer and the network, or the pooled cloud alone."""
        return [POOLED] if self.pooled else [*layers, NETWORK]

    def by_layer(self) -> bool:
        """Tell whether each layer is a cloud of its own."""
        return not self.pooled

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        if self.pooled:
            if POOLED in subject.wanted:
                yield guarded(POOLED, lambda: self.measure_rows(_pool(subject.layers), POOLED, POOLED))
        else:
            yield from each_layer(
                subject, lambda layer: self.measure_rows(layer.matrix(), layer.name, layer.role), network_statistics
            )

    def measure_rows(self, rows: Any, layer: str, role: str) -> Measurement:
        """Measure the cloud of a matrix's rows."""
        cap = np.inf if self.threshold is None else self.threshold
        found = rips(
            as_float_matrix(rows, f"layer {layer}"),
            max_dimension=self.max_dimension,
            max_points=self.max_points,
            threshold=cap,
        )
        diagrams = {f"H{d.dimension}": d for d in found}
        values = {f"{name}.{key}": value for name, d in diagrams.items() for key, value in statistics(d).items()}
        return Measurement(layer, role, values, diagrams, flag="landmarks" if found[-1].cover_radius else "")


def check_sizes(max_dimension: int, max_points: int) -> None:
    """Refuse options out of range when they are declared."""
    if max_dimension < 0:
        raise ValueError(f"max_dimension is {max_dimension}; it must be at least 0")
    if max_points < 1:
        raise ValueError(f"max_points is {max_points}; it must be at least 1")


def network_statistics(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Combine the statistics of all layers' diagrams."""
    result: dict[str, float] = {}
    for name in rows[0]:
        statistic = name.partition(".")[2]
        values = np.array([row[name] for row in rows])
        if statistic in SUMS:
            result[name] = float(values.sum())
        elif statistic in LARGEST:
            result[name] = float(values.max())
        elif statistic in MEANS:
            result[name] = float(values.mean())
    for dimension in {name.partition(".")[0] for name in rows[0]} & {f"H{k}" for k in range(10)}:
        count = result[f"{dimension}.count"]
        result[f"{dimension}.mean"] = result[f"{dimension}.total"] / count if count else 0.0
    return dict(sorted(result.items()))


def _pool(layers: Sequence[Layer]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    if not layers:
        raise ToposcopeError("no layers to pool")
    matrices = [as_float_matrix(layer.matrix(), f"layer {layer.name}").astype(np.float64) for layer in layers]
    width = max(m.shape[1] for m in matrices)
    return np.vstack([np.pad(m, ((0, 0), (0, width - m.shape[1]))) for m in matrices])
