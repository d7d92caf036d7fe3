"""The landscape of the loss around one checkpoint of a series, outside of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.integrity.finding import short_steps
from toposcope.models import Origin, Reader, Text
from toposcope.models.loading import model_key
from toposcope.models.texts import text_key
from toposcope.probes.landscape import LandscapeProbe
from toposcope.probes.needs.inputs import load_loss
from toposcope.progress import Progress, silent

if TYPE_CHECKING:
    from toposcope.checkpoints import Access, Checkpoint, Series
    from toposcope.models.loss_planes import Estimate, Plane
    from toposcope.typing import Matrix

Directions = Literal["random", "hessian", "trajectory"]
BUILT_IN_TEXT = "python-docs"
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


@dataclass(frozen=True, eq=False)
class LandscapeReport:
    """Planes of the loss around a checkpoint."""

    location: str  # of the checkpoint
    step: int
    text: str  # the source of the text
    loss: float  # at the checkpoint, nats per token
    n_tokens: int  # predicted tokens of the text
    directions: Directions
    probe: LandscapeProbe  # its options
    planes: Sequence[Plane]
    estimates: dict[str, Estimate]  # see `toposcope.models.loss_planes.estimates`
    between: dict[str, float]  # mean distances between the diagrams of two planes
    flags: list[str]
    # shape (n, 2); the checkpoints of the series in the plane of their path, in the order of their steps, this one
    # included
    path: Matrix | None = None
    path_steps: Sequence[int] = ()
    # of the squared distances from the checkpoint to the others, how much the plane holds
    path_share: float | None = None

    def headline(self) -> str:
        """Say what was found, in one sentence."""
        counts = [round(plane.shape.statistics["minima"]) for plane in self.planes]
        where = "the plane" if len(counts) == 1 else f"{len(counts)} planes"
        n_not_finite = sum(plane.shape.n_not_finite for plane in self.planes)
        if n_not_finite:
            total = sum(len(plane.shape.values) for plane in self.planes)
            where += f", where {n_not_finite:,} of {total:,} points have no finite loss"
        if max(counts) == 1:
            return f"step {self.step}: one basin on {where}; no finite bar, so no average persistence"
        number = f"{min(counts)} minima" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} minima"
        depths = [plane.shape.statistics["max_persistence"] for plane in self.planes]
        spread = f" ({min(depths):.3g} to {max(depths):.3g} over the planes)" if len(depths) > 1 else ""
        deepest = f"the deepest side basin lies {max(depths):.3g} nats below its saddle"
        return f"step {self.step}: {number} on {where}; {deepest}{spread}"

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

    def remarks(self) -> list[str]:
        """Return what is to be known before the numbers are used, one line each."""
        remarks = list(self.flags)
        if self.path_share is not None:
            remarks.append(f"the plane holds {self.path_share:.0%} of the squared distances to the other checkpoints")
        if len(self.planes) == 1:
            remarks.append("one plane: nothing is known of the spread over planes")
        found = self.estimates.items()
        for what, names in (
            (
                f"not converged, more than {MAX_RELATIVE_CHANGE:.0%} different at half the resolution",
                [n for n, e in found if (e.resolution or 0) > MAX_RELATIVE_CHANGE * abs(e.mean)],
            ),
            (
                f"numerical error of more than {MAX_RELATIVE_CHANGE:.0%}",
                [n for n, e in found if (e.error or 0) > MAX_RELATIVE_CHANGE * abs(e.mean)],
            ),
            (
                "convergence unknown, undefined at half the resolution",
                [n for n, e in found if e.resolution is None and e.error is None],
            ),
            ("spread over planes larger than the mean", [n for n, e in found if (e.planes or 0) > abs(e.mean)]),
            (
                "spread over parts of the text larger than the mean",
                [n for n, e in found if (e.batches or 0) > abs(e.mean) > 0],
            ),
            (
                "undefined on some planes, the mean is over the others",
                [n for n, e in found if e.n_planes < len(self.planes)],
            ),
        ):
            if names:
                remarks.append(f"{what}: {', '.join(STATISTIC_NAMES[name] for name in names)}")
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
            "remarks": self.remarks(),
        }


def landscape_report(
    series: Series,
    step: int | None,
    probe: LandscapeProbe,
    *,
    directions: Directions = "random",
    text: str = "",
    tokenizer: str = "",
    access: Access | None = None,
    unfinished: Path | None = None,
    progress: Progress = silent,
) -> LandscapeReport:
    """Measure planes of the loss around a checkpoint of a series."""
    from toposcope.family.corpus import Corpus
    from toposcope.models.loss_planes import (
        Axes,
        Unfinished,
        between_planes,
        estimates,
        path_directions,
        points_on_disk,
    )

    checkpoint = _checkpoint(series, step)
    content = Text(source=text).read(Corpus())
    origin = Origin(series.source, tokenizer, None, *([access] if access else []))

    def loss_at(chosen: Checkpoint, sequences: int) -> Any:
        return load_loss(Reader(chosen, origin, lambda: content), sequences, probe.length)

    loss = loss_at(checkpoint, probe.sequences)
    known, path, share = None, None, None
    steps, left_out = list(series.steps), list[int]()
    if directions == "trajectory":
        others = [other for other in series if other.step != checkpoint.step]
        if len(others) < 2:
            raise ToposcopeError(
                f"{checkpoint.location}: a path needs at least two other checkpoints, and {series.spec} has "
                f"{len(others)}; name the folder of a longer series, or choose other directions"
            )

        def points() -> Iterator[Any]:
            for k, other in enumerate(others):
                progress("path", k, len(others))
                point = loss_at(other, 1).point
                if not bool(point.isfinite().all()):
                    left_out.append(other.step)
                elif len(point) == len(loss.point):
                    yield point
                else:
                    raise ToposcopeError(f"{loss.location}: the checkpoints of the series are not of one model")
            progress("path", len(others), len(others))

        found, path, share = path_directions(loss.point, points_on_disk(points()))
        known = Axes(found)
        steps = [other for other in steps if other not in left_out]
        path = np.insert(path, steps.index(checkpoint.step), 0.0, axis=0)
    measured = msgspec.structs.replace(probe, directions=directions)
    kept = None
    if unfinished is not None:
        import torch

        from toposcope.version import __version__

        versions = [__version__, str(torch.__version__), np.__version__]
        parts = [model_key(checkpoint, origin), text_key(content), probe.sequences, probe.length, *versions]
        kept = Unfinished(unfinished, "\x1f".join(map(str, parts)))
    planes = list(measured.planes(loss, progress, known=known, unfinished=kept))
    return LandscapeReport(
        location=checkpoint.location,
        step=checkpoint.step,
        text=text or f"{BUILT_IN_TEXT} (held-out part)",
        loss=loss.value_at_checkpoint(),
        n_tokens=loss.n_tokens,
        directions=directions,
        probe=measured,
        planes=planes,
        estimates=estimates(planes),
        between=between_planes(planes),
        flags=[
            *measured.flags(planes),
            *([f"left out of the path, weights that are not finite: step {short_steps(left_out)}"] if left_out else []),
        ],
        path=path,
        path_steps=steps if path is not None else (),
        path_share=share,
    )


def _checkpoint(series: Series, step: int | None) -> Checkpoint:
    if not len(series):
        raise ToposcopeError(f"{series.spec}: no checkpoint; name a checkpoint or a folder of them")
    if step is None:
        return series[-1]
    if step not in series.steps:
        raise ToposcopeError(f"{series.spec}: no checkpoint of step {step}; its steps are {short_steps(series.steps)}")
    return series[series.steps.index(step)]
