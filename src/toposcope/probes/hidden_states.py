"""The shape of what a model represents: hidden states of a fixed text as clouds of points (METHODS 3 to 5)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.roles import block_of
from toposcope.errors import ToposcopeError
from toposcope.homology import points_for_loops, two_nn
from toposcope.homology.rips import expected_seconds
from toposcope.models import LanguageModel, Tokenizer, TokenSequence, lines, windows
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.gathering import Gathered, gather
from toposcope.probes.point_clouds import (
    Cloud,
    degree_of,
    draw_points,
    kind_of_cloud,
    means,
    measure_cloud,
    refuse_idle_scale,
    spectral_statistics,
)
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, Shape, Subject, Value, guarded
from toposcope.probes.rips import check_sizes, cloud_bytes, landmark_flag
from toposcope.probes.row_draws import with_noise

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]


class HiddenStatesProbe(Probe, frozen=True, tag="hidden_states"):
    """Hidden states of a fixed text: their spectra, their intrinsic dimension, their persistence.

    The row ``network`` is of the last hidden state, behind the final norm, from which the model predicts. The others
    are called ``hidden.00``, that of the embedding, ``hidden.01``, behind the first block, and so on, role ``hidden``.

    Of all points, streamed: ``rankme``, ``effective_rank``, ``participation_ratio``, ``eigenspectrum_decay``,
    ``stable_rank``, ``top_eigenvalue``, ``anisotropy``, ``mean_norm``, ``rms_radius``, ``n_points``, ``n_zero``
    (see `toposcope.homology.spectral_measures`). Of the cloud: ``H0.*``, ``H1.*`` as of `rips`; ``two_nn``, of at most
    `max_points` points drawn at random; ``pca_variance``. With `scales`, the curves ``H1.betti@0.5`` and
    ``H1.landscape_1@0.5``. The rows of several layers combine by their means.

    Attributes
    ----------
    layers : "last", "all" or list of float
        Which hidden states: depths from 0, the embedding, to 1, the last, which is always among them.
    points : "tokens" or "texts"
        A point a token, or a point a text, the mean over its tokens.
    cut : "windows" or "lines"
        Texts are stretches of the text at even distances, or lines of at least 100 characters.
    texts, length : int
        How many, and the most tokens of each; the model's context, if that is less.
    max_points : int
        See `sample`.
    sample : "farthest" or "random"
        Of more than `max_points` points, which make the cloud. ``farthest``: all of them for H0, and landmarks from H1
        on, with their cover radius; if `max_points` is left out, all points as far as memory goes. ``random``: so many
        in every dimension, the same at every checkpoint.
    draws, seed : int
        Random samples, of which the first gives statistics and diagrams; of several, each statistic also has
        ``<name>.noise``, the standard deviation over them (ddof 1).
    pca : int
        Principal components the cloud is projected to; 0 for none. The published study took 50.
    metric : "euclidean" or "cosine"
    normalize : bool
        Whether the cloud is divided by its root mean square distance from the centroid.
    max_dimension : int
        See `toposcope.homology.rips`.
    scales : list of float
        Filtration values at which Betti curves and landscapes are told.
    keep : int
        Points of each layer, at even distances, that are kept for `similarity`.
    """

    VERSION: ClassVar[int] = 2
    KIND: ClassVar[Kind] = "topology"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"model"})
    REPEATS: ClassVar[frozenset[str]] = frozenset({"draws", "keep"})
    NORM: ClassVar[str] = "rms_radius"

    layers: Literal["last", "all"] | tuple[float, ...] = "last"
    points: Literal["tokens", "texts"] = "tokens"
    cut: Literal["windows", "lines"] = "windows"
    texts: int = 64
    length: int = 128
    max_points: int | None = None
    sample: Literal["farthest", "random"] = "farthest"
    draws: int = 1
    seed: int = 42
    pca: int = 0
    metric: Literal["euclidean", "cosine"] = "euclidean"
    normalize: bool = False
    max_dimension: int = 1
    scales: tuple[float, ...] = ()
    keep: int = 0

    def __post_init__(self) -> None:
        check_sizes(self.max_dimension, self.max_points)
        for name, least in (("texts", 1), ("length", 2), ("draws", 1), ("pca", 0), ("keep", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.sample == "random" and self.max_points is None:
            raise ValueError('sample = "random" needs max_points, how many points are drawn')
        if self.draws > 1 and self.sample != "random":
            raise ValueError(f'draws is {self.draws}; more than one needs sample = "random"')
        refuse_idle_scale(self.metric, self.normalize)
        if not isinstance(self.layers, str) and not all(0 <= depth <= 1 for depth in self.layers):
            raise ValueError(f"layers is {list(self.layers)}; depths lie between 0 and 1")
        told = {f"{scale:g}" for scale in self.scales}  # as in the names of statistics
        if not all(0 <= scale < math.inf for scale in self.scales) or len(told) < len(self.scales):
            raise ValueError(
                f"scales is {list(self.scales)}; they must be finite, at least 0, and apart in the first six digits"
            )

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the pseudo-layers of the chosen hidden states, by the number of blocks that the layers' names tell."""
        n_blocks = count_blocks(layers)
        return [*(hidden(k) for k in self._chosen(n_blocks) if k < n_blocks), NETWORK]

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return about how long the text takes to read, and the clouds of the chosen hidden states."""
        if not shapes:
            return 0.0
        n_tokens, n_parameters = self.texts * self.length, sum(m * n for m, n in shapes.values())
        n, d = self._expected_cloud(shapes)
        cloud = expected_seconds(n, self.pca or d, max_dimension=self.max_dimension, max_points=self.max_points)
        clouds = self.draws * len(self._chosen(count_blocks(shapes))) * cloud
        return clouds + 3e-11 * n_tokens * n_parameters

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the memory for the model, the states that are kept, and the cloud of one."""
        if not shapes:
            return 0
        n, d = self._expected_cloud(shapes)
        states = 8 * n * d * len(self._chosen(count_blocks(shapes)))
        model = 4 * sum(m * n for m, n in shapes.values())
        return model + states + cloud_bytes(n, d, self.max_dimension, self.max_points)

    def _expected_cloud(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return about how many points a cloud has, and its dimension."""
        n = self.texts * self.length if self.points == "tokens" else self.texts
        size = min(n, self.max_points or n) if self.sample == "random" else n
        return size, min(min(shape) for shape in shapes.values())

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
        """Measure what is wanted of a checkpoint."""
        if subject.reader is None:
            raise ToposcopeError("hidden_states: needs a model and a text to read; declare them in a study")
        model = subject.reader.model()
        sequences = self._sequences(subject.reader.text(), subject.reader.tokenizer(), model)
        last = model.n_states - 1
        states = {NETWORK if k == last else hidden(k): k for k in self._chosen(last)}
        told = self.covers([layer.name for layer in subject.layers])
        for layer in sorted(subject.wanted.intersection(told) - states.keys()):
            yield Failure(layer, f"{model.location}: has {last} blocks, fewer than its weights' names tell")
        wanted = {layer: k for layer, k in states.items() if layer in subject.wanted}
        found, flag = gather(model, sequences, wanted, pooled=self.points == "texts", chosen=self._needed(sequences))
        for layer, gathered in found.items():
            if gathered.n_bad:
                yield Failure(
                    layer,
                    f"{model.location}: {layer}: {gathered.n_bad} entries of its hidden states are not finite; the "
                    "model has diverged, or its dtype is too narrow",
                )
            else:
                yield guarded(layer, lambda layer=layer, gathered=gathered: self._measure(layer, gathered, flag))  # type: ignore[misc]

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Take means over layers."""
        return means(rows)

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``topology`` for what diagrams say, and what the spectral measures are."""
        return kind_of_cloud(statistic)

    def degree(self, statistic: str) -> int:
        """Return the power of the scale; what was normalised, and cosines, have none."""
        return degree_of(statistic, self.metric, self.normalize)

    def _chosen(self, n_blocks: int) -> list[int]:
        """Return the numbers of the hidden states, ascending; the last is always one of them."""
        if self.layers == "all":
            return list(range(n_blocks + 1))
        depths = () if isinstance(self.layers, str) else self.layers
        return sorted({*(round(depth * n_blocks) for depth in depths), n_blocks})

    def _sequences(self, text: str, tokenizer: Tokenizer, model: LanguageModel) -> list[TokenSequence]:
        cut = windows if self.cut == "windows" else lines
        return cut(text, tokenizer, self.texts, min(self.length, model.context))

    def _needed(self, sequences: Sequence[TokenSequence]) -> Indices | None:
        """Return which points are looked at one by one; None for all. The others are streamed past the spectra."""
        n = self._n_points(sequences)
        if self.sample == "farthest" or n <= self._size(n):
            return None
        return np.unique(np.concatenate([*self._draws(n), evenly(n, self.keep)]))

    def _n_points(self, sequences: Sequence[TokenSequence]) -> int:
        return len(sequences) if self.points == "texts" else sum(len(s.ids) - s.n_prefix for s in sequences)

    def _size(self, n: int) -> int:
        """Return how many of n points are drawn, or used for H1."""
        return points_for_loops(n, self.max_points)

    def _draws(self, n: int) -> list[Indices]:
        """Return the random samples of n points, of the same tokens at every checkpoint."""
        return [draw_points(n, self._size(n), self.seed, k) for k in range(self.draws)]

    def _measure(self, layer: str, gathered: Gathered, flag: str) -> Measurement:
        spectral = spectral_statistics(gathered.moments.measures())
        n = gathered.moments.n_points
        drawn = self._draws(n)
        if self.sample == "random" and n > self._size(n):
            clouds = [_without_cover_radius(self._cloud(gathered.at(indices))) for indices in drawn]
            chosen = "random points"
        else:
            clouds = [self._cloud(gathered.points)] * self.draws
            chosen = landmark_flag(clouds[0].diagrams.values())
        dimensions = [
            two_nn(gathered.at(indices), metric=self.metric).dimension if cloud.dimension is None else cloud.dimension
            for cloud, indices in zip(clouds, drawn, strict=True)
        ]
        told = [
            cloud.statistics | ({"two_nn": dimension} if np.isfinite(dimension) else {})
            for cloud, dimension in zip(clouds, dimensions, strict=True)
        ]
        shared = set.intersection(*(set(one) for one in told))
        statistics = spectral | with_noise([{name: one[name] for name in sorted(shared)} for one in told])
        return Measurement(
            layer,
            NETWORK if layer == NETWORK else HIDDEN,
            statistics,
            clouds[0].diagrams,
            ", ".join(filter(None, (flag, chosen))) if spectral["rms_radius"] else "degenerate",
            gathered.at(evenly(n, self.keep)).astype(np.float32) if self.keep else None,
        )

    def _cloud(self, points: Matrix) -> Cloud:
        return measure_cloud(
            points,
            metric=self.metric,
            normalize=self.normalize,
            pca=self.pca,
            max_dimension=self.max_dimension,
            max_points=self.max_points,
            scales=self.scales,
        )


def _without_cover_radius(cloud: Cloud) -> Cloud:
    """Say that it is not known how far other points are: they are not at hand."""
    known = {name: value for name, value in cloud.statistics.items() if not name.endswith("cover_radius")}
    diagrams = {name: replace(diagram, cover_radius=math.nan) for name, diagram in cloud.diagrams.items()}
    return cloud._replace(statistics=known, diagrams=diagrams)


def count_blocks(layers: Iterable[str]) -> int:
    """Return how many blocks the names of weight layers tell; 0 where they tell none."""
    return len({block for layer in layers if (block := block_of(layer)) is not None})


def hidden(k: int) -> str:
    """Return the name of a hidden state's pseudo-layer; two digits keep them in order."""
    return f"{HIDDEN}.{k:02d}"


def evenly(n: int, count: int) -> Indices:
    """Return at most `count` of the numbers 0 to n - 1, at even distances."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).round().astype(np.int64))
