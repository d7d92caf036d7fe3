"""Courses of a quantity over training, by condition: the mean of the runs in a band from the lowest to the highest."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from toposcope.extend import Indices, Matrix, Steps

PANEL_WIDTH, PANEL_HEIGHT = 210, 130


def course_rows(quantity: str, values: Matrix, steps: Steps, places: Mapping[str, Indices]) -> pl.DataFrame:
    """Return mean, lowest and highest run of a quantity, by condition and step."""
    parts = []
    for condition, members in places.items():
        if (own := values[:, members]).size:
            ends = {"mean": own.mean(axis=1), "low": own.min(axis=1), "high": own.max(axis=1)}
            parts.append(pl.DataFrame({"quantity": quantity, "condition": condition, "step": steps, **ends}))
    return pl.concat(parts).filter(pl.col("mean").is_finite())


def course_panel(
    rows: pl.DataFrame,
    quantity: str,
    title: str,
    conditions: Sequence[str],
    marked_step: int | None = None,
    legend_columns: int | None = None,
) -> alt.LayerChart:
    """Draw a quantity."""
    legend = alt.Legend(symbolOpacity=1, columns=alt.Undefined if legend_columns is None else legend_columns)
    colour = alt.Color("condition:N", title=None, scale=alt.Scale(domain=list(conditions)), legend=legend)
    x = alt.X("step:Q", title="training step", axis=alt.Axis(format=",d", tickCount=4), scale=alt.Scale(nice=False))
    scale = alt.Scale(zero=False, nice=False)
    base = alt.Chart(rows).transform_filter(f"datum.quantity === '{quantity}'").encode(x=x, color=colour)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", scale=scale, title=None), y2="high:Q")
    line = base.mark_line().encode(
        y=alt.Y("mean:Q", scale=scale, title=None),
        tooltip=["condition:N", "step:Q", *(alt.Tooltip(f"{key}:Q", format=".4~g") for key in ("mean", "low", "high"))],
    )
    layers: list[alt.Chart] = [band, line]
    if marked_step is not None:
        at = alt.Chart(pl.DataFrame({"at": [marked_step]}))
        layers.append(at.mark_rule(strokeDash=[4, 3]).encode(x="at:Q"))
    figure: alt.LayerChart = alt.LayerChart(layer=layers, title=title)
    return figure.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
