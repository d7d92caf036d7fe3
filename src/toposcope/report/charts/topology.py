"""Topology of weights and gradients over training."""

from collections.abc import Callable
from functools import partial

import numpy as np

from toposcope.analysis.moves import move
from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.report.charts.series import course, faults_of, rows_of, run_names, series_of
from toposcope.report.headline import GRADIENT_H0, GRADIENT_H1, GRADIENT_NORM, H0, H1, NP, Headline
from toposcope.report.material import Material
from toposcope.typing import Vector

NAMES = {NP: "neural-persistence", H0: "h0-total", H1: "h1-total"}
CAPTIONS = {
    NP: "The mean over the analysed layers, exact on every weight.",
    H0: "The sum of all H0 bar lengths over the analysed layers, exact on every weight; it grows with the weights.",
    H1: "The sum of all H1 bar lengths over the analysed layers; it grows with the weights.",
}


def topology_charts(material: Material) -> list[Chart]:
    """Draw the headline features of every run over training."""
    return [chart for headline in NAMES if (chart := _topology_chart(material, headline)) is not None]


def _topology_chart(material: Material, headline: Headline) -> Chart | None:
    rows = rows_of(material.trajectories, lambda t: t.features.get(headline.feature))
    if not len(rows):
        return None
    title = f"{headline.name} {_course(material, lambda t: t.features.get(headline.feature))}"
    figure = training_lines(rows, headline.axis, run_names(material), faults=faults_of(material))
    text = f"Line chart of {headline.name} against the training step. {title}."
    return Chart(NAMES[headline], title, CAPTIONS[headline], text, figure)


def gradient_charts(material: Material) -> list[Chart]:
    """Draw total persistence of gradients, and the same divided by the gradient norm."""
    plain = _gradient_chart(material, "gradients", _gradient, "total persistence of gradients", "H0 total of gradients")
    divided = _gradient_chart(
        material, "gradients-by-norm", _by_norm, "total persistence / gradient norm",
        "H0 total of gradients over their norm",
    )  # fmt: skip
    return [chart for chart in (plain, divided) if chart is not None]


def _gradient_chart(
    material: Material, name: str, value: Callable[..., Vector | None], axis: str, what: str
) -> Chart | None:
    dimensions = {"H0": partial(value, headline=GRADIENT_H0), "H1": partial(value, headline=GRADIENT_H1)}
    rows = series_of(material.trajectories, dimensions)
    if not len(rows.filter(series="H0")):
        return None
    title = f"{what} {_course(material, dimensions['H0'])}"
    caption = "Persistence of the gradient on one fixed batch, summed over layers; dashed: H1."
    figure = training_lines(rows, axis, run_names(material), faults=faults_of(material), dashes=list(dimensions))
    return Chart(name, title, caption, f"Line chart of {axis} against the training step. {title}.", figure)


def _gradient(trajectory: Trajectory, headline: Headline) -> Vector | None:
    return trajectory.features.get(headline.feature)


def _by_norm(trajectory: Trajectory, headline: Headline) -> Vector | None:
    values, norm = _gradient(trajectory, headline), trajectory.features.get(GRADIENT_NORM)
    if values is None or norm is None:
        return None
    return np.asarray(np.divide(values, norm, out=np.full(len(values), np.nan), where=norm > 0))


def _course(material: Material, value: Callable[[Trajectory], Vector | None]) -> str:
    return course([
        moved
        for t in material.trajectories
        if (values := value(t)) is not None
        if (moved := move(t.steps, values)) is not None
    ])  # fmt: skip
