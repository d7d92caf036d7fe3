"""A path of checkpoints in the plane, its steps coloured from the first to the last."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.theme import MUTED
from toposcope.charts.training import is_log_spaced

SIZE = 250  # of the panel, in pixels; both axes have one scale


def path_panel(rows: pl.DataFrame, x_title: str, y_title: str, title: str = "") -> alt.LayerChart:
    """Draw one path."""
    points = rows.select("x", "y").to_numpy()
    low, high = points.min(axis=0), points.max(axis=0)
    half = (0.5 + 0.12) * (float(np.max(high - low)) or 1.0)
    middle = (low + high) / 2
    x, y = (
        encoding(f"{name}:Q", title=text, scale=alt.Scale(domain=[centre - half, centre + half], nice=False))
        for encoding, name, text, centre in zip(
            (alt.X, alt.Y), ("x", "y"), (x_title, y_title), middle.tolist(), strict=True
        )
    )
    log = is_log_spaced(rows.get_column("step").to_numpy())
    colour = alt.Color(
        "step:Q", title="training step", scale=alt.Scale(type="symlog" if log else "linear", range="ramp"),
        legend=alt.Legend(format="~s", gradientLength=160),
    )  # fmt: skip
    base = alt.Chart(rows.with_columns(place=pl.int_range(pl.len())))
    line = base.mark_line(color=MUTED, strokeWidth=1).encode(x=x, y=y, order="place:Q")
    marks = base.mark_point(filled=True, size=45, opacity=1, stroke=MUTED, strokeWidth=0.6).encode(
        x=x, y=y, color=colour, tooltip=["run:N", alt.Tooltip("step:Q", format=",d"), "x:Q", "y:Q"]
    )
    # On the side that the path does not leave to.
    labels = [
        alt.Chart(rows[[i]].with_columns(label=pl.format("step {}", "step")))
        .mark_text(dy=14 if points[i, 1] < points[:, 1].mean() else -13)
        .encode(x=x, y=y, text="label:N")
        for i in (0, -1)
    ]
    panel = alt.LayerChart(layer=[line, marks, *labels]).properties(width=SIZE, height=SIZE)
    return panel.properties(title=title) if title else panel
