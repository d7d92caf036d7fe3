"""A cool-down: the checkpoints that were read, their averages, and where holding the rate or cooling down would end."""

from typing import Any

import altair as alt
import polars as pl

from toposcope.charts.axes import with_field
from toposcope.charts.chart import Chart

LOGGED, RAW, AVERAGE = "training loss, logged", "checkpoint", "average of checkpoints"
HOLDING, COOLED, REAL = "holding the rate", "after a cool-down", "the run's own cool-down"
SHAPES = {LOGGED: "stroke", RAW: "circle", AVERAGE: "diamond", REAL: "cross", COOLED: "square", HOLDING: "stroke"}
"""In an order by which the colours next to each other on the chart are told apart."""
MEANINGS = {
    LOGGED: "the loss that was logged, as medians over steps",
    RAW: "checkpoints as they are",
    AVERAGE: "their averages, each at its last step",
    REAL: "what the run itself came to",
    COOLED: "the ends of cool-downs by their length, with 90% intervals",
    HOLDING: "dashed: the course at the rate of now, by the law of the run",
}
MARGIN = 0.03  # of the steps shown, free at either side
HEIGHT = 320


def cool_down_chart(losses: pl.DataFrame, title: str) -> Chart:
    """Draw a cool-down.

    Parameters
    ----------
    losses : DataFrame
        ``what``, one of `SHAPES`, ``step``, ``loss`` in nats per token, and the ends ``low``, ``high`` of its interval,
        null where it has none.
    title : str
    """
    kinds = [kind for kind in SHAPES if kind in set(losses["what"])]
    first, last = losses.select(low=pl.col("step").min(), high=pl.col("step").max()).row(0)
    free = MARGIN * (last - first) or 1.0
    x = alt.X(
        "step:Q", title="training step", axis=alt.Axis(format=",d", tickMinStep=1),
        scale=alt.Scale(domain=[first - free, last + free], nice=False, zero=False),
    )  # fmt: skip
    y = alt.Y("loss:Q", title="loss (nats per token)", scale=alt.Scale(zero=False))
    legend = alt.Legend(title=None, columns=1, symbolOpacity=1)
    colour = alt.Color("what:N", scale=alt.Scale(domain=kinds), legend=legend)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=kinds, range=[SHAPES[kind] for kind in kinds]), legend=legend)
    everything = alt.Chart(losses).encode(x, y, colour, tooltip=["what:N", "step:Q", "loss:Q"])

    def of(*names: str) -> alt.Chart:
        return everything.transform_filter(alt.FieldOneOfPredicate("what", list(names)))

    ended = of(COOLED).encode(tooltip=["what:N", "step:Q", "loss:Q", "low:Q", "high:Q"])
    points: dict[str, Any] = {"size": 60, "filled": True, "opacity": 1}
    figure = alt.layer(
        of(LOGGED, RAW).mark_line(strokeWidth=1),
        of(HOLDING).mark_line(strokeDash=[6, 4]),
        ended.mark_rule(strokeWidth=2).encode(y=with_field(y, "low"), y2="high:Q"),
        of(RAW, AVERAGE).mark_point(**points).encode(shape),
        ended.mark_point(**points).encode(shape),
        of(REAL).mark_point(**points).encode(shape),
    )
    caption = "; ".join(MEANINGS[kind] for kind in kinds)
    text = f"Chart of the loss against the training step: {caption}. {title}."
    return Chart("cool-down", title, f"{caption[0].upper()}{caption[1:]}.", text, figure.properties(height=HEIGHT))
