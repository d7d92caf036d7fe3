"""The merge tree: minima of a function as leaves, saddles where a branch joins an older one."""

from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from toposcope.charts.bars import data, digits_between, limits
from toposcope.charts.chart import Chart
from toposcope.typing import Vector

MAX_BRANCHES = 100
"""Drawn, the most persistent; the branch that one of them joins is among them."""


def merge_tree(births: Vector, deaths: Vector, parents: NDArray[np.int64]) -> Chart:
    """Draw a merge tree: each branch rises from its minimum to the saddle at which it joins an older branch.

    Parameters
    ----------
    births : ndarray, shape (n,)
        Values of the minima.
    deaths : ndarray, shape (n,)
        Values of the saddles; infinite for branches that never join another.
    parents : ndarray, shape (n,), int64
        The branch that each one joins, which is born no later and dies no earlier; -1 for none. Of two that join in
        one saddle, the later one has the larger index.
    """
    finite = np.isfinite(deaths)
    low, high = limits(np.concatenate([births, deaths[finite]]))
    room = high - low
    y_axis = {
        "title": "value of the function",
        "scale": alt.Scale(domain=[low - 0.04 * room, high + 0.08 * room], nice=False),
    }
    figure = alt.layer(*tree_layers(births, deaths, parents, y_axis))
    caption = (
        "A branch rises from a minimum to the saddle where it joins an older one; those that reach the top join none."
    )
    if len(births) > MAX_BRANCHES:
        caption += f" Drawn are the {MAX_BRANCHES} most persistent of {len(births):,} branches."
    title = tree_title(births, deaths)
    return Chart("merge-tree", title, caption, f"Merge tree. {title}.", figure)


def tree_layers(
    births: Vector, deaths: Vector, parents: NDArray[np.int64], y_axis: dict[str, Any], *, margin: float = 0
) -> list[alt.Chart]:
    """Return the marks of a merge tree, of which the most persistent branches are drawn.

    Parameters
    ----------
    births, deaths, parents : ndarray, shape (n,)
        As for `merge_tree`.
    y_axis : dict
        Title, scale with a domain, and axis of the values; branches that join none rise to the upper end.
    margin : float
        Room at the left, as a share of the width.
    """
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
