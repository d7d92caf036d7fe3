"""The path of a run through its weights: length, components next to those of a random walk, dimension."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar

import numpy as np

from toposcope.checkpoints import Layer
from toposcope.errors import ToposcopeError
from toposcope.homology import ph_dimension, principal_shares, random_walk_shares, random_walk_shares_of, step_cosines
from toposcope.homology.dimension import MIN_POINTS
from toposcope.kernels.magnitudes import largest_magnitude
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import NOISE, Failure, Measurement, Probe, ProbeInput, Shape, Weights, guarded
from toposcope.probes.row_blocks import Rows, Widening, largest_entry, pieces, unit_of
from toposcope.typing import Matrix

MAX_CACHED_DISTANCES = 1 << 18  # all pairs of 700 checkpoints
EXPECTED_EARLIER = 20  # earlier checkpoints that the expected time is for
MAX_CACHE_ENTRIES = 10_000_000  # of a checkpoint; beyond, a distance takes more than twice as long for each

_known: dict[tuple[str, str], float] = {}
"""By the contents of the two: the checkpoints of a run are measured one after another, each with all before it."""


def distance_matrix(checkpoints: Sequence[Weights]) -> Matrix:
    """Return the distances between checkpoints, shape (n, n), float64; each pair is computed once in a process."""
    matrix = np.zeros((len(checkpoints), len(checkpoints)))
    for i, one in enumerate(checkpoints):
        for j, other in enumerate(checkpoints[:i]):
            matrix[i, j] = matrix[j, i] = _distance(one, other)
    return matrix


def is_finite(weights: Weights) -> bool:
    """Return whether all entries of all layers are finite."""
    return all(math.isfinite(largest_magnitude(layer.read_narrow())) for layer in weights.open().values())


def check_finite(weights: Weights) -> None:
    """Refuse weights that cannot be read or are not finite, naming the layer."""
    for layer in weights.open().values():
        largest_entry(layer)


def _distance(one: Weights, other: Weights) -> float:
    pair = (min(one.content, other.content), max(one.content, other.content))
    if pair not in _known:
        if len(_known) >= MAX_CACHED_DISTANCES:
            _known.clear()
        _known[pair] = _computed(one, other)
    return _known[pair]


def _computed(one: Weights, other: Weights) -> float:
    first, second = one.open(), other.open()
    for name in sorted(first.keys() ^ second.keys()):
        without = next(iter((second if name in first else first).values())).source
        raise ToposcopeError(
            f"{without}: has no layer {name}, which another checkpoint of the run has; select other steps"
        )
    total = math.hypot(*(_layer_distance(layer, second[name]) for name, layer in first.items()))
    if not math.isfinite(total):
        raise ToposcopeError(f"{next(iter(first.values())).source}: its distance from another checkpoint overflows")
    return total


def _layer_distance(layer: Layer, other: Layer) -> float:
    if layer.shape != other.shape:
        raise ToposcopeError(
            f"{layer.source}: layer {layer.name} has shape {layer.shape}, and {other.shape} in another checkpoint of "
            "the run; select other steps"
        )
    unit = unit_of(cache(largest_entry), layer, other)
    rows, other_rows, widen, widen_other = Rows(layer), Rows(other), Widening(unit), Widening(unit)
    sums = []
    for block in rows.blocks():
        W, V = widen(rows.read(*block)), widen_other(other_rows.read(*block))
        sums += [float(np.square(w - v).sum()) for w, v in zip(pieces(W), pieces(V), strict=True)]
    return math.sqrt(math.fsum(sums)) * unit


DISTANCE = "distance@step."  # beginning of the name of a distance to an earlier checkpoint, before its step
COMPONENTS = 2  # principal components whose shares are reported
ALPHA_TOO_LARGE = "ph_dimension not above alpha"  # the flag of a dimension that the theory does not cover
INFINITE = "ph_dimension infinite"  # the flag where no dimension is finite, and none is reported


class TrajectoryProbe(Probe, frozen=True, tag="trajectory"):
    """The checkpoints of a run so far as points, each the vector of its analysed layers; one row per checkpoint."""

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "norm"
    NETWORK_ONLY: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"earlier"})
    SUMMARY: ClassVar[Sequence[str]] = ("path_length", "straightness", "ph_dimension", "ph_dimension.noise")
    LEAST: ClassVar[Mapping[str, int]] = {"window": MIN_POINTS, "seed": 0}

    # checkpoints of the dimension, at least 50; it is absent where there are fewer. Its bias depends on their number
    window: int = MIN_POINTS
    seed: int = 42  # of the subsets of the dimension

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the distances to 20 earlier checkpoints; their number is not known here."""
        n_entries = sum(m * n for m, n in shapes.values())
        return EXPECTED_EARLIER * (7e-9 if n_entries > MAX_CACHE_ENTRIES else 3e-9) * n_entries

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of two layers in float64, and of the distances."""
        return 32 * max((m * n for m, n in shapes.values()), default=0) + (1 << 24)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the wanted layers of a checkpoint."""
        if NETWORK in subject.wanted:
            yield guarded(NETWORK, lambda: self._measure(subject))

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``norm`` for lengths and angles, ``spectrum`` for components, ``topology`` for the dimension."""
        if statistic.startswith("ph_dimension"):
            return "topology"
        if statistic.startswith("pc"):
            return "spectrum"
        return "control" if statistic == "n_checkpoints" else cls.KIND

    def degree(self, statistic: str) -> int:
        """Return 1 for lengths, 0 for the rest."""
        return int(statistic in ("path_length", "displacement", "step_length") or statistic.startswith(DISTANCE))

    def _measure(self, subject: ProbeInput) -> Measurement:
        here = Weights(subject.content, lambda: {layer.name: layer for layer in subject.layers})
        path = _measurable(subject.earlier, here)
        distances = distance_matrix([*path.values(), here])
        statistics = _lengths(distances) | _components(distances)
        statistics |= {f"{DISTANCE}{step}": float(distances[-1, i]) for i, step in enumerate(path)}
        dimension, flag = self._dimension(distances)
        return Measurement(NETWORK, NETWORK, statistics | dimension, flag=flag)

    def _dimension(self, distances: Matrix) -> tuple[dict[str, float], str]:
        """Return the statistics of the dimension, and the flag that belongs to them."""
        last = distances[-self.window :, -self.window :]
        if len(last) < self.window:
            return {}, ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the flag says it
                found = ph_dimension(last, metric="precomputed", alpha=1.0, seed=self.seed).estimates[0]
        except ToposcopeError:  # checkpoints are equal, so that a subset has no logarithm
            return {}, ""
        if math.isinf(found.dimension):
            return {}, INFINITE
        low, high = found.interval
        statistics = {
            "ph_dimension": found.dimension,
            f"ph_dimension{NOISE}": found.standard_error,
            "ph_dimension@low": low,
        }
        if math.isfinite(high):
            statistics["ph_dimension@high"] = high
        return statistics, ALPHA_TOO_LARGE if found.alpha_too_large else ""


def _measurable(earlier: Mapping[int, Weights], here: Weights) -> dict[int, Weights]:
    """Return the earlier checkpoints that are finite, by step, ascending."""
    check_finite(here)
    path = {}
    for step in sorted(earlier):
        try:
            distance_matrix([earlier[step], here])
        except ToposcopeError:
            if is_finite(earlier[step]):
                raise
            continue  # its own row has the reason
        path[step] = earlier[step]
    return path


def _lengths(distances: Matrix) -> dict[str, float]:
    """Return the lengths of the path, its straightness and its last angle, as far as they are defined."""
    steps = np.diagonal(distances, 1)
    length, displacement = math.fsum(steps.tolist()), float(distances[-1, 0])
    statistics = {"n_checkpoints": float(len(distances)), "path_length": length, "displacement": displacement}
    if len(steps):
        statistics["step_length"] = float(steps[-1])
    if length > 0:
        statistics["straightness"] = min(1.0, displacement / length)
    if len(steps) > 1 and math.isfinite(cosine := float(step_cosines(distances[-3:, -3:])[0])):
        statistics["step_cosine"] = cosine
    return statistics


def _components(distances: Matrix) -> dict[str, float]:
    """Return the shares of the first components next to those of random walks; none of fewer than 3 checkpoints."""
    n = len(distances)
    if n <= COMPONENTS or not distances.any():
        return {}
    shares = {
        ".share": principal_shares(distances),
        "@walk": random_walk_shares(n),
        "@walk_same_steps": random_walk_shares_of(np.diagonal(distances, 1)),
    }
    return {f"pc{k + 1}{name}": float(values[k]) for name, values in shares.items() for k in range(COMPONENTS)}
