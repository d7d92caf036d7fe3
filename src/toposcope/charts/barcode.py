"""The barcode: a horizontal bar from birth to death for each class."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from toposcope.charts.bars import Bars, data, empty_chart, filtration_axis, headlines, is_descending, limits
from toposcope.charts.chart import Chart

MAX_BARS = 60
"""Drawn of each diagram, the longest."""
BAR_HEIGHT = 5
"""Pixels from one bar to the next."""
GAP = 4
"""Rows between two diagrams."""


def barcode(diagrams: Sequence[Bars], max_bars: int = MAX_BARS) -> Chart:
    """Draw the longest bars of one or several diagrams, in the order of their births."""
    title = headlines(diagrams)
    drawn = [each.positive[:max_bars] for each in diagrams]
    if not any(map(len, drawn)) and not any(each.unfinished() for each in diagrams):
        return empty_chart("barcode", title, "Bars of length zero are not drawn.")
    descending = is_descending(diagrams)
    low, high = limits(np.concatenate([np.empty(0), *(pairs.ravel() for pairs in drawn)]))
    margin = 0.02 * (high - low)
    rows: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    row = 0
    for each, pairs in zip(diagrams, drawn, strict=True):
        words = each.unfinished()
        labels.append(
            {"diagram": each.name, "row": row, "text": f"{each.name}  no finite death: {words}" if words else each.name}
        )
        row += GAP
        for birth, death in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))][:: -1 if descending else 1].tolist():
            rows.append(
                {"diagram": each.name, "row": row, "birth": birth, "death": death, "lifetime": abs(death - birth)}
            )
            row += 1
    names = [each.name for each in diagrams]
    y = alt.Y("row:Q", axis=None, scale=alt.Scale(domain=[-1, row], reverse=True, nice=False))
    axis = filtration_axis(low - margin, high + margin, "filtration value", descending=descending)
    colour = alt.Color("diagram:N", scale=alt.Scale(domain=names), legend=None)
    bars = alt.Chart(data(rows)).mark_rule(strokeWidth=2.5).encode(
        x=alt.X("birth:Q", **axis), x2="death:Q", y=y, color=colour,
        tooltip=["diagram:N", "birth:Q", "death:Q", "lifetime:Q"],
    )  # fmt: skip
    text = alt.Chart(data(labels)).mark_text(align="left", baseline="top").encode(
        x=alt.value(0), y=y, text="text:N", color=colour
    )  # fmt: skip
    left_out = sum(len(each.positive) - len(pairs) for each, pairs in zip(diagrams, drawn, strict=True))
    caption = "A bar runs from the birth to the death of a class; classes without a finite death are only counted."
    if left_out:
        caption += f" Drawn are the {max_bars} longest of each diagram; {left_out:,} shorter ones are left out."
    figure = alt.layer(bars, text).properties(height=max(60, BAR_HEIGHT * row))
    return Chart("barcode", title, caption, f"Barcode. {title}.", figure)
