"""Charts of the loss on planes: contours next to the merge tree, the profile of basins, the rise around a minimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.contour import contour
from toposcope.homology import critical_points, sublevel_grid
from toposcope.models.loss_planes import Plane, profile_of
from toposcope.typing import Matrix, Vector

if TYPE_CHECKING:
    from toposcope.models.loss_planes.shape import Graph

AXES = {
    "random": "random direction",
    "hessian": "eigenvector",
    "trajectory": "component of the path",
}
N_DISTANCES, N_ANGLES = 33, 72  # at which the rise around the checkpoint is read off a grid


def plane_contour(
    values: Matrix,
    x: Vector,
    y: Vector,
    directions: str,
    *,
    name: str,
    path: Matrix | None = None,
    steps: Sequence[int] | None = None,
    unit: str = "nats per token",
) -> Chart:
    """Draw the loss on a plane through a checkpoint: contours with minima and saddles, next to the merge tree."""
    branches = sublevel_grid(values, connectivity="freudenthal").branches()
    return contour(
        values,
        x,
        y,
        (branches.births, branches.deaths, branches.parents),
        branches.minima,
        critical_points(values).saddles,
        path=path,
        steps=steps,
        centre=(0.0, 0.0),
        value=_loss(unit),
        directions=(f"first {AXES[directions]}", f"second {AXES[directions]}"),
        name=name,
    )


def profile_chart(plane: Plane, graph: Graph, unit: str) -> Chart:
    """Draw the topological profile of a plane."""
    return replace(profile_of(plane.surface, plane.shape.values, graph).plot(_loss(unit)), name="profile-of-the-loss")


def bowl_chart(planes: Sequence[Plane], unit: str) -> Chart:
    """Draw the loss over the distance from the checkpoint: the mean around it on each plane, and the spread of all."""
    from scipy.interpolate import RegularGridInterpolator

    angles = np.linspace(0, 2 * np.pi, N_ANGLES, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    distances, around = np.array([]), []
    for plane in planes:
        values, x, y = grid_of(plane)
        distances = np.linspace(0, min(x[-1], y[-1]), N_DISTANCES)
        around.append(RegularGridInterpolator((x, y), values)(distances[:, None, None] * circle))
    every = np.stack(around)  # shape (planes, distances, angles)
    lines = pl.concat(
        pl.DataFrame({"distance": distances, "loss": mean}).with_columns(plane=pl.lit(f"plane {k}"))
        for k, mean in enumerate(every.mean(axis=2), start=1)
    )
    band = pl.DataFrame({"distance": distances, "low": every.min(axis=(0, 2)), "high": every.max(axis=(0, 2))})
    far = every[:, -1] - every[:, 0]
    title = (
        f"At distance {distances[-1]:g} the loss lies {far.min():.3g} to {far.max():.3g} above the checkpoint"
        f"{f' on all {len(planes)} planes' if len(planes) > 1 else ''}"
    )
    x_axis = alt.X("distance:Q", title="distance from the checkpoint", scale=alt.Scale(nice=False))
    area = alt.Chart(band).mark_area(opacity=0.2).encode(
        x=x_axis, y=alt.Y("low:Q", title=_loss(unit), scale=alt.Scale(zero=False)), y2="high:Q",
        tooltip=["distance:Q", "low:Q", "high:Q"],
    )  # fmt: skip
    line = alt.Chart(lines).mark_line().encode(
        x=x_axis, y="loss:Q", detail="plane:N", tooltip=["plane:N", "distance:Q", "loss:Q"]
    )  # fmt: skip
    caption = "Lines: the mean around the checkpoint, one for each plane. Shaded: all directions of all planes."
    what = f"Lines of the loss over the distance from the checkpoint, with a band. {title}."
    return Chart("rise-of-the-loss", title, caption, what, alt.layer(area, line).properties(height=320))


def _loss(unit: str) -> str:
    return f"loss ({unit})" if unit else "loss"


def grid_of(plane: Plane) -> tuple[Matrix, Vector, Vector]:
    """Return the losses of a plane as a grid, and the coordinates of its sides."""
    sides = plane.surface.sample.shape
    assert sides is not None  # reports are of grids
    places = plane.surface.sample.coordinates.reshape(*sides, 2)
    return (
        plane.shape.values.reshape(sides),
        np.ascontiguousarray(places[:, 0, 0]),
        np.ascontiguousarray(places[0, :, 1]),
    )
