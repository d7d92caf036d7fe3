"""The chart of the loss on a plane: contours next to the merge tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toposcope.charts.chart import Chart
from toposcope.charts.contour import contour
from toposcope.homology import critical_points, sublevel_grid
from toposcope.typing import Matrix, Vector

if TYPE_CHECKING:
    from toposcope.models.loss_planes import Plane

AXES = {
    "random": "random direction",
    "hessian": "eigenvector",
    "trajectory": "component of the path",
}


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
        value=f"loss ({unit})" if unit else "loss",
        directions=(f"first {AXES[directions]}", f"second {AXES[directions]}"),
        name=name,
    )


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
