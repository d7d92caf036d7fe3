"""Vietoris-Rips persistence of neurons: the rows of each weight matrix, or of all layers in one cloud.

See ``docs/methods/point-clouds.md``.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, points_for_loops, rips, statistics
from toposcope.homology.arrays import as_float_matrix
from toposcope.homology.loops import loop_bytes
from toposcope.homology.point_cloud import Cloud, Metric, as_cloud, with_distances
from toposcope.homology.rips import components_batch, expected_seconds
from toposcope.homology.statistics import STATISTICS, statistics_batch
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import (
    NOISE,
    POOLED,
    Failure,
    Measurement,
    Probe,
    ProbeInput,
    Shape,
    Value,
    guarded,
    stacked,
)
from toposcope.probes.stacks import by_stacks
from toposcope.seeds import derive_seed
from toposcope.typing import Indices, Matrix


class RipsProbe(Probe, frozen=True, tag="rips"):
    """``H0.*``, ``H1.*`` of the rows of each layer; for the network the sums over layers (``TP_k`` is ``Hk.total``).

    For the network ``mean`` is total / count, ``max`` and ``cover_radius`` are the largest, the entropies are means.

    Attributes
    ----------
    max_dimension, max_points, threshold
        See `toposcope.homology.rips`; without ``max_points``, H1 uses all rows that fit into memory.
    pooled : bool
        Whether the rows of all layers, zero-padded to the widest, make one cloud, as in the published study.
    sample : "farthest" or "random"
        Which rows are used if there are more than `max_points`. ``farthest``: all for H0, and landmarks from H1 on.
        ``random``: `max_points` rows in every dimension, drawn uniformly without replacement for each cloud, as in the
        published study, with their cover radius.
    draws : int
        Random samples. Statistics are their means, diagrams those of the first; with several, each statistic also has
        ``<name>.noise``, the standard deviation over them (ddof 1), which is 0 if all rows are used.
    seed : int
        Of the draws.
    significant : float
        Bars longer than so many times the median are counted in ``n_significant``.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "topology"
    ROWS: ClassVar[bool] = True
    REPEATS: ClassVar[frozenset[str]] = frozenset({"draws"})
    LEAST: ClassVar[Mapping[str, int]] = {"max_dimension": 0, "max_points": 1, "draws": 1}

    max_dimension: int = 1
    max_points: int | None = None
    threshold: float | None = None
    pooled: bool = False
    sample: Literal["farthest", "random"] = "farthest"
    draws: int = 1
    seed: int = 42
    significant: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.significant < np.inf:
            raise ValueError(f"significant is {self.significant}; it must be finite and above 0")
        if self.threshold is not None and not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}; it must be at least 0")
        check_sampling(self.sample, self.draws, self.max_points, "rows")

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return every layer and the network, or only the pooled cloud."""
        return [POOLED] if self.pooled else [*layers, NETWORK]

    def by_layer(self) -> bool:
        """Return whether each layer is a cloud by itself."""
        return not self.pooled

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the clouds."""
        most = (self.max_points if self.sample == "random" else None) or sys.maxsize
        seconds = partial(expected_seconds, max_dimension=self.max_dimension, max_points=self.max_points)
        return self.draws * sum(seconds(min(m, most), n) for m, n in self._clouds(shapes))

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the largest cloud, its distances and edges."""
        return max((cloud_bytes(m, n, self.max_dimension, self.max_points) for m, n in self._clouds(shapes)), default=0)

    def _clouds(self, shapes: Mapping[str, Shape]) -> Collection[Shape]:
        """Return the numbers of points and dimensions of every cloud."""
        if not self.pooled or not shapes:
            return shapes.values()
        return [(sum(m for m, _ in shapes.values()), max(n for _, n in shapes.values()))]

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        if self.pooled:
            if POOLED in subject.wanted:
                yield guarded(POOLED, lambda: self.measure_rows(_pool(subject.layers), POOLED, POOLED))
        else:
            yield from super().measure(subject)

    def measure_layer(self, layer: Layer, subject: ProbeInput) -> Measurement:
        """Measure the rows of one layer."""
        if layer.name in subject.batch:
            diagram, of_diagram = subject.batch[layer.name]
            return Measurement(layer.name, layer.role, of_diagram, {"H0": diagram}, _point_flag(of_diagram))
        return self.measure_rows(layer.matrix(), layer.name, layer.role)

    def measure_batch(self, subjects: Sequence[ProbeInput]) -> list[list[Measurement | Failure]]:
        """Measure several checkpoints; where only H0 is wanted, small layers of one shape in one compiled call."""
        plain = self.sample != "random" and self.threshold is None and self.significant == 1
        if plain and not (self.pooled or self.max_dimension):
            known = by_stacks(subjects, _components_with_statistics)
            subjects = [replace(subject, batch=found) for subject, found in zip(subjects, known, strict=True)]
        return super().measure_batch(subjects)

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Combine by sums, maxima or means; the random draws of layers are independent."""
        return combine_diagrams(rows, np.linalg.norm)

    def measure_rows(self, rows: Any, layer: str, role: str) -> Measurement:
        """Measure the cloud of a matrix's rows."""
        cloud = as_float_matrix(rows, f"layer {layer}")  # computed in float64; a copy here would double the memory
        if self.sample == "random" and self.max_points is not None and len(cloud) > self.max_points:
            samples = draw_rows(cloud, self.max_points, self.seed, self.draws)
            diagrams_of_draws = [self._diagrams_of_sample(cloud, indices) for indices in samples]
            flag = "random rows"
        else:
            diagrams_of_draws = [self._diagrams(cloud)] * self.draws
            flag = landmark_flag(diagrams_of_draws[0])
        of_draws = [
            {f"H{d.dimension}.{key}": value for d in draw for key, value in self._statistics(d)}
            for draw in diagrams_of_draws
        ]
        diagrams = {f"H{d.dimension}": d for d in diagrams_of_draws[0]}
        return Measurement(layer, role, mean_with_noise(of_draws), diagrams, flag or _point_flag(of_draws[0]))

    def _statistics(self, diagram: Diagram) -> Iterable[tuple[str, float]]:
        return statistics(diagram, significant=self.significant).items()

    def _diagrams(self, points: NDArray[Any]) -> list[Diagram]:
        cap = np.inf if self.threshold is None else self.threshold
        cloud = with_shared_distances(points, "euclidean", self.max_dimension, self.max_points)
        return rips(cloud, max_dimension=self.max_dimension, max_points=self.max_points, threshold=cap)

    def _diagrams_of_sample(self, cloud: NDArray[Any], indices: Indices) -> list[Diagram]:
        radius = as_cloud(cloud, "euclidean", "rows").cover_radius(indices)
        return [replace(diagram, cover_radius=radius) for diagram in self._diagrams(cloud[indices])]


def check_sampling(sample: str, draws: int, max_points: int | None, what: str) -> None:
    """Refuse random samples of no size, and several samples that are not random."""
    if sample == "random" and max_points is None:
        raise ValueError(f'sample = "random" needs max_points, the number of {what}')
    if draws > 1 and sample != "random":
        raise ValueError(f'draws is {draws}; more than one needs sample = "random"')


def with_shared_distances(
    points: NDArray[Any], metric: Metric, max_dimension: int, max_points: int | None
) -> NDArray[Any] | Cloud:
    """Return a cloud with its distances if H1 needs all of them, so that H0 uses them too; else the points."""
    if max_dimension == 0 or points_for_loops(len(points), max_points) < len(points):
        return points
    return with_distances(points, metric)


def landmark_flag(diagrams: Iterable[Diagram]) -> str:
    """Return the flag ``landmarks`` if any of the diagrams is computed from landmarks, else an empty text."""
    return "landmarks" if any(d.cover_radius > 0 or d.births is not None for d in diagrams) else ""


def _point_flag(of_diagram: Mapping[str, float]) -> str:
    """Return the flag of a cloud of one point, whose totals of 0 are no measurement."""
    counts = (of_diagram[f"H0.{name}"] for name in ("count", "n_zero", "n_essential", "n_truncated"))
    return "one point" if sum(counts) == 1 else ""


def _components_with_statistics(stack: NDArray[Any]) -> list[tuple[Diagram, dict[str, float]] | None]:
    """Return H0 of many small clouds of one shape, each with its statistics."""
    diagrams = components_batch(stack)
    known = iter(statistics_batch([diagram for diagram in diagrams if diagram is not None]))
    return [
        None if diagram is None else (diagram, {f"H0.{name}": value for name, value in next(known).items()})
        for diagram in diagrams
    ]


def cloud_bytes(n: int, d: int, max_dimension: int, max_points: int | None) -> int:
    """Return the expected memory of a cloud of n points: copies of the points, distances, and edges."""
    return 24 * n * d + (loop_bytes(points_for_loops(n, max_points)) if max_dimension else 0)


def combine_diagrams(rows: Sequence[Mapping[str, Value]], add_noise: Callable[..., Any]) -> dict[str, Any]:
    """Combine the statistics of several layers' diagrams.

    The noise of a sum is `add_noise` of the layers' noise: the root of the sum of squares if their draws are
    independent, and otherwise the sum, an upper bound. The noise of a maximum is left out.
    """
    result: dict[str, Any] = {}
    for name in rows[0]:
        declared = STATISTICS.get(name.partition(".")[2].removesuffix(NOISE))
        how = declared.over_layers if declared else ""
        values, add = stacked(rows, name), add_noise if name.endswith(NOISE) else np.sum
        if how == "sum":
            result[name] = add(values, axis=0)
        elif how == "mean":
            result[name] = add(values, axis=0) / len(values)
        elif how == "largest" and add is np.sum:
            result[name] = values.max(axis=0)
    for dimension in {name.partition(".")[0] for name in rows[0]} & {f"H{k}" for k in range(10)}:
        total = np.asarray(result[f"{dimension}.total"])
        result[f"{dimension}.mean"] = (total / np.maximum(_n_bars(rows, dimension), 1))[()]
    return dict(sorted(result.items()))


def _n_bars(rows: Sequence[Mapping[str, Value]], dimension: str) -> NDArray[np.float64]:
    """Return the number of bars in the totals: with landmarks, fewer than the exact count."""
    count = stacked(rows, f"{dimension}.count")
    if f"{dimension}.cover_radius" not in rows[0]:
        return np.asarray(count.sum(axis=0))
    total, mean, radius = (stacked(rows, f"{dimension}.{name}") for name in ("total", "mean", "cover_radius"))
    n_landmark_bars = np.divide(total, mean, out=np.zeros_like(total), where=mean > 0)
    return np.asarray(np.where(radius > 0, n_landmark_bars, count).sum(axis=0))


def _pool(layers: Sequence[Layer]) -> Matrix:
    if not layers:
        raise ToposcopeError("no layers to pool")
    matrices = [as_float_matrix(layer.matrix(), f"layer {layer.name}").astype(np.float64) for layer in layers]
    width = max(m.shape[1] for m in matrices)
    return np.vstack([np.pad(m, ((0, 0), (0, width - m.shape[1]))) for m in matrices])


def draw_rows(cloud: NDArray[Any], count: int, seed: int, n_draws: int) -> list[NDArray[np.int64]]:
    """Draw `count` of the rows without replacement, `n_draws` times; equal rows, in any order, give equal draws."""
    # Adding zero turns -0.0, which is the same point, into 0.0.
    digests = [hashlib.sha256((row.astype(np.float64) + 0.0).tobytes()).digest() for row in cloud]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    whole = hashlib.sha256(b"".join(digests[i] for i in order)).hexdigest()
    generators = (np.random.default_rng(derive_seed(seed, "rows", draw, whole)) for draw in range(n_draws))
    return [np.sort(order[rng.choice(len(order), count, replace=False)]) for rng in generators]


def with_noise(draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the statistics of the first draw and, of several, their deviations (ddof 1) as ``<name>.noise``."""
    first = dict(draws[0])
    if len(draws) == 1:
        return first
    return first | {name + NOISE: _deviation([draw[name] for draw in draws]) for name in first}


def mean_with_noise(draws: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean statistics of draws and, of several, their deviations."""
    # a mean of equal values may round
    means = {name: _mean([draw[name] for draw in draws]) for name in draws[0]}
    return with_noise(draws) | means


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(set(values)) == 1 else math.fsum(value / len(values) for value in values)


def _deviation(values: Sequence[float]) -> float:
    largest = max(map(abs, values))
    unit = largest if largest > 0 else 1.0  # squares of very large values would overflow
    return float(np.std(np.array(values) / unit, ddof=1)) * unit
