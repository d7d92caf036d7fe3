"""The loss on a plane around a checkpoint."""

from dataclasses import replace

import numpy as np

from toposcope.charts.chart import Chart
from toposcope.charts.contour import contour
from toposcope.homology import critical_points
from toposcope.models.loss_planes import Plane, profile_of
from toposcope.study.landscape_report import LandscapeReport

AXES = {
    "random": "random direction",
    "hessian": "eigenvector",
    "trajectory": "component of the path",
}
LOSS = "loss (nats a token)"


def plane_charts(report: LandscapeReport, most: int = 3) -> list[Chart]:
    """Draw the first planes of a report: contours with minima and saddles, beside the merge tree."""
    return [_plane_chart(report, plane, number) for number, plane in enumerate(report.planes[:most], start=1)]


def profile_chart(report: LandscapeReport) -> Chart:
    """Draw the topological profile of the first plane."""
    plane = report.planes[0]
    profile = profile_of(plane.surface, plane.shape.values, report.probe.graph)
    return replace(profile.plot(LOSS), name="profile-of-the-loss")


def _plane_chart(report: LandscapeReport, plane: Plane, number: int) -> Chart:
    shape = plane.surface.sample.shape
    assert shape is not None  # the report is of grids
    values = plane.shape.values.reshape(shape)
    places = plane.surface.sample.coordinates.reshape(*shape, 2)
    branches = plane.shape.tree.branches()
    axis = AXES[report.directions]
    chart = contour(
        values,
        np.ascontiguousarray(places[:, 0, 0]),
        np.ascontiguousarray(places[0, :, 1]),
        (branches.births, branches.deaths, branches.parents),
        branches.minima,
        critical_points(values).saddles,
        path=report.path,
        steps=report.path_steps if report.path is not None else None,
        centre=(0.0, 0.0),
        value=LOSS,
        directions=(f"first {axis}", f"second {axis}"),
        name=f"plane-{number}",
    )
    which = f" (plane {number} of {len(report.planes)})" if len(report.planes) > 1 else ""
    return replace(chart, title=f"Step {report.step}: {chart.title}{which}")
