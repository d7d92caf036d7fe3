"""The persistence diagram: births and deaths about the diagonal."""

from collections.abc import Sequence

import altair as alt
import numpy as np

from toposcope.charts.bars import Bars, data, empty_chart, headlines, is_descending, limits, merged
from toposcope.charts.chart import Chart

SIDE = 360
"""Of the square, in pixels."""
MAX_POINTS = 1000
"""Marks of one diagram; the longest bars are drawn."""
SHAPES = ("circle", "triangle-up", "square", "diamond", "cross")


def persistence_diagram(diagrams: Sequence[Bars]) -> Chart:
    """Draw the points of one or several diagrams.

    Points that would cover each other are drawn as one, larger; bars of length zero are left out. Classes without a
    death are counted on a line at infinity, since a diagram does not hold their births.
    """
    title = headlines(diagrams)
    bars = [each.positive for each in diagrams]
    low, high = limits(np.concatenate([np.empty(0), *(pairs.ravel() for pairs in bars)]))
    unfinished = [f"{each.name} {words}" for each in diagrams if (words := each.unfinished())]
    if not any(map(len, bars)) and not unfinished:
        return empty_chart("persistence-diagram", title, "Bars of length zero are not drawn.")
    margin = 0.04 * (high - low)
    descending = is_descending(diagrams)
    infinity = low - 2 * margin if descending else high + 2 * margin
    ends = [min(low, infinity) - margin, max(high, infinity) + margin] if unfinished else [low - margin, high + margin]
    scale = alt.Scale(domain=ends, nice=False, zero=False)
    rows, n_drawn = [], 0
    for each, pairs in zip(diagrams, bars, strict=True):
        points, counts = merged(pairs, low, high, MAX_POINTS)
        n_drawn += int(counts.sum())
        rows += [
            {"diagram": each.name, "birth": b, "death": d, "lifetime": abs(d - b), "bars": n}
            for (b, d), n in zip(points.tolist(), counts.tolist(), strict=True)
        ]
    names = [each.name for each in diagrams]
    legend = alt.Legend() if len(names) > 1 else None
    largest = max((row["bars"] for row in rows), default=1)
    points = alt.Chart(data(rows)).mark_point(opacity=0.65).encode(
        x=alt.X("birth:Q", title="birth", scale=scale),
        y=alt.Y("death:Q", title="death", scale=scale),
        color=alt.Color("diagram:N", title=None, scale=alt.Scale(domain=names), legend=legend),
        shape=alt.Shape("diagram:N", title=None, scale=alt.Scale(domain=names, range=_shapes(names)), legend=legend),
        size=alt.Size("bars:Q", scale=alt.Scale(domain=[1, max(2, largest)], range=[30, 150]), legend=None),
        tooltip=["diagram:N", "birth:Q", "death:Q", "lifetime:Q", "bars:Q"],
    )  # fmt: skip
    diagonal = alt.Chart(data([{"low": ends[0], "high": ends[1]}])).mark_rule(clip=True).encode(
        x=alt.X("low:Q", scale=scale), y=alt.Y("low:Q", scale=scale), x2="high:Q", y2="high:Q"
    )  # fmt: skip
    layers = [diagonal, points]
    if unfinished:
        at = alt.Chart(data([{"at": infinity, "text": "no finite death: " + "; ".join(unfinished)}])).encode(
            y=alt.Y("at:Q", scale=scale)
        )
        layers.append(at.mark_rule(strokeDash=[4, 3]))
        layers.append(
            # away from the diagonal
            at.mark_text(align="right" if descending else "left", baseline="bottom", dy=-2).encode(
                x=alt.value("width" if descending else 4), text="text:N", tooltip="text:N"
            )
        )
    caption = _caption(len(rows), n_drawn, sum(map(len, bars)), sum(len(each.pairs) for each in diagrams))
    figure = alt.layer(*layers).properties(width=SIDE, height=SIDE)
    way = "below, as its filtration descends" if descending else "above"
    return Chart(
        "persistence-diagram", title, caption, f"Persistence diagram. {title}; points lie {way} the diagonal.", figure
    )


def _shapes(names: Sequence[str]) -> list[str]:
    return [SHAPES[place % len(SHAPES)] for place in range(len(names))]


def _caption(n_marks: int, n_drawn: int, n_positive: int, n_bars: int) -> str:
    """Say how to read it, and what is merged or left out."""
    parts = []
    if n_marks < n_drawn:
        parts.append(f"larger marks stand for several points ({n_drawn:,} on {n_marks:,} marks)")
    if n_drawn < n_positive:
        parts.append(f"the {n_positive - n_drawn:,} shortest are left out")
    if n_positive < n_bars:
        parts.append(f"bars of length zero are not drawn ({n_bars - n_positive:,})")
    text = "; ".join(parts)
    return "The farther from the diagonal, the longer a class lives." + (
        f" {text[0].upper()}{text[1:]}." if text else ""
    )
