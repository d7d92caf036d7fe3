"""The line at zero of signed quantities, and the diagonal of two that are compared."""

from typing import Literal

import altair as alt
import polars as pl

_ONE_ROW = pl.DataFrame({"zero": [0]})


def zero_line(axis: Literal["x", "y"]) -> alt.Chart:
    """Return a line where the quantity on an axis is 0."""
    line: alt.Chart = alt.Chart(_ONE_ROW).mark_rule(strokeWidth=0.9).encode(**{axis: alt.datum(0)})
    return line


def diagonal(low: float, high: float) -> alt.Chart:
    """Return the dashed line of equal quantities, from `low` to `high`."""
    ends = {"x": alt.datum(low), "y": alt.datum(low), "x2": alt.datum(high), "y2": alt.datum(high)}
    line: alt.Chart = alt.Chart(_ONE_ROW).mark_rule(strokeDash=[5, 4]).encode(**ends)
    return line
