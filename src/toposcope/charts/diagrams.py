"""Charts of persistence diagrams: their points, and their bars."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from toposcope.charts.chart import Chart
from toposcope.typing import Indices, Matrix, Vector

N_CELLS = 400  # points within one of this many parts of either axis are drawn as one: they would cover each other
DIGITS = 6  # of a number in a chart


class Bars(NamedTuple):
    """The bars of one diagram."""

    name: str  # of the diagram, in the legend: "H0"
    pairs: Matrix  # shape (k, 2); finite births and deaths; death below birth in a descending filtration
    n_essential: int = 0  # classes that never die
    n_truncated: int = 0  # classes alive at the filtration cap
    unending: Vector = np.empty(0)  # births of both, as far as they are known

    @property
    def positive(self) -> Matrix:
        """The bars of positive length, the longest first, then by birth."""
        lifetimes = np.abs(self.pairs[:, 1] - self.pairs[:, 0])
        order = np.lexsort((self.pairs[:, 0], -lifetimes))
        return np.asarray(self.pairs[order][: int((lifetimes > 0).sum())])

    def headline(self) -> str:
        """Return how many bars there are and how long the longest is: "H0: 20 bars, the longest 0.5"."""
        bars = self.positive
        if not len(bars):
            return f"{self.name}: no finite bars"
        found = "1 bar of" if len(bars) == 1 else f"{len(bars):,} bars, the longest"
        return f"{self.name}: {found} {abs(bars[0, 1] - bars[0, 0]):.3g}"

    def unfinished(self) -> str:
        """Return what has no death: "1 essential, 3 truncated"; empty if there is nothing."""
        counts = {"essential": self.n_essential, "truncated": self.n_truncated}
        return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)


def headlines(diagrams: Sequence[Bars]) -> str:
    """Return the headlines of several diagrams."""
    return "; ".join(each.headline() for each in diagrams)


def is_descending(diagrams: Sequence[Bars]) -> bool:
    """Return whether the bars run from high to low filtration values."""
    return sum(float((each.pairs[:, 1] - each.pairs[:, 0]).sum()) for each in diagrams) < 0


def limits(values: Vector) -> tuple[float, float]:
    """Return the range of an axis; one value, or none, has some room around it."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def merged(pairs: Matrix, low: float, high: float, max_points: int) -> tuple[Matrix, Indices]:
    """Merge points that would cover each other."""
    cells = np.floor((pairs - low) / (high - low) * N_CELLS)
    _, first, counts = np.unique(cells, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)[:max_points]
    return pairs[first[order]], counts[order]


def data(rows: Sequence[dict[str, Any]], digits: int = DIGITS) -> alt.InlineData:
    """Return rows as a chart's data, numbers with six digits: no pixel of an axis from zero needs more."""
    return alt.InlineData(
        values=[{k: float(f"{v:.{digits}g}") if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    )


def digits_between(low: float, high: float) -> int:
    """Return how many digits keep six of what distinguishes numbers on an axis that may be far from zero."""
    largest, span = max(abs(low), abs(high)) / 2, high / 2 - low / 2  # halves, which do not overflow
    return DIGITS + math.ceil(math.log10(max(1, largest / max(span, sys.float_info.min))))


def rounded(values: Vector, low: float, high: float) -> list[float]:
    """Return places on an axis from `low` to `high`, as exactly as pixels need."""
    digits = digits_between(low, high)
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def filtration_axis(low: float, high: float, title: str, *, descending: bool) -> dict[str, Any]:
    """Return axis title and scale of filtration values, in the direction of the filtration."""
    scale = alt.Scale(domain=[low, high], nice=False, zero=False, reverse=descending)
    return {"title": f"{title} (descending)" if descending else title, "scale": scale}


def empty_chart(name: str, title: str, caption: str) -> Chart:
    """Return a chart that says that there is nothing to draw."""
    figure = alt.Chart(data([{"text": title}])).mark_text().encode(text="text:N").properties(width=360, height=120)
    return Chart(name, title, caption, f"Empty chart. {title}.", figure)


MAX_BARS = 60  # drawn of each diagram, the longest


def barcode(diagrams: Sequence[Bars]) -> Chart:
    """Draw the longest bars of one or several diagrams, in the order of their births."""
    title = headlines(diagrams)
    drawn = [each.positive[:MAX_BARS] for each in diagrams]
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
        row += 4
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
        caption += f" Drawn are the {MAX_BARS} longest of each diagram; {left_out:,} shorter ones are left out."
    figure = alt.layer(bars, text).properties(height=max(60, 5 * row))
    return Chart("barcode", title, caption, f"Barcode. {title}.", figure)


SIDE = 360  # of the square, in pixels
MAX_POINTS = 1000  # marks of one diagram; the longest bars are drawn
SHAPES = ("circle", "triangle-up", "square", "diamond", "cross")


def persistence_diagram(diagrams: Sequence[Bars]) -> Chart:
    """Draw the points of one or several diagrams.

    Points that would cover each other are drawn as one, larger; bars of length zero are left out. Classes without a
    death are counted on a line at infinity, and stand there where the diagram holds their births.
    """
    title = headlines(diagrams)
    bars = [each.positive for each in diagrams]
    low, high = limits(np.concatenate([np.empty(0), *(p.ravel() for p in bars), *(each.unending for each in diagrams)]))
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
    shapes = [SHAPES[k % len(SHAPES)] for k in range(len(names))]
    legend = alt.Legend() if len(names) > 1 else None
    largest = max((row["bars"] for row in rows), default=1)
    points = alt.Chart(data(rows)).mark_point(opacity=0.65).encode(
        x=alt.X("birth:Q", title="birth", scale=scale),
        y=alt.Y("death:Q", title="death", scale=scale),
        color=alt.Color("diagram:N", title=None, scale=alt.Scale(domain=names), legend=legend),
        shape=alt.Shape("diagram:N", title=None, scale=alt.Scale(domain=names, range=shapes), legend=legend),
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
        rows = [
            {"diagram": each.name, "birth": birth, "classes": n, "at": infinity}
            for each in diagrams
            for birth, n in sorted(Counter(each.unending.tolist()).items())
        ]
        layers.append(
            alt.Chart(data(rows)).mark_point(filled=True, opacity=0.65).encode(
                x=alt.X("birth:Q", scale=scale), y=alt.Y("at:Q", scale=scale),
                color=alt.Color("diagram:N", scale=alt.Scale(domain=names), legend=legend),
                shape=alt.Shape("diagram:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
                tooltip=["diagram:N", "birth:Q", "classes:Q"],
            )
        )  # fmt: skip
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
    more = f" {text[0].upper()}{text[1:]}." if text else ""
    return f"The farther from the diagonal, the longer a class lives.{more}"
