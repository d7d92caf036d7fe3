"""The loss on a plane around a checkpoint, measured here or stored by the probe `landscape`."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from toposcope.charts.chart import Chart
from toposcope.charts.contour import contour
from toposcope.errors import ToposcopeError
from toposcope.homology import critical_points, sublevel_grid
from toposcope.models.loss_planes import Plane, profile_of
from toposcope.probes.feature import NETWORK
from toposcope.report.charts.series import largest_run, runs_in
from toposcope.report.study_data import StudyData
from toposcope.study.landscape_report import LandscapeReport
from toposcope.typing import Matrix, Vector

AXES = {
    "random": "random direction",
    "hessian": "eigenvector",
    "trajectory": "component of the path",
}
LOSS = "loss (nats per token)"


def stored_plane_chart(data: StudyData) -> Chart | None:
    """Draw the first plane around the last checkpoint of the largest run, of the first probe that stored one."""
    for label, options in data.labels.filter(probe="landscape").select("label", "options").iter_rows():
        measured = data.frame.filter(probe="landscape", options=options, layer=NETWORK)
        if not (runs := runs_in(data, measured)):
            continue
        run = largest_run(runs, data.runs).run
        step = max(measured.filter(run=run).get_column("step"))
        try:
            values = data.states(run, step, label)[NETWORK].astype(np.float64)
        except (ToposcopeError, KeyError):  # its file is missing, or its points are scattered
            continue
        declared = msgspec.json.decode(options)
        x, y = (np.linspace(-declared["span"], declared["span"], side) for side in values.shape)
        chart = plane_contour(values, x, y, declared["directions"], name="loss-plane")
        return replace(chart, title=f"{run}, step {step:,}: {chart.title}")
    return None


def plane_contour(
    values: Matrix,
    x: Vector,
    y: Vector,
    directions: str,
    *,
    name: str,
    path: Matrix | None = None,
    steps: Sequence[int] | None = None,
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
        value=LOSS,
        directions=(f"first {AXES[directions]}", f"second {AXES[directions]}"),
        name=name,
    )


def plane_charts(report: LandscapeReport, most: int = 3) -> list[Chart]:
    """Draw the first planes of a report: contours with minima and saddles, next to the merge tree."""
    return [_plane_chart(report, plane, number) for number, plane in enumerate(report.planes[:most], start=1)]


def profile_chart(report: LandscapeReport) -> Chart:
    """Draw the topological profile of the first plane."""
    plane = report.planes[0]
    profile = profile_of(plane.surface, plane.shape.values, report.probe.graph)
    return replace(profile.plot(LOSS), name="profile-of-the-loss")


def _plane_chart(report: LandscapeReport, plane: Plane, number: int) -> Chart:
    sides = plane.surface.sample.shape
    assert sides is not None  # the report is of grids
    places = plane.surface.sample.coordinates.reshape(*sides, 2)
    x, y = np.ascontiguousarray(places[:, 0, 0]), np.ascontiguousarray(places[0, :, 1])
    values, steps = plane.shape.values.reshape(sides), report.path_steps if report.path is not None else None
    chart = plane_contour(values, x, y, report.directions, name=f"plane-{number}", path=report.path, steps=steps)
    counts = [round(each.shape.statistics["minima"]) for each in report.planes]
    spread = f"{min(counts)} to {max(counts)} minima over the planes"
    which = f" (plane {number} of {len(counts)}; {spread})" if len(counts) > 1 else ""
    return replace(chart, title=f"Step {report.step}: {chart.title}{which}")
