"""Hidden states of a fixed text as point clouds (see ``docs/methods/hidden-states.md``)."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from toposcope.checkpoints.roles import block_of
from toposcope.errors import ToposcopeError
from toposcope.homology import Moments, points_for_loops, two_nn
from toposcope.homology.memory import check_fits
from toposcope.homology.rips import expected_seconds
from toposcope.models import LanguageModel, Reader, StateBlock, TokenSequence, hidden_states, lines, windows
from toposcope.models.running import pooled as mean_of_texts
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.point_clouds import (
    CLOUD_KINDS,
    CloudMeasurement,
    check_normalisation,
    degree_of,
    draw_points,
    means,
    measure_cloud,
    spectral_statistics,
)
from toposcope.probes.probe import HIDDEN, Failure, Measurement, Probe, ProbeInput, Shape, Value, guarded, lowered
from toposcope.probes.rips import check_sampling, cloud_bytes, landmark_flag, mean_with_noise
from toposcope.typing import Indices, Matrix

MIN_POINTS = 2  # one point has neither a distance nor a spread


@dataclass
class StatePoints:
    """The points of one hidden state."""

    moments: Moments  # of all points
    points: Matrix  # shape (k, width); the selected points, in the order of the text
    selected: Indices | None  # shape (k,); their indices, ascending; None if all points are selected
    n_bad: int = 0  # entries that are NaN or infinite; if there are any, moments and points are not valid

    def add(self, places: Indices, states: Matrix) -> None:
        """Add points with their indices."""
        self.n_bad += int(np.count_nonzero(~np.isfinite(states)))
        if not self.n_bad:
            self.moments.add(states)
            self._select(places, states)

    def at(self, indices: Indices) -> Matrix:
        """Return selected points by their indices."""
        return self.points[indices if self.selected is None else np.searchsorted(self.selected, indices)]

    def _select(self, places: Indices, points: Matrix) -> None:
        if self.selected is None:
            self.points[places] = points
            return
        rows = np.searchsorted(self.selected, places)
        is_selected = self.selected[np.minimum(rows, len(self.selected) - 1)] == places
        self.points[rows[is_selected]] = points[is_selected]


def gather(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    wanted: Mapping[str, int],
    *,
    pooled: bool,
    selected: Indices | None,
) -> tuple[dict[str, StatePoints], str]:
    """Read a text and collect its hidden states as points."""
    counts = [1 if pooled else len(sequence.ids) - sequence.n_prefix for sequence in sequences]
    begins = np.concatenate([[0], np.cumsum(counts)])
    n_selected = int(begins[-1]) if selected is None else len(selected)
    check_fits(
        8 * n_selected * model.width * len(wanted),
        f"{model.location}: {n_selected} points of {len(wanted)} hidden states",
        'give fewer or shorter texts, or sample = "random", which uses only max_points',
    )
    points: dict[str, StatePoints] = {}
    batch = 0
    for block in hidden_states(model, sequences, list(wanted.values())):
        places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in block.places])
        batch = block.batch or batch
        for layer, states in zip(wanted, _points(block, pooled), strict=True):
            if layer not in points:  # some models have a narrower last state
                width = states.shape[1]
                points[layer] = StatePoints(Moments(width), np.empty((n_selected, width)), selected)
            points[layer].add(places, states)
    return points, f"batch halved to {batch}" if batch else ""


def _points(block: StateBlock, pooled: bool) -> list[Matrix]:
    if pooled:
        return [mean_of_texts(states, block.measured) for states in block.states]
    return [states[block.measured].double().numpy() for states in block.states]


class HiddenStatesProbe(Probe, frozen=True, tag="hidden_states"):
    """Hidden states of a fixed text: their spectra, their intrinsic dimension, their persistence.

    The row ``network`` is the last hidden state, after the final norm, from which the model predicts. The others are
    ``hidden.00``, the embedding, ``hidden.01``, after the first block, and so on, with the role ``hidden``.
    """

    VERSION: ClassVar[int] = 3
    KIND: ClassVar[Kind] = "topology"
    KINDS: ClassVar[Mapping[str, Kind]] = CLOUD_KINDS
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"model"})
    REPEATS: ClassVar[frozenset[str]] = frozenset({"draws", "keep"})
    NORM: ClassVar[str] = "rms_radius"
    LEAST: ClassVar[Mapping[str, int]] = {
        **{"max_dimension": 0, "max_points": 1},
        **{"texts": 1, "length": 2, "draws": 1, "pca": 0, "keep": 0},
    }

    # which hidden states: depths from 0, the embedding, to 1, the last, which is always included
    layers: Literal["last", "all"] | tuple[float, ...] = "last"
    points: Literal["tokens", "texts"] = "tokens"  # whether a point is a token, or a text: the mean over its tokens
    # whether the texts are passages at even distances, or lines of at least 100 characters
    cut: Literal["windows", "lines"] = "windows"
    texts: int = 64
    length: int = 128  # the most tokens of a text; at most the model's context
    max_points: int | None = None  # see `sample`
    # which points make the cloud if there are more than `max_points`. ``farthest``: all for H0, and landmarks from H1
    # on, with their cover radius; without `max_points`, as many as fit into memory. ``random``: `max_points` random
    # points in every dimension, the same at every checkpoint
    sample: Literal["farthest", "random"] = "farthest"
    # random samples. The first gives the statistics and diagrams; with several, each statistic also has
    # ``<name>.noise``, the standard deviation over them (ddof 1)
    draws: int = 1
    seed: int = 42
    pca: int = 0  # principal components the cloud is projected to; 0 for none. The published study used 50
    metric: Literal["euclidean", "cosine"] = "euclidean"
    normalize: bool = False  # whether the cloud is divided by its root mean square distance from the centroid
    max_dimension: int = 1  # see `toposcope.homology.rips`
    scales: tuple[float, ...] = ()  # filtration values at which Betti curves and landscapes are reported
    keep: int = 0  # points of each layer, at even distances, that are stored for `similarity`

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampling(self.sample, self.draws, self.max_points, "points")
        check_normalisation(self.metric, self.normalize)
        if not isinstance(self.layers, str) and not all(0 <= depth <= 1 for depth in self.layers):
            raise ValueError(f"layers is {list(self.layers)}; depths must be between 0 and 1")
        names = {f"{scale:g}" for scale in self.scales}  # as in the names of statistics
        if not all(0 <= scale < math.inf for scale in self.scales) or len(names) < len(self.scales):
            raise ValueError(
                f"scales is {list(self.scales)}; they must be finite, at least 0, and differ in their first six digits"
            )

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return the pseudo-layers of the selected hidden states, given the number of blocks in the layers' names."""
        n_blocks = count_blocks(layers)
        return [*(hidden(k) for k in self._state_indices(n_blocks) if k < n_blocks), NETWORK]

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of reading the text, and of the clouds of the selected hidden states."""
        if not shapes:
            return 0.0
        n_tokens, n_parameters = self.texts * self.length, sum(m * n for m, n in shapes.values())
        n, d = self._expected_cloud(shapes)
        cloud = expected_seconds(n, self.pca or d, max_dimension=self.max_dimension, max_points=self.max_points)
        clouds = self.draws * len(self._state_indices(count_blocks(shapes))) * cloud
        return clouds + 3e-11 * n_tokens * n_parameters

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of the model, the collected states, and one cloud."""
        if not shapes:
            return 0
        n, d = self._expected_cloud(shapes)
        states = 8 * n * d * len(self._state_indices(count_blocks(shapes)))
        model = 4 * sum(m * n for m, n in shapes.values())
        return model + states + cloud_bytes(n, d, self.max_dimension, self.max_points)

    def _expected_cloud(self, shapes: Mapping[str, Shape]) -> Shape:
        n = self.texts * self.length if self.points == "tokens" else self.texts
        size = min(n, self.max_points or n) if self.sample == "random" else n
        return size, min(min(shape) for shape in shapes.values())

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        reader = subject.text_reader(self.name())
        model, sequences = reader.model(), self._sequences(reader)
        last = model.n_states - 1
        n_points = self._n_points(sequences)
        if n_points < MIN_POINTS:
            raise ToposcopeError(
                f"{self.name()}: {n_points} point, of {lowered(texts=(self.texts, len(sequences))) or 'one text'}; "
                'a cloud needs 2: give a longer text, a smaller length, or points = "tokens"'
            )
        states = {NETWORK if k == last else hidden(k): k for k in self._state_indices(last)}
        covered = self.covers([layer.name for layer in subject.layers])
        for layer in sorted(subject.wanted.intersection(covered) - states.keys()):
            yield Failure(layer, f"{model.location}: has {last} blocks, fewer than the names of its weights show")
        wanted = {layer: k for layer, k in states.items() if layer in subject.wanted}
        points_of, flag = gather(
            model, sequences, wanted, pooled=self.points == "texts", selected=self._selected_points(sequences)
        )
        depths = 0 if isinstance(self.layers, str) else len({*self.layers, 1.0})
        less = lowered(
            texts=(self.texts, len(sequences)),
            tokens_in_a_text=(self.length, model.context),
            layers=(depths, len(states)),
            kept_points=(self.keep, n_points),
        )
        flag = ", ".join(filter(None, (flag, less)))
        for layer, gathered in points_of.items():
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

    def degree(self, statistic: str) -> int:
        """Return the power of the scale; 0 after normalisation and for cosines."""
        return degree_of(statistic, self.metric, self.normalize)

    def _state_indices(self, n_blocks: int) -> list[int]:
        """Return the indices of the selected hidden states, ascending, always with the last."""
        if self.layers == "all":
            return list(range(n_blocks + 1))
        depths = () if isinstance(self.layers, str) else self.layers
        return sorted({*(round(depth * n_blocks) for depth in depths), n_blocks})

    def _sequences(self, reader: Reader) -> list[TokenSequence]:
        cut = windows if self.cut == "windows" else lines
        return cut(reader.text(), reader.tokenizer(), self.texts, min(self.length, reader.model().context))

    def _selected_points(self, sequences: Sequence[TokenSequence]) -> Indices | None:
        """Return the indices of the points to collect; None for all. The others only enter the spectral moments."""
        n = self._n_points(sequences)
        if self.sample == "farthest" or n <= self._size(n):
            return None
        return np.unique(np.concatenate([*self._draws(n), evenly(n, self.keep)]))

    def _n_points(self, sequences: Sequence[TokenSequence]) -> int:
        return len(sequences) if self.points == "texts" else sum(len(s.ids) - s.n_prefix for s in sequences)

    def _size(self, n: int) -> int:
        return points_for_loops(n, self.max_points)

    def _draws(self, n: int) -> list[Indices]:
        """Return the random samples of n points: the same tokens at every checkpoint."""
        return [draw_points(n, self._size(n), self.seed, k) for k in range(self.draws)]

    def _measure(self, layer: str, gathered: StatePoints, flag: str) -> Measurement:
        spectral = spectral_statistics(gathered.moments.measures())
        n = gathered.moments.n_points
        draws = self._draws(n)
        if self.sample == "random" and n > self._size(n):
            clouds = [_without_cover_radius(self._cloud(gathered.at(indices))) for indices in draws]
            sample_flag = "random points"
        else:
            clouds = [self._cloud(gathered.points)] * self.draws
            sample_flag = landmark_flag(clouds[0].diagrams.values())
        dimensions = [
            two_nn(gathered.at(indices), metric=self.metric).dimension if cloud.dimension is None else cloud.dimension
            for cloud, indices in zip(clouds, draws, strict=True)
        ]
        statistics_of_draws = [
            cloud.statistics | ({"two_nn": dimension} if np.isfinite(dimension) else {})
            for cloud, dimension in zip(clouds, dimensions, strict=True)
        ]
        shared = set.intersection(*(set(one) for one in statistics_of_draws))
        statistics = spectral | mean_with_noise(
            [{name: one[name] for name in sorted(shared)} for one in statistics_of_draws]
        )
        size = self._size(n) if self.sample == "random" else n
        less = lowered(components=(self.pca, min(size - 1, gathered.points.shape[1])))
        return Measurement(
            layer,
            NETWORK if layer == NETWORK else HIDDEN,
            statistics,
            clouds[0].diagrams,
            ", ".join(filter(None, (flag, less, sample_flag if spectral["rms_radius"] else "degenerate"))),
            gathered.at(evenly(n, self.keep)).astype(np.float32) if self.keep else None,
        )

    def _cloud(self, points: Matrix) -> CloudMeasurement:
        return measure_cloud(
            points,
            metric=self.metric,
            normalize=self.normalize,
            pca=self.pca,
            max_dimension=self.max_dimension,
            max_points=self.max_points,
            scales=self.scales,
        )


def _without_cover_radius(cloud: CloudMeasurement) -> CloudMeasurement:
    """Remove the cover radius: the other points are not in memory, so it is unknown."""
    known = {name: value for name, value in cloud.statistics.items() if not name.endswith("cover_radius")}
    diagrams = {name: replace(diagram, cover_radius=math.nan) for name, diagram in cloud.diagrams.items()}
    return cloud._replace(statistics=known, diagrams=diagrams)


def count_blocks(layers: Iterable[str]) -> int:
    """Return the number of blocks in the names of weight layers; 0 if they name none."""
    return len({block for layer in layers if (block := block_of(layer)) is not None})


def hidden(k: int) -> str:
    """Return the name of a hidden state's pseudo-layer; two digits keep them in order."""
    return f"{HIDDEN}.{k:02d}"


def evenly(n: int, count: int) -> Indices:
    """Return at most `count` of the indices 0 to n - 1, at even distances."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).round().astype(np.int64))
