"""Bars of persistence diagrams as rows of charts: bars of length zero left out, points of one place merged."""

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from toposcope.charts.chart import Chart
from toposcope.typing import Indices, Matrix, Vector

N_CELLS = 400
"""Points within one of this many parts of either axis are drawn as one: they would cover each other."""

DIGITS = 6
"""Of a number in a chart."""


class Bars(NamedTuple):
    """The bars of one diagram.

    Attributes
    ----------
    name : str
        Of the diagram, in the legend: "H0".
    pairs : ndarray, shape (k, 2)
        Finite births and deaths; death below birth in a descending filtration.
    n_essential, n_truncated : int
        Classes that never die, and classes alive at the filtration cap.
    """

    name: str
    pairs: Matrix
    n_essential: int = 0
    n_truncated: int = 0

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
        longest = abs(bars[0, 1] - bars[0, 0])
        return (
            f"{self.name}: 1 bar of {longest:.3g}"
            if len(bars) == 1
            else (f"{self.name}: {len(bars):,} bars, the longest {longest:.3g}")
        )

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
    """Merge points that would cover each other.

    Returns
    -------
    points : ndarray, shape (n, 2)
        The longest of each place; at most `max_points`, the longest.
    counts : ndarray, shape (n,)
        How many points each stands for.
    """
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
    """Return how many digits keep six of what tells apart numbers on an axis that may be far from zero."""
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
