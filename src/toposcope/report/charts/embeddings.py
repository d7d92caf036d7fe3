"""Rank and H0 total of the input and the output embedding over training."""

from collections.abc import Callable, Mapping

import polars as pl

from toposcope.analysis.trajectories import Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.report.charts.series import direction, faults_of, first_last, rows_of, run_names
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
    rows, moves = [], []
    for layer, end in ENDS.items():
        series = {t.run: v for t in material.trajectories if (v := _embedded(t, layer, quantity.statistic)) is not None}
        if series:
            of_runs = [t for t in material.trajectories if t.run in series]
            rows.append(rows_of(of_runs, _value_in(series)).with_columns(series=pl.lit(end)))
            moves.append(f"of the {end} embedding {_moves(list(series.values()))}")
    if not rows:
        return None
    title = f"{quantity.title} {' and '.join(moves)}"
    caption = "Points are the rows of the embedding matrices; tied embeddings are equal."
    figure = training_lines(
        pl.concat(rows), quantity.title, run_names(material), faults=faults_of(material), dashes=list(ENDS.values()),
        height=HEIGHT,
    )  # fmt: skip
    alternative = f"Line chart of a quantity of embeddings against the training step. {title}."
    return Chart(chart_name("embedding", quantity.statistic), title, caption, alternative, figure)


def _value_in(series: Mapping[str, Vector]) -> Callable[[Trajectory], Vector]:
    return lambda trajectory: series[trajectory.run]


def _moves(series: list[Vector]) -> str:
    ends = [pair for values in series if (pair := first_last(values)) is not None]
    return direction(ends) if ends else "is known at one checkpoint"


def _embedded(trajectory: Trajectory, layer: str, statistic: str) -> Vector | None:
    """Return a statistic of an embedding by the first probe of them."""
    features = trajectory.layers.get(layer, {})
    label = next((f.label for f in features if f.probe == "embeddings"), "")
    return next((v for f, v in features.items() if f.label == label and f.statistic == statistic), None)
