"""The local learning coefficient over training, with its interval."""

from functools import partial

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.probes.degeneracy import ESTIMATE
from toposcope.probes.feature import Feature
from toposcope.report.charts.series import bands_of, direction_of, faults_of, rows_of, run_names
from toposcope.report.material import Material
from toposcope.typing import Vector

PROBE = "degeneracy"


def learning_coefficient(material: Material) -> Feature | None:
    """Return the first declared estimate; None if no run has one."""
    found = (f for t in material.trajectories for f in t.features if (f.probe, f.statistic) == (PROBE, ESTIMATE))
    return next(found, None)


def degeneracy_chart(material: Material) -> Chart | None:
    """Draw the local learning coefficient of every run at the checkpoints that have an estimate."""
    feature = learning_coefficient(material)
    if feature is None:
        return None
    trajectories = [t for t in material.trajectories if feature in t.features]
    rows = rows_of(trajectories, partial(_values, feature=feature))
    if not len(rows):
        return None
    title = f"The local learning coefficient {direction_of(trajectories, feature)}"
    caption = (
        "Bands: two standard errors either side, of the sampling alone. Checkpoints without an estimate are left out."
    )
    figure = training_lines(
        rows, "local learning coefficient", run_names(material), faults=faults_of(material),
        bands=bands_of(trajectories, feature, deviations=2),
    )  # fmt: skip
    alternative = f"Line chart of the local learning coefficient against the training step. {title}."
    return Chart("learning-coefficient", title, caption, alternative, figure)


def _values(trajectory: Trajectory, feature: Feature) -> Vector | None:
    return trajectory.features.get(feature)
