"""Embedding matrices as point clouds, one point per token of the vocabulary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.homology import Moments, points_for_loops, two_nn
from toposcope.homology.memory import check_fits
from toposcope.homology.rips import expected_seconds
from toposcope.probes.feature import Kind
from toposcope.probes.point_clouds import (
    CLOUD_KINDS,
    check_normalisation,
    degree_of,
    draw_points,
    means,
    measure_cloud,
    spectral_statistics,
)
from toposcope.probes.probe import EMBEDDING, Failure, Measurement, Probe, ProbeInput, Shape, Value, guarded
from toposcope.probes.rips import cloud_bytes, landmark_flag

PSEUDO_LAYERS = (f"{EMBEDDING}.input", f"{EMBEDDING}.output")


class EmbeddingsProbe(Probe, frozen=True, tag="embeddings"):
    """Spectra and persistence of the rows of the input and the output embedding.

    The rows of the table are ``embedding.input`` and ``embedding.output``; tied embeddings have equal ones. Statistics
    are those of `hidden_states`. H0 is exact for any number of points. H1 of more than `max_points`, or more than fit
    into memory, is computed from farthest-point landmarks, with their cover radius; ``H1.count`` is always exact.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = CLOUD_KINDS
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    NORM: ClassVar[str] = "rms_radius"
    LEAST: ClassVar[Mapping[str, int]] = {"max_dimension": 0, "max_points": 1}

    max_dimension: int = 1  # see `toposcope.homology.rips`
    max_points: int | None = None  # see `toposcope.homology.rips`
    metric: Literal["euclidean", "cosine"] = "euclidean"
    normalize: bool = False  # whether the cloud is divided by its root mean square distance from the centroid
    seed: int = 42  # of the random points of ``two_nn``, as many as H1 uses

    def __post_init__(self) -> None:
        super().__post_init__()
        check_normalisation(self.metric, self.normalize)

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the two embeddings."""
        return list(PSEUDO_LAYERS)

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of two clouds with the shape of the largest layer, which mostly is an embedding."""
        n, d = max(shapes.values(), default=(0, 0))
        cloud = expected_seconds(n, d, max_dimension=self.max_dimension, max_points=self.max_points)
        return 2 * (cloud + 6e-11 * n * d * d)

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of one of them."""
        n, d = max(shapes.values(), default=(0, 0))
        return cloud_bytes(n, d, self.max_dimension, self.max_points)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        measured: dict[str, Measurement | Failure] = {}
        for name, layer in zip(PSEUDO_LAYERS, subject.embeddings, strict=True):
            if name not in subject.wanted:
                continue
            if layer.name not in measured:  # else they are tied
                measured[layer.name] = guarded(name, lambda layer=layer: self._measure(layer))  # type: ignore[misc]
            yield replace(measured[layer.name], layer=name)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over the two."""
        return means(rows)

    def degree(self, statistic: str) -> int:
        """Return the power of the scale; 0 after normalisation and for cosines."""
        return degree_of(statistic, self.metric, self.normalize)

    def _measure(self, layer: Layer) -> Measurement:
        stored = layer.matrix()
        moments = Moments(stored.shape[1])
        moments.add(stored, name=f"layer {layer.name}")
        n, d = stored.shape
        check_fits(
            8 * n * d,
            f"layer {layer.name}: its {n:,} rows of {d:,} entries in float64",
            "close other programs, or leave the probe embeddings out",
        )
        points = stored.astype(np.float64)
        del stored
        cloud = measure_cloud(
            points,
            metric=self.metric,
            normalize=self.normalize,
            max_dimension=self.max_dimension,
            max_points=self.max_points,
        )
        dimension, size = cloud.dimension, points_for_loops(n, self.max_points)
        if dimension is None:
            dimension = two_nn(points[draw_points(n, size, self.seed)], metric=self.metric).dimension
        spectral = spectral_statistics(moments.measures())
        statistics = spectral | cloud.statistics
        if np.isfinite(dimension):
            statistics["two_nn"] = dimension
        flag = landmark_flag(cloud.diagrams.values()) if spectral["rms_radius"] else "degenerate"
        return Measurement(layer.name, EMBEDDING, statistics, cloud.diagrams, flag)
