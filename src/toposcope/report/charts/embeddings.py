"""Rank and H0 total of the input and the output embedding over training."""

from functools import partial

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.report.charts.series import direction, faults_of, first_last, run_names, series_of
from toposcope.report.charts.states import HEIGHT, QUANTITIES, CloudQuantity, chart_name
from toposcope.report.material import Material
from toposcope.typing import Vector

OF_EMBEDDINGS = ("rankme", "H0.total")
ENDS = {"embedding.input": "input", "embedding.output": "output"}


def embedding_charts(material: Material) -> list[Chart]:
    """Draw quantities of the embeddings over training: a chart for each, the output embedding dashed."""
    drawn = (_chart(material, quantity) for quantity in QUANTITIES if quantity.statistic in OF_EMBEDDINGS)
    return [chart for chart in drawn if chart is not None]


def _chart(material: Material, quantity: CloudQuantity) -> Chart | None:
    ends = {end: partial(_embedded, layer=layer, statistic=quantity.statistic) for layer, end in ENDS.items()}
    rows = series_of(material.trajectories, ends)
    if not len(rows):
        return None
    moves = {
        end: [pair for t in material.trajectories if (v := of(t)) is not None if (pair := first_last(v)) is not None]
        for end, of in ends.items()
    }
    known = [end for end in ends if len(rows.filter(series=end))]
    title = f"{quantity.title} {' and '.join(f'of the {end} embedding {direction(moves[end])}' for end in known)}"
    caption = "Points are the rows of the embedding matrices; tied embeddings are equal."
    figure = training_lines(
        rows, quantity.title, run_names(material), faults=faults_of(material), dashes=known, height=HEIGHT
    )
    alternative = f"Line chart of a quantity of embeddings against the training step. {title}."
    return Chart(chart_name("embedding", quantity.statistic), title, caption, alternative, figure)


def _embedded(trajectory: Trajectory, layer: str, statistic: str) -> Vector | None:
    """Return a statistic of an embedding by the first probe of them."""
    features = trajectory.layers.get(layer, {})
    label = next((f.label for f in features if f.probe == "embeddings"), "")
    return next((v for f, v in features.items() if f.label == label and f.statistic == statistic), None)
