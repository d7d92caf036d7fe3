"""Heat maps over training: rows of anything by checkpoint, undefined cells marked."""

from collections.abc import Sequence

import altair as alt
import polars as pl

ROW_HEIGHT = 16
"""Height of a row in pixels, where there are few."""
MAX_HEIGHT = 560


def step_heat_map(rows: pl.DataFrame, row: str, order: Sequence[str], title: str, *, signed: bool) -> alt.LayerChart:
    """Draw a value by row and checkpoint.

    Parameters
    ----------
    rows : polars.DataFrame
        `row`, ``step``, ``value``, one row for each cell; a cell whose value is not finite is marked by a cross.
    row : str
        The column that names the rows of the map.
    order : sequence of str
        The names from top to bottom.
    title : str
        Of the colour scale, with the unit.
    signed : bool
        Values have a sign: zero has the colour in the middle.

    Returns
    -------
    altair.LayerChart
        Checkpoints are columns of equal width, whatever the steps between them.
    """
    rows = rows.with_columns(value=pl.when(pl.col("value").is_finite()).then("value"))
    largest = max((abs(value) for value in rows.get_column("value").drop_nulls()), default=1.0) or 1.0
    scale = alt.Scale(range="diverging", domain=[-largest, largest], domainMid=0) if signed else alt.Scale(zero=False)
    base = alt.Chart(rows).encode(
        x=alt.X("step:O", title="training step", axis=alt.Axis(format=",d", labelAngle=0, labelSeparation=8)),
        y=alt.Y(f"{row}:N", title=None, sort=list(order), axis=alt.Axis(labelLimit=160, grid=False)),
        tooltip=[
            alt.Tooltip(f"{row}:N"),
            alt.Tooltip("step:O", format=",d"),
            alt.Tooltip("value:Q", format=".4~g", title=title),
        ],
    )
    cells = base.mark_rect().encode(color=alt.Color("value:Q", title=title, scale=scale))
    undefined = base.transform_filter("!isValid(datum.value)")
    height = min(MAX_HEIGHT, ROW_HEIGHT * len(order))
    layers = [cells.transform_filter("isValid(datum.value)")]
    if rows.get_column("value").has_nulls():
        layers += [undefined.mark_rect(color="#888", opacity=0.15), undefined.mark_text(text="×", opacity=0.7)]
    return alt.LayerChart(layer=layers).properties(height=height)
