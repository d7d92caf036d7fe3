"""The topological landscape profile: basins as nested funnels, as wide at each level as their share of the vertices."""

import altair as alt
import numpy as np
from numpy.typing import NDArray

from toposcope.charts.axes import value_axis
from toposcope.charts.bars import data, limits, rounded
from toposcope.charts.chart import Chart
from toposcope.typing import Matrix, Vector

HEIGHT = 280
MAX_POINTS = 40
"""Levels at which the width of one piece of a funnel is drawn."""


def profile(
    levels: Vector,
    births: Vector,
    deaths: Vector,
    parents: NDArray[np.int64],
    widths: Matrix,
    *,
    title: str = "value of the function",
    n_basins: int | None = None,
) -> Chart:
    """Draw a topological landscape profile (Geniesse et al. 2024).

    Parameters
    ----------
    levels : ndarray, shape (l,)
        Ascending; births and deaths are among them, and for each death a value before it.
    births, deaths : ndarray, shape (b,)
        Of the basins; deaths are infinite for those that join no other.
    parents : ndarray, shape (b,), int64
        The basin that each one joins; -1 for none.
    widths : ndarray, shape (b, l)
        Share of the vertices in the basin's component of the sublevel set at each level.
    title : str
        Of the axis of values.
    n_basins : int, optional
        How many there are, if not all of them are drawn.
    """
    low, high = limits(levels)
    rows = []
    for i, (basin, centre, start, stop) in enumerate(_pieces(levels, births, deaths, parents, widths)):
        at = np.unique(np.linspace(start, stop - 1, min(stop - start, MAX_POINTS)).astype(int))
        share = widths[basin, at]
        left, right = (rounded(centre + side * share / 2, 0, 1) for side in (-1, 1))
        level = rounded(levels[at], low, high)
        rows.append({"piece": i, "level": level, "left": left, "right": right, "share": rounded(share, 0, 1)})
    base = (
        alt.Chart(data(rows))
        .transform_flatten(["level", "left", "right", "share"])
        .encode(
            x=alt.X("left:Q", title="share of the vertices", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("level:Q", **value_axis(low, high, title)),
            detail="piece:N",
            tooltip=[alt.Tooltip("level:Q", title=title), alt.Tooltip("share:Q", format=".2%")],
        )
    )
    sides = [base.mark_line(strokeWidth=1.2).encode(x=f"{side}:Q", order="level:Q") for side in ("left", "right")]
    area = base.mark_area(orient="horizontal", opacity=0.35).encode(x2="right:Q")
    figure = alt.layer(area, *sides).properties(height=HEIGHT)
    caption = (
        "A funnel is a basin, as wide at each level as its share of the vertices; where it lies from left to right has "
        "no meaning."
    )
    if n_basins is not None and n_basins > len(births):
        caption += f" Drawn are the {len(births)} most persistent of {n_basins:,} basins."
    words = _title(levels, births, deaths, parents, widths)
    return Chart("profile", words, caption, f"Topological landscape profile. {words}.", figure)


def _title(levels: Vector, births: Vector, deaths: Vector, parents: NDArray[np.int64], widths: Matrix) -> str:
    """Say how many basins are drawn, and how wide the lowest is before another joins it."""
    lowest = int(births.argmin())
    first = deaths[parents == lowest].min(initial=np.inf)
    if np.isinf(first):
        return f"{len(deaths)} basin{'s' * (len(deaths) != 1)}; none joins the lowest"
    share = widths[lowest, np.searchsorted(levels, first) - 1]
    return f"{len(deaths)} basins; the lowest holds {share:.2%} of the vertices where it first meets another"


def _pieces(
    levels: Vector, births: Vector, deaths: Vector, parents: NDArray[np.int64], widths: Matrix
) -> list[tuple[int, float, int, int]]:
    """Cut basins where others join them, and place the pieces: below each saddle side by side, the widest first.

    Returns
    -------
    list of (int, float, int, int)
        Basin, centre, and the range of its levels.
    """
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(parents.tolist()):
        children.setdefault(parent, []).append(i)

    def side_by_side(basins: list[int], centre: float, at: int) -> list[tuple[int, float]]:
        order = sorted(basins, key=lambda i: (-widths[i, at], i))
        ends = np.cumsum(widths[order, at])
        return [(i, centre + float(end - widths[i, at] / 2 - ends[-1] / 2)) for i, end in zip(order, ends, strict=True)]

    pieces = []
    n = len(levels)
    waiting = [(i, centre, n) for i, centre in side_by_side(children[-1], 0.5, n - 1)]
    while waiting:
        basin, centre, stop = waiting.pop()
        for saddle in sorted({deaths[i] for i in children.get(basin, []) if deaths[i] < deaths[basin]}, reverse=True):
            start = int(np.searchsorted(levels, saddle))
            pieces.append((basin, centre, start, stop))
            meeting = [basin]
            for i in meeting:  # those that join one of them at this level too
                meeting += [child for child in children.get(i, []) if deaths[child] == saddle]
            places = dict(side_by_side(meeting, centre, start - 1))
            centre, stop = places.pop(basin), start
            waiting += [(i, place, start) for i, place in places.items()]
        pieces.append((basin, centre, int(np.searchsorted(levels, births[basin])), stop))
    return pieces
