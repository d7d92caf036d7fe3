"""Spectra and topology of the last hidden state over training."""

from functools import partial
from typing import NamedTuple

from toposcope.analysis.moves import move
from toposcope.analysis.trajectories import Trajectory, cloud_feature
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.probes.feature import Feature
from toposcope.report.charts.series import bands_of, course, faults_of, rows_of, run_names
from toposcope.report.headline import cloud_named, clouds_of
from toposcope.report.material import Material
from toposcope.study.kinds import PUBLISHED
from toposcope.typing import Vector

HEIGHT = 170


class CloudQuantity(NamedTuple):
    """A statistic of a cloud, and its name with the unit."""

    statistic: str
    title: str
    axis: str = ""


QUANTITIES = (
    CloudQuantity("rankme", "RankMe"),
    CloudQuantity("effective_rank", "Effective rank"),
    CloudQuantity("top_eigenvalue", "Top eigenvalue"),
    CloudQuantity("anisotropy", "Anisotropy"),
    CloudQuantity("two_nn", "Intrinsic dimension"),
    CloudQuantity("H0.total", "H0 total"),
    CloudQuantity("H1.total", "H1 total"),
    CloudQuantity("H1.entropy", "H1 entropy", "H1 entropy (nats)"),
)


def representation_charts(material: Material) -> list[Chart]:
    """Draw what was measured of the last hidden state: a chart for each quantity, a line for each run."""
    return cloud_charts(material, first_cloud(material), "states")


def first_cloud(material: Material) -> str:
    """Return the cloud that charts are of; empty without hidden states."""
    return next(iter(clouds_of(material.trajectories)), "")


def chart_name(prefix: str, statistic: str) -> str:
    """Return the name of the chart of a statistic."""
    return f"{prefix}-{statistic.lower().replace('.', '-').replace('_', '-')}"


def cloud_charts(material: Material, cloud: str, prefix: str) -> list[Chart]:
    """Draw a chart for each quantity of a cloud of hidden states, measured or published; none without a cloud."""
    charts = []
    for quantity in QUANTITIES if cloud else ():
        feature = cloud_feature(cloud, quantity.statistic)
        trajectories = [t for t in material.trajectories if feature in t.features]
        rows = rows_of(trajectories, partial(_values, feature=feature))
        if not len(rows):
            continue
        bands = bands_of(trajectories, feature)
        moves = [moved for t in trajectories if (moved := move(t.steps, t.features[feature])) is not None]
        title = f"{quantity.title} of {_of(cloud)} {course(moves)}"
        caption = (
            "As published."
            if cloud == PUBLISHED
            else f"{cloud_named(cloud, 'The last hidden state')}, of a fixed text."
        )
        if len(bands):
            caption += " Bands: one standard deviation over draws of the points."
        figure = training_lines(
            rows, quantity.axis or quantity.title, run_names(material), faults=faults_of(material), bands=bands,
            height=HEIGHT,
        )  # fmt: skip
        alternative = f"Line chart of a quantity of hidden states against the training step. {title}."
        charts.append(Chart(chart_name(prefix, quantity.statistic), title, caption, alternative, figure))
    return charts


def _values(trajectory: Trajectory, feature: Feature) -> Vector | None:
    return trajectory.features.get(feature)


def _of(cloud: str) -> str:
    return "the published hidden states" if cloud == PUBLISHED else "the last hidden state"
