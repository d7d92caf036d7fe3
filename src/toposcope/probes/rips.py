"""Vietoris-Rips persistence of neurons: the rows of each weight matrix, or of all layers in one cloud (METHODS 3)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, points_for_loops, rips, statistics
from toposcope.homology.arrays import as_float_matrix
from toposcope.homology.loops import loop_bytes
from toposcope.homology.point_cloud import Cloud, Metric, as_cloud, with_distances
from toposcope.homology.rips import expected_seconds
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import (
    NOISE,
    POOLED,
    Failure,
    Measurement,
    Probe,
    Shape,
    Subject,
    Value,
    each_layer,
    guarded,
    stacked,
)
from toposcope.probes.row_draws import draw_rows, with_noise

Matrix = NDArray[np.float64]

SUMS = ("count", "total", "total_p2", "n_significant", "n_zero", "n_essential", "n_truncated")
LARGEST = ("max", "cover_radius")
MEANS = ("entropy", "entropy_normalized")


class RipsProbe(Probe, frozen=True, tag="rips"):
    """``H0.*``, ``H1.*`` of the rows of each layer; over the network the sums over layers (``TP_k`` is ``Hk.total``).

    Over the network ``mean`` is total / count, ``max`` and ``cover_radius`` are the largest, the entropies are means.

    Attributes
    ----------
    max_dimension, max_points, threshold
        See `toposcope.homology.rips`; ``max_points`` left out means all rows for H1, as far as memory goes.
    pooled : bool
        One cloud of all layers' rows, zero-padded to the widest, as the published study made it.
    sample : "farthest" or "random"
        Of more than `max_points` rows, which are taken. ``farthest``: all of them for H0, and landmarks from H1 on.
        ``random``: as many in every dimension, drawn uniformly without replacement, anew for every cloud, as the
        published study took them; ``cover_radius`` is theirs.
    draws : int
        Random samples, of which the first gives the statistics and diagrams; of several, each statistic also has
        ``<name>.noise``, the standard deviation over them (ddof 1), which is 0 where all rows are taken.
    seed : int
        Of the draws.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "topology"
    LATER: ClassVar[frozenset[str]] = frozenset({"sample", "draws", "seed"})
    REPEATS: ClassVar[frozenset[str]] = frozenset({"draws"})

    max_dimension: int = 1
    max_points: int | None = None
    threshold: float | None = None
    pooled: bool = False
    sample: Literal["farthest", "random"] = "farthest"
    draws: int = 1
    seed: int = 42

    def __post_init__(self) -> None:
        check_sizes(self.max_dimension, self.max_points)
        if self.threshold is not None and not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}; it must be at least 0")
        if self.sample == "random" and self.max_points is None:
            raise ValueError('sample = "random" needs max_points, how many rows are drawn')
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws}; it must be at least 1")
        if self.draws > 1 and self.sample != "random":
            raise ValueError(f'draws is {self.draws}; more than one needs sample = "random"')

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return every layer and the network, or the pooled cloud alone."""
        return [POOLED] if self.pooled else [*layers, NETWORK]

    def by_layer(self) -> bool:
        """Tell whether each layer is a cloud of its own."""
        return not self.pooled

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return about how long the clouds take."""
        drawn = self.max_points if self.sample == "random" else None
        return self.draws * sum(
            expected_seconds(
                m if drawn is None else min(m, drawn), n, max_dimension=self.max_dimension, max_points=self.max_points
            )
            for m, n in self._clouds(shapes)
        )

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the memory for the largest cloud, its distances and edges."""
        return max((cloud_bytes(m, n, self.max_dimension, self.max_points) for m, n in self._clouds(shapes)), default=0)

    def _clouds(self, shapes: Mapping[str, Shape]) -> Collection[Shape]:
        """Return the numbers of points and dimensions of every cloud."""
        if not self.pooled or not shapes:
            return shapes.values()
        return [(sum(m for m, _ in shapes.values()), max(n for _, n in shapes.values()))]

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        if self.pooled:
            if POOLED in subject.wanted:
                yield guarded(POOLED, lambda: self.measure_rows(_pool(subject.layers), POOLED, POOLED))
        else:
            yield from each_layer(
                self, subject, lambda layer: self.measure_rows(layer.matrix(), layer.name, layer.role)
            )

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Add up what adds up, and take largest values or means; the draws of layers are independent."""
        return combine_diagrams(rows, np.linalg.norm)

    def measure_rows(self, rows: Any, layer: str, role: str) -> Measurement:
        """Measure the cloud of a matrix's rows."""
        cloud = as_float_matrix(rows, f"layer {layer}").astype(np.float64, copy=False)
        if self.sample == "random" and self.max_points is not None and len(cloud) > self.max_points:
            chosen = draw_rows(cloud, self.max_points, self.seed, self.draws)
            drawn, flag = [self._diagrams_of_drawn(cloud, indices) for indices in chosen], "random rows"
        else:
            drawn = [self._diagrams(cloud)] * self.draws
            flag = landmark_flag(drawn[0])
        diagrams = {f"H{d.dimension}": d for d in drawn[0]}
        return Measurement(layer, role, with_noise([_named(found) for found in drawn]), diagrams, flag)

    def _diagrams(self, points: Matrix) -> list[Diagram]:
        cap = np.inf if self.threshold is None else self.threshold
        cloud = with_shared_distances(points, "euclidean", self.max_dimension, self.max_points)
        return rips(cloud, max_dimension=self.max_dimension, max_points=self.max_points, threshold=cap)

    def _diagrams_of_drawn(self, cloud: Matrix, chosen: NDArray[np.int64]) -> list[Diagram]:
        radius = as_cloud(cloud, "euclidean", "rows").cover_radius(chosen)
        return [replace(diagram, cover_radius=radius) for diagram in self._diagrams(cloud[chosen])]


def with_shared_distances(points: Matrix, metric: Metric, max_dimension: int, max_points: int | None) -> Matrix | Cloud:
    """Return a cloud with its distances where H1 needs all of them, for H0 to use them too; else the points."""
    if max_dimension == 0 or points_for_loops(len(points), max_points) < len(points):
        return points
    return with_distances(points, metric)


def landmark_flag(diagrams: Iterable[Diagram]) -> str:
    """Return how a row is flagged whose diagrams are of landmarks, one of them at least."""
    return "landmarks" if any(d.cover_radius > 0 or d.births is not None for d in diagrams) else ""


def _named(diagrams: Sequence[Diagram]) -> dict[str, float]:
    return {f"H{d.dimension}.{key}": value for d in diagrams for key, value in statistics(d).items()}


def cloud_bytes(n: int, d: int, max_dimension: int, max_points: int | None) -> int:
    """Return about how much memory a cloud of n points takes: the points a few times, distances, and edges."""
    return 24 * n * d + (loop_bytes(points_for_loops(n, max_points)) if max_dimension else 0)


def check_sizes(max_dimension: int, max_points: int | None) -> None:
    """Refuse options out of range when they are declared."""
    if max_dimension < 0:
        raise ValueError(f"max_dimension is {max_dimension}; it must be at least 0")
    if max_points is not None and max_points < 1:
        raise ValueError(f"max_points is {max_points}; it must be at least 1")


def combine_diagrams(rows: Sequence[Mapping[str, Value]], add_noise: Callable[..., Any]) -> dict[str, Any]:
    """Combine the statistics of several layers' diagrams.

    The noise of a sum is what `add_noise` makes of the layers' noise: the root of the sum of squares where layers are
    drawn independently, the sum, which it cannot exceed, where they are not. That of a largest value is left out.
    """
    result: dict[str, Any] = {}
    for name in rows[0]:
        statistic = name.partition(".")[2]
        values = stacked(rows, name)
        if statistic in SUMS:
            result[name] = values.sum(axis=0)
        elif statistic in LARGEST:
            result[name] = values.max(axis=0)
        elif statistic in MEANS:
            result[name] = values.mean(axis=0)
        elif statistic.removesuffix(NOISE) in SUMS:
            result[name] = add_noise(values, axis=0)
        elif statistic.removesuffix(NOISE) in MEANS:
            result[name] = add_noise(values, axis=0) / len(values)
    for dimension in {name.partition(".")[0] for name in rows[0]} & {f"H{k}" for k in range(10)}:
        total = np.asarray(result[f"{dimension}.total"])
        result[f"{dimension}.mean"] = (total / np.maximum(_n_bars(rows, dimension), 1))[()]
    return dict(sorted(result.items()))


def _n_bars(rows: Sequence[Mapping[str, Value]], dimension: str) -> NDArray[np.float64]:
    """Return how many bars the totals are of: of landmarks fewer than the count, which is exact."""
    count = stacked(rows, f"{dimension}.count")
    if f"{dimension}.cover_radius" not in rows[0]:
        return np.asarray(count.sum(axis=0))
    total, mean, radius = (stacked(rows, f"{dimension}.{name}") for name in ("total", "mean", "cover_radius"))
    of_landmarks = np.divide(total, mean, out=np.zeros_like(total), where=mean > 0)
    return np.asarray(np.where(radius > 0, of_landmarks, count).sum(axis=0))


def _pool(layers: Sequence[Layer]) -> Matrix:
    if not layers:
        raise ToposcopeError("no layers to pool")
    matrices = [as_float_matrix(layer.matrix(), f"layer {layer.name}").astype(np.float64) for layer in layers]
    width = max(m.shape[1] for m in matrices)
    return np.vstack([np.pad(m, ((0, 0), (0, width - m.shape[1]))) for m in matrices])
