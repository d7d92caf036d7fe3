"""A cool-down: the checkpoints that were read, their averages, and where holding the rate or cooling down would end."""

from typing import Any

import altair as alt
import polars as pl

from toposcope.charts.axes import with_field
from toposcope.charts.chart import Chart
from toposcope.wording import COVERAGE

RAW, AVERAGE = "checkpoint", "average of checkpoints"
HOLDING, COOLED, REAL = "holding the rate", "after a cool-down", "the run's own cool-down"
LOOKS = {
    RAW: ("circle", "checkpoints as they are"),
    AVERAGE: ("diamond", "their averages, each at its last step"),
    REAL: ("cross", "what the run itself came to"),
    COOLED: ("square", f"the ends of cool-downs by their length, with {COVERAGE:.0%} intervals"),
    HOLDING: ("stroke", "dashed: the course at the rate of now, as averages fall"),
}  # in an order by which the colours next to each other on the chart can be distinguished
MARGIN = 0.03  # of the steps shown, free at either side
HEIGHT = 320


def cool_down_chart(losses: pl.DataFrame, title: str) -> Chart:
    """Draw ``what, step, loss, low, high``: one of `LOOKS`, in nats per token, the ends null without an interval."""
    kinds = [kind for kind in LOOKS if kind in set(losses["what"])]
    first, last = losses.select(low=pl.col("step").min(), high=pl.col("step").max()).row(0)
    free = MARGIN * (last - first) or 1.0
    x = alt.X(
        "step:Q", title="training step", axis=alt.Axis(format=",d", tickMinStep=1),
        scale=alt.Scale(domain=[first - free, last + free], nice=False, zero=False),
    )  # fmt: skip
    y = alt.Y("loss:Q", title="loss (nats per token)", scale=alt.Scale(zero=False))
    legend = alt.Legend(title=None, columns=1, symbolOpacity=1)
    colour = alt.Color("what:N", scale=alt.Scale(domain=kinds), legend=legend)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=kinds, range=[LOOKS[kind][0] for kind in kinds]), legend=legend)
    everything = alt.Chart(losses).encode(x, y, colour, tooltip=["what:N", "step:Q", "loss:Q"])

    def of(*names: str) -> alt.Chart:
        return everything.transform_filter(alt.FieldOneOfPredicate("what", list(names)))

    ended = of(COOLED).encode(tooltip=["what:N", "step:Q", "loss:Q", "low:Q", "high:Q"])
    points: dict[str, Any] = {"size": 60, "filled": True, "opacity": 1}
    figure = alt.layer(
        of(RAW).mark_line(strokeWidth=1),
        of(HOLDING).mark_line(strokeDash=[6, 4]),
        ended.mark_rule(strokeWidth=2).encode(y=with_field(y, "low"), y2="high:Q"),
        of(RAW, AVERAGE).mark_point(**points).encode(shape),
        ended.mark_point(**points).encode(shape),
        of(REAL).mark_point(**points).encode(shape),
    )
    caption = "; ".join(LOOKS[kind][1] for kind in kinds)
    text = f"Chart of the loss against the training step: {caption}. {title}."
    return Chart("cool-down", title, f"{caption[0].upper()}{caption[1:]}.", text, figure.properties(height=HEIGHT))
