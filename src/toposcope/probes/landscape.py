"""The shape of the loss on planes around a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.probes.feature import NETWORK, Kind
from toposcope.probes.probe import NOISE, Failure, Measurement, Probe, ProbeInput, Shape, Weights, lowered
from toposcope.progress import Progress, silent
from toposcope.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.models.loss_planes import Axes, Plane, Sample
    from toposcope.models.summed_loss import SummedLoss

FLOPS = 3e10  # of the planes of a loss, in a second of one processor
NO_FINITE_BAR = "no finite bar"
NO_PATH = "no plane of a path"
"""The flag of a checkpoint before which too few others are known, or none apart from one line."""
_KINDS: dict[str, Kind] = {"range": "norm", "centre_height": "norm"}


class _Needs:
    """The needs of a probe: of one along the path of training, the earlier checkpoints too."""

    def __get__(self, probe: "LandscapeProbe | None", owner: type | None = None) -> frozenset[str]:
        along_path = probe is not None and probe.directions == "trajectory"
        return frozenset({"text_loss", "earlier"} if along_path else {"text_loss"})


class LandscapeProbe(Probe, frozen=True, tag="landscape"):
    """Merge tree and critical points of the loss on planes through the checkpoint (``docs/methods/landscapes.md``)."""

    VERSION: ClassVar[int] = 2
    KIND: ClassVar[Kind] = "topology"
    NETWORK_ONLY: ClassVar[bool] = True
    REQUIRES: ClassVar[frozenset[str]] = _Needs()  # type: ignore[assignment]
    SUMMARY: ClassVar[Sequence[str]] = ("minima", "minima.noise", "max_persistence", "max_persistence.noise")
    LEAST: ClassVar[Mapping[str, int]] = {"resolution": 5, "draws": 1, "sequences": 1, "length": 2, "batches": 1}

    # random and filter-normalised; the two eigenvectors of the Hessian with the largest eigenvalues; or the two
    # principal components of the earlier checkpoints' analysed layers, as seen from this one
    directions: Literal["random", "hessian", "trajectory"] = "random"
    resolution: int = 25  # points a side; a plane has as many as the square of it
    span: float = 1.0  # largest coordinate on either side of the checkpoint, in units of the directions
    # planes; each has its own random directions and scattered points. A grid that is not random is one plane
    draws: int = 3
    # a grid, or scattered points: a Latin hypercube, or uniform ones
    samples: Literal["grid", "latin", "uniform"] = "grid"
    # which points are neighbours: those of Freudenthal's or Delaunay's triangulation, or the 8 nearest as in some of
    # the literature, whose counts are artefacts
    graph: Literal["triangulation", "nearest"] = "triangulation"
    sequences: int = 8  # windows of the text
    length: int = 128  # tokens of a window; at most the model's context
    batches: int = 4  # into how many the windows are split for the spread over texts
    seed: int = 0  # the same at every checkpoint, so that directions change with the weights alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.span < float("inf"):
            raise ValueError(f"span is {self.span}; it must be finite and above 0")

    @property
    def n_planes(self) -> int:
        """Planes that differ from each other."""
        return 1 if self.directions != "random" and self.samples == "grid" else self.draws

    def expected_seconds(self, shapes: Mapping[str, Shape]) -> float:
        """Return the expected time of the forward passes."""
        entries = sum(m * n for m, n in shapes.values())
        tokens = self.sequences * self.length
        return self.n_planes * self.resolution**2 * (2 * entries * tokens / FLOPS + 1e-3)

    def expected_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the expected memory: the model several times over, and a budget for what it computes."""
        return 40 * sum(m * n for m, n in shapes.values()) + (1 << 28)

    def measure(self, subject: ProbeInput) -> Iterator[Measurement | Failure]:
        """Measure the network."""
        if NETWORK not in subject.wanted:
            return
        load = subject.text_loss(self.name())
        loss = load(self.sequences, self.length)
        path: Sequence[Tensor] = ()
        if self.directions == "trajectory":
            from toposcope.models.loss_planes import points_on_disk

            path = points_on_disk(points_of(loss, subject.earlier))
        yield self.measure_loss(loss, path)

    def measure_loss(self, loss: "SummedLoss", path: "Sequence[Tensor]" = ()) -> Measurement:
        """Measure the planes of a loss; `path` are the points that span the plane of a trajectory."""
        from toposcope.models.loss_planes import Axes, between_planes, can_move, estimates, path_directions

        loss.value_at_checkpoint()
        known = None
        if self.directions == "trajectory":
            try:
                known = Axes(path_directions(loss.point, path)[0])
            except ToposcopeError:
                return Measurement(NETWORK, NETWORK, {}, flag=NO_PATH)
        elif not can_move(loss.point, loss.blocks):
            return Measurement(NETWORK, NETWORK, {}, flag="degenerate")
        planes = list(self.planes(loss, known=known))
        statistics: dict[str, float] = {}
        for name, found in estimates(planes).items():
            spreads = {
                "": found.planes,
                ".batches": found.batches,
                ".resolution": found.resolution,
                ".numerical": found.error,
            }
            if found.n_planes < min(2, len(planes)):
                continue  # no spread could be shown
            statistics[name] = found.mean
            statistics |= {name + what + NOISE: value for what, value in spreads.items() if value is not None}
        statistics |= {f"planes_{name}": value for name, value in between_planes(planes).items()}
        first = planes[0]
        sides = first.surface.sample.shape
        less = loss.lowered, lowered(planes=(self.draws, self.n_planes), batches=(self.batches, self._n_batches(loss)))
        return Measurement(
            NETWORK,
            NETWORK,
            statistics,
            {"H0": first.shape.tree.diagram},
            ", ".join([*self.flags(planes), *filter(None, less)]),
            states=None if sides is None else first.shape.values.reshape(sides).astype(np.float32),
        )

    def planes(
        self,
        loss: "SummedLoss",
        progress: Progress = silent,
        *,
        known: "Axes | None" = None,
    ) -> "Iterator[Plane]":
        """Measure one plane after the other; `known` spans all of them."""
        from toposcope.models.loss_planes import measure_plane

        if self.directions == "hessian" and known is None:
            known = self._directions(loss, 0, progress)
        batches = self._n_batches(loss)

        def count(what: str, n: int, total: int) -> None:
            progress(what, draw * total + n, self.n_planes * total)

        for draw in range(self.n_planes):
            yield measure_plane(
                loss,
                known or self._directions(loss, draw),
                self.sample(draw),
                graph=self.graph,
                batches=batches,
                progress=count,
            )

    def _n_batches(self, loss: "SummedLoss") -> int:
        return min(self.batches, sum(count > 0 for count in loss.counts))

    def sample(self, draw: int) -> "Sample":
        """Return where a plane is sampled."""
        from toposcope.models.loss_planes import grid_sample, scattered_sample

        if self.samples == "grid":
            return grid_sample((self.resolution, self.resolution), self.span)
        return scattered_sample(self.resolution**2, self.span, derive_seed(self.seed, "plane", draw), self.samples)

    def flags(self, planes: "Sequence[Plane]") -> list[str]:
        """Return what is to be known of the planes: undefined statistics, borders, losses that are not finite."""
        n = len(planes)
        counts = {
            NO_FINITE_BAR: sum(not len(plane.shape.tree.minima) for plane in planes),
            "lowest point on the border": sum(plane.shape.minimum_on_border for plane in planes),
            "minima on the border": sum(plane.shape.n_on_border > 0 for plane in planes),
            "losses that are not finite": sum(plane.shape.n_not_finite > 0 for plane in planes),
            "bars within rounding error": sum(plane.shape.n_within_rounding > 0 for plane in planes),
        }
        flags = [what if n == 1 else f"{what} in {k} of {n} planes" for what, k in counts.items() if k]
        flags += ["not converged"] if not all(plane.axes.converged for plane in planes) else []
        return [*flags, *(["counts of nearest neighbours"] if self.graph == "nearest" else [])]

    def _directions(self, loss: "SummedLoss", draw: int, progress: Progress = silent) -> "Axes":
        from toposcope.models.loss_planes import Axes, hessian_directions, random_directions

        if self.directions == "hessian":
            return hessian_directions(loss, derive_seed(self.seed, "eigenvectors"), progress)
        return Axes(random_directions(loss.point, loss.blocks, derive_seed(self.seed, "plane", draw)))

    @classmethod
    def kind(cls, statistic: str) -> Kind:
        """Return ``norm`` for heights, ``spectrum`` for second derivatives, ``topology`` for the rest."""
        name = statistic.partition(".")[0]
        return "spectrum" if name.startswith(("slice_curvature", "eigenvalue_")) else _KINDS.get(name, cls.KIND)

    def degree(self, statistic: str) -> int:
        """Return -2 for eigenvalues of the Hessian (see `curvature`); 0 for the rest, in units of the weights."""
        return -2 if statistic.startswith("eigenvalue_") else 0


def points_of(loss: "SummedLoss", earlier: Mapping[int, Weights]) -> "Iterator[Tensor]":
    """Yield the point of a loss with the analysed layers of each earlier checkpoint that is finite, by step."""
    import torch

    for step in sorted(earlier):
        point = loss.point.clone()
        for name, layer in earlier[step].open().items():
            block = loss.block(name)
            matrix = layer.matrix()
            weights = np.ascontiguousarray(matrix.T if block.transposed else matrix)
            if weights.shape != block.shape:
                raise ToposcopeError(f"{layer.source}: layer {name} has another shape than in the model at this step")
            point[block.start : block.stop] = torch.from_numpy(weights).reshape(-1).to(point)
        if torch.isfinite(point).all():
            yield point
