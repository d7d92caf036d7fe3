"""Axes, reference lines, direct labels and panels: the parts that charts share."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np

from toposcope.charts.chart import Figure
from toposcope.typing import Vector

_POWERS = "replace(format(datum.value, '.1~e'), '+', '')"
_COUNTS = "replace(format(datum.value, '~s'), 'G', 'B')"
MIN_DECADES = 2.5
"""Over fewer decades 2 and 5 times the powers of ten are labelled too."""

MIN_VALUE_RATIO = 30
"""Positive values whose largest is so many times the smallest are drawn on a logarithmic axis."""
_ONE_ROW = alt.InlineData(values=[{"zero": 0}])
MIN_GAP = 0.065
"""Distance between two labels as a share of the height of the plot."""
PANEL_WIDTH, PANEL_HEIGHT = 220, 170
"""Pixels of one of several panels in a file; on a page their width is that of their place."""
ALONE_HEIGHT = 320
"""Pixels of a panel that is the only one."""
MAX_COLUMNS = 4


def spans_decades(low: float, high: float) -> bool:
    """Return whether values from `low` to `high` are drawn on a logarithmic axis."""
    return 0 < low < high / MIN_VALUE_RATIO


def value_axis(low: float, high: float, title: str) -> dict[str, Any]:
    """Return title, scale and axis of values from `low` to `high`, logarithmic if they span decades."""
    if not spans_decades(low, high):
        return {"title": title, "scale": alt.Scale(domain=[low, high], nice=False, zero=False)}
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return {"title": title, "scale": scale, "axis": alt.Axis(values=decade_ticks(low, high), format="~g")}


def budget_axis(field: str, title: str, low: float, high: float) -> alt.X:
    """Return a logarithmic axis from `low` to `high` labelled 1e20, 1e21."""
    return _axis(field, title, low, high, _POWERS)


def count_axis(field: str, title: str, low: float, high: float) -> alt.X:
    """Return a logarithmic axis from `low` to `high` labelled 100M, 1B."""
    return _axis(field, title, low, high, _COUNTS)


def decade_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two positive numbers; over few decades with 2 and 5 times these."""
    steps = (1, 2, 5) if np.log10(high / low) < MIN_DECADES else (1,)
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [k * 10.0**decade for decade in decades for k in steps if low <= k * 10.0**decade <= high]


def _axis(field: str, title: str, low: float, high: float, label: str) -> alt.X:
    axis = alt.Axis(labelExpr=label, values=decade_ticks(low, high))
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=axis)


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


def apart(wanted: Sequence[float] | Vector, min_gap: float = MIN_GAP) -> Vector:
    """Move places in [0, 1] at least `min_gap` apart, as little as possible in least squares, keeping their order.

    Parameters
    ----------
    wanted : array_like, shape (n,)
        In any order.
    min_gap : float

    Returns
    -------
    ndarray, shape (n,)
        In the order of `wanted`. If there is no room for n labels, they share the height evenly.
    """
    places = np.asarray(wanted, dtype=np.float64)
    if len(places) < 2:
        return places
    order = np.argsort(places, kind="stable")
    gaps = min(min_gap, 1 / (len(places) - 1)) * np.arange(len(places))
    # isotonic regression of the places less the gaps: pools of neighbours share their mean
    pools: list[list[float]] = []
    for value in places[order] - gaps:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    placed = np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools]) + gaps
    result = np.empty(len(places))
    result[order] = np.clip(placed, gaps, 1 - gaps[::-1]).round(6)
    return result


def panels(figures: Mapping[str, alt.LayerChart]) -> Figure:
    """Set panels side by side under their names; a single one fills the place, without its name."""
    if len(figures) == 1:
        return next(iter(figures.values())).properties(height=ALONE_HEIGHT)
    named = [
        alt.layer(figure, _name(name)).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
        for name, figure in figures.items()
    ]
    return alt.concat(*named, columns=min(MAX_COLUMNS, len(named)))


def _name(name: str) -> alt.Chart:
    """Return the name as a mark: a title's place would depend on the labels of the axis."""
    text = alt.Chart(alt.InlineData(values=[{"name": name}])).mark_text(
        align="left", baseline="bottom", fontWeight="bold", fontSize=13
    )
    named: alt.Chart = text.encode(x=alt.value(0), y=alt.value(-9), text="name:N")
    return named
