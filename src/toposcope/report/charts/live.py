"""The charts of the live page's first screen: specifications without data, as those of the explorer."""

from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from toposcope.charts.training import run_colour, step_axis_of
from toposcope.report.charts.explorer import ONE_VALUE, ROWS, lines, specification

LOSS_HEIGHT, SMALL_HEIGHT = 250, 90
BEHIND = "datum.series && indexof(datum.series, 'in grey') > 0"  # the kind of loss that runs are not ranked by
SHORT = f"datum.value && (abs(datum.value) >= 1e5 || abs(datum.value) < 1e-4) ? format(datum.value, '~e') : {ONE_VALUE}"
SMALL = ("live-rate", "live-gradient", "live-ratio")


def live_charts() -> dict[str, dict[str, Any]]:
    """Return the charts by name; runs are put in when a page is made."""
    with debug_mode(False):  # Altair would validate every part of every chart as it is made
        return {"explore-loss": specification(_losses()), **{name: specification(_small()) for name in SMALL}}


def _small() -> Any:
    """Draw a line with few ticks."""
    chart = lines([], False, SMALL_HEIGHT)
    for layer in chart.layer:
        layer.encoding.x = step_axis_of(False, "").axis(format=",d", tickCount=3, tickMinStep=1, labelFlush=25)
        if isinstance(layer.encoding.y, alt.Y):
            axis = alt.Axis(labelExpr=SHORT, tickCount=3)
            layer.encoding.y = layer.encoding.y.copy().axis(axis)
    return chart


def _losses() -> Any:
    """Draw the losses of one kind, those of the other behind them, and each forecast as a dashed path to its end."""
    chart = lines([], False, LOSS_HEIGHT)
    forecast = (
        alt.Chart(ROWS)
        .transform_filter("isValid(datum.forecast)")
        .encode(
            x=step_axis_of(False), y=alt.Y("forecast:Q", title=None, axis=alt.Axis(labelExpr=ONE_VALUE)),
            color=run_colour([]),
            tooltip=["run:N", "step:Q", "forecast:Q", "low:Q", "high:Q"],
        )
    )  # fmt: skip
    band = forecast.transform_filter("isValid(datum.low)").encode(y=alt.Y("low:Q", title=None), y2=alt.Y2("high:Q"))
    ending = (
        forecast.transform_filter("isValid(datum.top)")
        .mark_text(align="right", dy=-7, fontWeight="bold", clip=False)
        .encode(y=alt.Y("top:Q", title=None), text=alt.Text("label:N"))
    )
    lines_of_log = chart.layer[:3]  # band, line, and the mark of a single row
    for layer in lines_of_log:
        earlier = [] if layer.transform is alt.Undefined else layer.transform
        layer.transform = [alt.FilterTransform("!isValid(datum.forecast)"), *earlier]
    for layer in chart.layer:
        if not isinstance(layer.encoding.y, alt.YValue):
            grey = alt.condition(BEHIND, alt.value("#8b949e"), run_colour([]))
            layer.encoding.color = grey
    chart.layer[1].encoding.detail = alt.Detail("series:N")
    chart.layer[1].encoding.strokeWidth = alt.condition(BEHIND, alt.value(0.8), alt.value(2))
    chart.layer = [
        band.mark_area(opacity=0.18, clip=True),
        *chart.layer,
        forecast.mark_line(strokeDash=[4, 3], clip=True),
        ending,
    ]
    return chart
