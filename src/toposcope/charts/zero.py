"""The line at zero of signed quantities, and the diagonal of two that are compared."""

from typing import Literal

import altair as alt
import polars as pl

_ONE_ROW = pl.DataFrame({"zero": [0]})


def zero_line(axis: Literal["x", "y"]) -> alt.Chart:
    """Return a line where the quantity on an axis is 0."""
    line: alt.Chart = (
        alt.Chart(_ONE_ROW).mark_rule(strokeWidth=0.9).encode(alt.XDatum(0) if axis == "x" else alt.YDatum(0))
    )
    return line


def diagonal(low: float, high: float) -> alt.Chart:
    """Return the dashed line of equal quantities, from `low` to `high`."""
    ends = alt.XDatum(low), alt.YDatum(low), alt.X2Datum(high), alt.Y2Datum(high)
    line: alt.Chart = alt.Chart(_ONE_ROW).mark_rule(strokeDash=[5, 4]).encode(*ends)
    return line
