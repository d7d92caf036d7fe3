"""What is known of the landscape of a loss around one point: planes, their statistics, and the words for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.probes.landscape import NO_FINITE_BAR, LandscapeProbe
from toposcope.progress import Progress

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.models.loss_planes import Axes, Estimate, Plane
    from toposcope.models.summed_loss import SummedLoss
    from toposcope.typing import Matrix, Vector

Directions = Literal["random", "hessian", "trajectory"]
MAX_RELATIVE_CHANGE = 0.1
"""At half the resolution, or by numerical errors; a statistic that changes by more has not converged."""
STATISTIC_NAMES = {
    "average_persistence": "average persistence",
    "max_persistence": "largest persistence",
    "total_persistence": "total persistence",
    "smad": "saddle-minimum average distance",
    "minima": "minima",
    "saddles": "saddles",
    "side_basin_share": "share of side basins in the profile",
    "range": "range of the loss",
    "centre_height": "height of the checkpoint above the lowest point",
    "slice_curvature_max": "larger second derivative within the plane",
    "slice_curvature_min": "smaller second derivative within the plane",
    "slice_curvature_mean": "mean second derivative within the plane",
    "eigenvalue_1": "largest eigenvalue of the Hessian",
    "eigenvalue_2": "second eigenvalue of the Hessian",
}
"""What the statistics are called for people."""
OF_SEVERAL_MINIMA = frozenset(
    ("average_persistence", "max_persistence", "total_persistence", "smad", "minima", "saddles", "side_basin_share")
)
"""Statistics that say nothing where there is one minimum."""


@dataclass(frozen=True, eq=False, repr=False)
class LandscapeReport:
    """Planes of the loss around a checkpoint, or around the weights of a model.

    Attributes
    ----------
    location, step, text, n_tokens : str, int or None, str, int
        The checkpoint, the source of the text that it read, and the tokens it predicted; of a function of one's own
        there is none of these.
    loss, unit : float, str
        At the checkpoint; without a unit for a function of one's own.
    probe : LandscapeProbe
        What spans the planes, and the other options.
    planes : sequence of Plane
        Each with its losses (``surface.values``), merge tree and critical points (``shape``) and second derivatives
        along the directions (``curvature``).
    estimates, between : dict
        Each statistic with its spread; mean distances between the diagrams of two planes.
    flags : list of str
        What is to be known of the planes.
    path, path_steps, path_share : array of shape (n, 2), sequence of int, float
        The checkpoints of the path in their plane, this one included, and how much of the squared distances to them
        the plane holds.
    """

    location: str
    loss: float
    probe: LandscapeProbe
    planes: Sequence[Plane]
    estimates: dict[str, Estimate]
    between: dict[str, float]
    flags: list[str]
    step: int | None = None
    text: str = ""
    n_tokens: int = 0
    unit: str = ""
    path: Matrix | None = None
    path_steps: Sequence[int] = ()
    path_share: float | None = None

    def __repr__(self) -> str:
        return f"LandscapeReport({self.headline()!r})"

    @property
    def name(self) -> str:
        """What the planes go through."""
        return "the model" if self.step is None else f"step {self.step}"

    @property
    def is_one_minimum(self) -> bool:
        """Whether no plane has a second minimum."""
        return bool(self.planes) and all(plane.shape.statistics["minima"] == 1 for plane in self.planes)

    def headline(self) -> str:
        """Say what was found, in one sentence."""
        n_not_finite = sum(plane.shape.n_not_finite for plane in self.planes)
        total = sum(len(plane.shape.values) for plane in self.planes)
        lost = f", where {n_not_finite:,} of {total:,} points have no finite loss" if n_not_finite else ""
        if self.is_one_minimum:
            return f"{self.name}: one minimum on {self._where('each of ')}{lost}; {self._bowl()}"
        depths = [plane.shape.statistics["max_persistence"] for plane in self.planes]
        spread = f" ({min(depths):.3g} to {max(depths):.3g} over the planes)" if len(depths) > 1 else ""
        deepest = f"the deepest side basin lies {self._amount(f'{max(depths):.3g}')} below its saddle"
        return f"{self.name}: {self._minima()} on {self._where()}{lost}; {self._border()}{deepest}{spread}"

    def _minima(self) -> str:
        return f"{_interval([round(plane.shape.statistics['minima']) for plane in self.planes])} minima"

    def _border(self) -> str:
        """Say on how many planes the lowest point lies on the border, so that its basin goes on outside."""
        n_on_border = sum(plane.shape.minimum_on_border for plane in self.planes)
        of_planes = f" of {n_on_border} of them" if len(self.planes) > 1 else ""
        return f"the lowest point lies on the border{of_planes}; " if n_on_border else ""

    def _where(self, each: str = "") -> str:
        return "the plane" if len(self.planes) == 1 else f"{each}{len(self.planes)} planes"

    def _amount(self, number: str) -> str:
        return f"{number} {self.unit.partition(' ')[0]}".strip()

    def _bowl(self) -> str:
        """Describe the only minimum: its second derivatives and how far the loss rises, over all planes."""
        curvature = np.concatenate([np.linalg.eigvalsh(plane.curvature) for plane in self.planes])
        ranges = [plane.shape.statistics["range"] for plane in self.planes]
        bent = f"second derivatives of {_interval(curvature)}, " if np.isfinite(curvature).all() else ""
        return f"{self._border()}{bent}and a loss that ranges over {self._amount(_interval(ranges))}"

    def statistics(self) -> dict[str, Estimate]:
        """Return the estimates that say something: where there is one minimum, none of its persistence."""
        left = OF_SEVERAL_MINIMA if self.is_one_minimum else frozenset[str]()
        return {name: found for name, found in self.estimates.items() if name not in left}

    def plot(self, plane: int = 0) -> Chart:
        """Draw one plane: contours with minima and saddles, next to its merge tree where it has one of several leaves.

        Parameters
        ----------
        plane : int

        Returns
        -------
        Chart

        Raises
        ------
        ToposcopeError
            If there is no such plane.
        """
        from toposcope.study.landscape_charts import grid_of, plane_contour

        if not 0 <= plane < len(self.planes):
            raise ToposcopeError(f"plane {plane}: there are {len(self.planes)}, from 0 on")
        over = "all have one" if self.is_one_minimum else f"{self._minima()} over the planes"
        which = f" (plane {plane + 1} of {len(self.planes)}; {over})" if len(self.planes) > 1 else ""
        chart = plane_contour(
            *grid_of(self.planes[plane]),
            self.probe.directions,
            name=f"plane-{plane + 1}",
            path=self.path,
            steps=self.path_steps if self.path is not None else None,
            unit=self.unit,
        )
        title = f"{self.name}: {chart.title[0].lower()}{chart.title[1:]}{which}"
        return replace(chart, title=title[0].upper() + title[1:])

    def planes_line(self) -> str:
        """Say which planes these are."""
        what = {
            "random": "random filter-normalised directions",
            "hessian": "the two eigenvectors of the Hessian with the largest eigenvalues",
            "trajectory": "the two principal components of the path",
        }[self.probe.directions]
        n, side = len(self.planes), self.probe.resolution
        planes = "a plane" if n == 1 else f"{n} planes"
        return f"{planes} of {side} x {side} points along {what}, span {self.probe.span:g}"

    def remarks(self) -> list[str]:
        """Return what is to be known before the numbers are used, one line each."""
        remarks = [flag for flag in self.flags if not (self.is_one_minimum and flag.startswith(NO_FINITE_BAR))]
        if self.path_share is not None:
            remarks.append(f"the plane holds {self.path_share:.0%} of the squared distances to the other checkpoints")
        if len(self.planes) == 1:
            remarks.append("one plane: nothing is known of the spread over planes")
        most = f"{MAX_RELATIVE_CHANGE:.0%}"
        doubts: dict[str, Callable[[Estimate], bool]] = {
            f"not converged, more than {most} different at half the resolution": lambda e: (
                (e.resolution or 0) > MAX_RELATIVE_CHANGE * abs(e.mean)
            ),
            f"numerical error of more than {most}": lambda e: (e.error or 0) > MAX_RELATIVE_CHANGE * abs(e.mean),
            "convergence unknown, undefined at half the resolution": lambda e: e.resolution is None and e.error is None,
            "spread over planes larger than the mean": lambda e: (e.planes or 0) > abs(e.mean),
            "spread over parts of the text larger than the mean": lambda e: (e.batches or 0) > abs(e.mean) > 0,
            "undefined on some planes, the mean is over the others": lambda e: e.n_planes < len(self.planes),
        }
        for what, holds in doubts.items():
            if names := [STATISTIC_NAMES[name] for name, each in self.statistics().items() if holds(each)]:
                remarks.append(f"{what}: {', '.join(names)}")
        return remarks

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the losses of the planes, for JSON."""
        return {
            "checkpoint": self.location,
            "step": self.step,
            "text": self.text,
            "loss": self.loss,
            "n_tokens": self.n_tokens,
            "directions": self.probe.directions,
            "options": msgspec.to_builtins(self.probe),
            "planes": len(self.planes),
            "statistics": {
                name: {
                    "mean": found.mean,
                    "planes": found.n_planes,
                    "noise_planes": found.planes,
                    "noise_batches": found.batches,
                    "noise_resolution": found.resolution,
                    "noise_numerical": found.error,
                }
                for name, found in self.estimates.items()
            },
            "between_planes": self.between,
            "path_share": self.path_share,
            "remarks": self.remarks(),
        }


def measured_planes(
    loss: SummedLoss, probe: LandscapeProbe, progress: Progress, known: Axes | None = None, **described: Any
) -> LandscapeReport:
    """Measure the planes of a loss; `described` is what else is known of it, by the names of the report's fields."""
    from toposcope.models.loss_planes import between_planes, estimates

    planes = list(probe.planes(loss, progress, known=known))
    return LandscapeReport(
        location=loss.location,
        loss=loss.value_at_checkpoint(),
        probe=probe,
        planes=planes,
        estimates=estimates(planes),
        between=between_planes(planes),
        flags=[*probe.flags(planes), *filter(None, [loss.lowered])],
        **described,
    )


def _interval(values: Sequence[float] | Vector) -> str:
    low, high = (f"{end:,}" if isinstance(end, int) else f"{end:.3g}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
