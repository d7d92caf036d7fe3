"""What is known of the landscape of a loss around one point: planes, their statistics, and the words for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.homology import BettiBound, betti_bound, transformer_format
from toposcope.probes.landscape import NO_FINITE_BAR, LandscapeProbe

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.family.run import ModelSize
    from toposcope.models.loss_planes import Estimate, Plane
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
        The checkpoint, the source of the text that it read, and the tokens it predicted.
    loss, unit : float, str
        At the checkpoint; without a unit for a function of one's own.
    directions, probe : str, LandscapeProbe
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
    bound : BettiBound or None
        Of the number of basins, by the architecture; of models of the family alone.
    """

    location: str
    step: int | None
    text: str
    loss: float
    n_tokens: int
    directions: Directions
    probe: LandscapeProbe
    planes: Sequence[Plane]
    estimates: dict[str, Estimate]
    between: dict[str, float]
    flags: list[str]
    path: Matrix | None = None
    path_steps: Sequence[int] = ()
    path_share: float | None = None
    unit: str = "nats per token"
    bound: BettiBound | None = None

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
        return f"{self._counts()} minima"

    def _counts(self) -> str:
        return _interval([round(plane.shape.statistics["minima"]) for plane in self.planes])

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
            self.directions,
            name=f"plane-{plane + 1}",
            path=self.path,
            steps=self.path_steps if self.path is not None else None,
            unit=self.unit,
        )
        title = f"{self.name}: {chart.title[0].lower()}{chart.title[1:]}{which}"
        return replace(chart, title=title[0].upper() + title[1:])

    def charts(self, most: int = 3) -> list[Chart]:
        """Draw what there is to see: planes and a profile of basins; of one minimum, a plane and its rise over all."""
        from toposcope.study.landscape_charts import bowl_chart, profile_chart

        if self.is_one_minimum:
            return [self.plot(), bowl_chart(self.planes, self.unit)]
        planes = [self.plot(k) for k in range(min(most, len(self.planes)))]
        return [*planes, profile_chart(self.planes[0], self.probe.graph, self.unit)]

    def planes_line(self) -> str:
        """Say which planes these are."""
        what = {
            "random": "random filter-normalised directions",
            "hessian": "the two eigenvectors of the Hessian with the largest eigenvalues",
            "trajectory": "the two principal components of the path",
        }[self.directions]
        n, side = len(self.planes), self.probe.resolution
        planes = "a plane" if n == 1 else f"{n} planes"
        return f"{planes} of {side} x {side} points along {what}, span {self.probe.span:g}"

    def bound_line(self) -> str:
        """Say how many basins the architecture allows; nothing of a function that is not known."""
        return bound_line(self.bound, f"{self.n_tokens:,}", self._counts()) if self.bound and self.planes else ""

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
            "directions": self.directions,
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
            "bound": None if self.bound is None else {"log10": self.bound.log10, "digits": self.bound.digits},
            "remarks": self.remarks(),
        }


def basin_bound(size: ModelSize, windows: Sequence[int], *, n: int) -> BettiBound:
    """Bound the number of basins of the loss of a model of the family with n weights, by the tokens of each window."""
    form = transformer_format(
        layers=size.layers,
        width=size.hidden,
        heads=size.heads,
        context=size.context,
        vocabulary=size.vocabulary,
        tokens=windows,
    )
    return betti_bound(replace(form, n=n))


def bound_line(bound: BettiBound, tokens: str, minima: str) -> str:
    """Say how many basins an architecture allows, how little that is, and how many were found."""
    verb = "was" if minima == "1" else "were"
    return (
        f"by Khovanskii's theorem a loss of this architecture on {tokens} tokens has fewer than 10^{bound.digits:,} "
        f"basins, a number of that many digits, which says nothing: {minima} {verb} found on a plane"
    )


def _interval(values: Sequence[float] | Vector) -> str:
    low, high = (f"{end:,}" if isinstance(end, int) else f"{end:.3g}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
