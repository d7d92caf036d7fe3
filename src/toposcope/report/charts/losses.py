"""The loss over training."""

import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.report.charts.series import direction, faults_of, first_last, rows_of, run_names
from toposcope.report.headline import TARGETS
from toposcope.report.material import Material

MAX_ROWS = 400
"""Rows of the log drawn for each run; more than pixels only make the page large."""


def loss_chart(material: Material) -> Chart | None:
    """Draw the loss of every run at its checkpoints, and the logged training loss behind it."""
    with_loss = [t for t in material.trajectories if t.targets]
    if not with_loss:
        return None
    rows = rows_of(with_loss, lambda t: next(iter(t.targets.values())))
    ends = [pair for t in with_loss if (pair := first_last(next(iter(t.targets.values())))) is not None]
    names = list(dict.fromkeys(TARGETS[next(iter(t.targets))] for t in with_loss))
    what = " or ".join(names)
    title = f"The {what} {direction(ends)}"
    caption = f"Lines: {what} at the checkpoints, in nats per token; faint: the logged training loss."
    figure = training_lines(
        rows, "loss (nats per token)", run_names(material), faults=faults_of(material), background=_logged(material)
    )
    return Chart("losses", title, caption, f"Line chart of the loss against the training step. {title}.", figure)


def _logged(material: Material) -> pl.DataFrame:
    parts = [
        rows.gather_every(max(1, len(rows) // MAX_ROWS))
        for run in run_names(material)
        if len(rows := material.log.filter(run=run))
    ]
    empty = pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "value": pl.Float64})
    return pl.concat([empty, *(rows.select("run", "step", value="loss") for rows in parts)])
