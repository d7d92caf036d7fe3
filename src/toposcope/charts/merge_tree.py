"""A merge tree, and the profile of its basins as nested funnels."""

from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from toposcope.charts.axes import value_axis
from toposcope.charts.chart import Chart
from toposcope.charts.diagrams import data, digits_between, limits, rounded
from toposcope.typing import Matrix, Vector

MAX_BRANCHES = 100  # drawn, the most persistent; the branch that one of them joins is among them


def tree_layers(
    births: Vector, deaths: Vector, parents: NDArray[np.int64], y_axis: dict[str, Any], *, margin: float = 0
) -> list[alt.Chart]:
    """Return the marks of a merge tree, of which the most persistent branches are drawn."""
    n = len(births)
    # a parent lives at least as long as its children; of equals the one that merges later comes first
    shown = np.lexsort((-np.arange(n), parents >= 0, births - deaths))[:MAX_BRANCHES].tolist()
    place = _places(shown, deaths, parents)
    finite = np.isfinite(deaths)
    bottom, top = map(float, y_axis["scale"]["domain"])
    rows = [
        {
            "x": place[i],
            "parent": place[int(parents[i])] if parents[i] >= 0 else place[i],
            "birth": float(births[i]),
            "death": float(deaths[i]) if finite[i] else None,
            "end": float(deaths[i]) if finite[i] else top,
        }
        for i in shown
    ]
    y = alt.Y("birth:Q", **y_axis)
    left = -1 - margin * (len(shown) + 1)
    base = alt.Chart(data(rows, digits_between(bottom, top))).encode(
        x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[left, len(shown)], nice=False)),
        tooltip=["birth:Q", "death:Q"],
    )
    branches = base.mark_rule().encode(y=y, y2="end:Q")
    joins = base.transform_filter("datum.death !== null").mark_rule().encode(x2="parent:Q", y=alt.Y("end:Q"))
    leaves = base.mark_point(opacity=1).encode(y=y, color=alt.datum("minimum", type="nominal", legend=None))
    return [branches, joins, leaves]


def _places(shown: list[int], deaths: Vector, parents: NDArray[np.int64]) -> dict[int, int]:
    """Place branches from left to right: those that join one at its sides in turn, the lowest saddle nearest.

    A branch and those that join it lie side by side, below the saddle where it joins another: no two lines cross.
    """
    children: dict[int, list[int]] = {}
    for i in sorted(shown, key=lambda i: (deaths[i], i)):
        children.setdefault(int(parents[i]), []).append(i)
    place: dict[int, int] = {}
    waiting = [(root, False) for root in reversed(children.get(-1, []))]
    while waiting:
        branch, is_next = waiting.pop()
        if is_next:
            place[branch] = len(place)
            continue
        right, left = children.get(branch, [])[::2], children.get(branch, [])[1::2]
        order = [*((i, False) for i in reversed(left)), (branch, True), *((i, False) for i in right)]
        waiting += reversed(order)
    return place


def tree_title(births: Vector, deaths: Vector) -> str:
    """Say how many minima there are, and how deep the deepest is that joins another."""
    finite = np.isfinite(deaths)
    n_roots = int((~finite).sum())
    title = (
        f"{len(births):,} {'minimum' if len(births) == 1 else 'minima'} in {n_roots:,} component{'s' * (n_roots != 1)}"
    )
    if not finite.any():
        return title
    return f"{title}; the deepest that joins another lies {(deaths - births)[finite].max():.3g} below its saddle"


MAX_POINTS = 40  # levels at which the width of one piece of a funnel is drawn


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
    """Draw a topological landscape profile (Geniesse et al. 2024)."""
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
    figure = alt.layer(area, *sides).properties(height=280)
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
    """Cut basins where others join them, and place the pieces: below each saddle side by side, the widest first."""
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
