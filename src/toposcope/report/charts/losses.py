"""The loss over training."""

from toposcope.charts.chart import Chart
from toposcope.charts.training import training_lines
from toposcope.report.charts.series import direction, faults_of, first_last, logged, rows_of, run_names
from toposcope.report.headline import TARGETS
from toposcope.report.material import Material


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
        rows,
        "loss (nats per token)",
        run_names(material),
        faults=faults_of(material),
        background=logged(material, "loss"),
    )
    return Chart("losses", title, caption, f"Line chart of the loss against the training step. {title}.", figure)
