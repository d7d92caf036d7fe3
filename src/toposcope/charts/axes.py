"""Logarithmic axes: of budgets, of counts, and of positive values that span decades."""

from typing import Any

import altair as alt
import numpy as np

_POWERS = "replace(format(datum.value, '.1~e'), '+', '')"
_COUNTS = "replace(format(datum.value, '~s'), 'G', 'B')"
MIN_DECADES = 2.5  # over fewer decades 2 and 5 times the powers of ten are labelled too
MIN_VALUE_RATIO = 30  # positive values whose largest is so many times the smallest are drawn on a logarithmic axis


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


def with_field(axis: Any, field: str) -> Any:
    """Return an axis with another field."""
    renamed = axis.copy()
    renamed["shorthand"] = f"{field}:Q"
    return renamed
