"""The path of a run through its weights: length, components beside those of a random walk, dimension."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology import (
    ph_dimension,
    principal_shares,
    random_walk_shares,
    random_walk_shares_of,
    step_cosines,
)
from toposcope.homology.dimension import MIN_POINTS
from toposcope.probes.checkpoint_distances import check_finite, distance_matrix, is_finite
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import NOISE, Failure, Measurement, Probe, Shape, Subject, Value, Weights, guarded
from toposcope.typing import Matrix

DISTANCE = "distance@step."
"""Beginning of the name of a distance to an earlier checkpoint, before its step."""
COMPONENTS = 2
"""Principal components whose shares are reported."""
ALPHA_TOO_LARGE = "ph_dimension not above alpha"
"""The flag of a dimension that the theory does not cover."""
INFINITE = "ph_dimension infinite"
"""The flag where no dimension is finite, and none is reported."""
EARLIER = 20
"""Earlier checkpoints that the expected time is for."""


IN_CACHE = 10_000_000
"""Entries of a checkpoint; beyond, a distance takes more than twice as long for each."""


class TrajectoryProbe(Probe, frozen=True, tag="trajectory"):
    """The checkpoints of a run so far as points, each the vector of its analysed layers; one row a checkpoint.

    Lengths: ``path_length``, ``displacement`` (from the first checkpoint), ``step_length`` (from the one before),
    ``straightness`` (displacement over path length), ``step_cosine`` (of the angle between the last two steps), and
    ``distance@step.512`` to every earlier checkpoint. Components, from three checkpoints on: ``pc1.share`` and
    ``pc2.share`` of the variance; beside them ``pc1@walk``, that of a random walk of equal steps in many dimensions,
    and ``pc1@walk_same_steps``, of one with the steps of the run. ``ph_dimension`` of the last `window` checkpoints,
    with ``ph_dimension.noise``, its standard error over random subsets, and ``ph_dimension@low``,
    ``ph_dimension@high``, the 95% interval. ``n_checkpoints`` are on the path.

    Earlier checkpoints that cannot be read or are not finite are left out.

    Attributes
    ----------
    window : int
        Checkpoints of the dimension, at least 50; it is absent where there are fewer. Its bias depends on their number.
    seed : int
        Of the subsets of the dimension.
    """

    VERSION: ClassVar[int] = 1
    KIND: ClassVar[Kind] = "norm"
    NEEDS: ClassVar[frozenset[str]] = frozenset({"earlier"})

    window: int = MIN_POINTS
    seed: int = 42

    def __post_init__(self) -> None:
        if self.window < MIN_POINTS:
            raise ValueError(f"window is {self.window}; it must be at least {MIN_POINTS}")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be at least 0")

    def covers(self, layers: Sequence[str]) -> list[str]:
        """Return only the network."""
        return [NETWORK]

    def by_layer(self) -> bool:
        """Return that a path is of all layers together."""
        return False

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the distances to 20 earlier checkpoints; their number is not known here."""
        n_entries = sum(m * n for m, n in shapes.values())
        return EARLIER * (7e-9 if n_entries > IN_CACHE else 3e-9) * n_entries

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory of two layers in float64, and of the distances."""
        return 32 * max((m * n for m, n in shapes.values()), default=0) + (1 << 24)

    def measure(self, subject: Subject) -> Iterator[Measurement | Failure]:
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

    def combine(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
        """Return nothing: the path is that of all layers together."""
        return {}

    def degree(self, statistic: str) -> int:
        """Return 1 for lengths, 0 for the rest."""
        return int(statistic in ("path_length", "displacement", "step_length") or statistic.startswith(DISTANCE))

    def _measure(self, subject: Subject) -> Measurement:
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
    """Return the earlier checkpoints that are finite, by step, ascending.

    Raises
    ------
    ToposcopeError
        If it is the checkpoint itself that is not finite, or a checkpoint cannot be read or compared.
    """
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
    """Return the shares of the first components beside those of random walks; none of fewer than 3 checkpoints."""
    n = len(distances)
    if n <= COMPONENTS or not distances.any():
        return {}
    shares = {
        ".share": principal_shares(distances),
        "@walk": random_walk_shares(n),
        "@walk_same_steps": random_walk_shares_of(np.diagonal(distances, 1)),
    }
    return {f"pc{k + 1}{name}": float(values[k]) for name, values in shares.items() for k in range(COMPONENTS)}
