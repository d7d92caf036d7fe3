"""A function on a plane: filled contours with minima and saddles, and its merge tree on the same axis of values."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray

from toposcope.charts.axes import spans_decades, value_axis
from toposcope.charts.chart import Chart, Figure
from toposcope.charts.diagrams import data, digits_between, limits, rounded
from toposcope.charts.merge_tree import tree_layers, tree_title
from toposcope.charts.theme import RUNS
from toposcope.typing import Indices, Matrix, Vector


class Region(NamedTuple):
    """One closed contour line and the colour of what lies just inside it."""

    band: int  # how many thresholds lie below the values inside
    outline: Matrix  # shape (k, 2); places around it; the last is joined to the first


def isobands(values: Matrix, x: Vector, y: Vector, thresholds: Vector) -> list[Region]:
    """Return regions which, painted in this order, show between which thresholds the function lies everywhere.

    The function is linear on the triangles of Freudenthal's triangulation, like the trees and saddles drawn with it.
    """
    # In units of a power of two in which no difference overflows; a threshold stays where it is among the values.
    exponent = -int(np.frexp(np.abs(values).max())[1])
    padded = np.pad(np.ldexp(values, exponent), 1, constant_values=-np.inf)
    rows, columns = np.meshgrid(np.pad(x, 1, mode="edge"), np.pad(y, 1, mode="edge"), indexing="ij")
    places = np.column_stack([rows.ravel(), columns.ravel()])
    heights, triangles = padded.ravel(), _triangles(padded.shape)
    loops = [
        (k, outline, _signed_area(outline))
        for k, threshold in enumerate(np.ldexp(thresholds, exponent).tolist())
        for outline in _loops(heights, places, triangles, threshold)
    ]
    # What is higher lies to the left of a line, so inside of one that turns left. Lines do not cross: of two, the one
    # with the larger area is the outer one. Along the border they may coincide; the band farther in comes later.
    loops.sort(key=lambda loop: (-abs(loop[2]), loop[0] if loop[2] > 0 else -loop[0]))
    rectangle = np.array([[x[0], y[0]], [x[-1], y[0]], [x[-1], y[-1]], [x[0], y[-1]]])
    return [Region(0, rectangle), *(Region(k + (area > 0), outline) for k, outline, area in loops)]


def _triangles(shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the corners of all triangles, counter-clockwise with rows to the right and columns upwards."""
    vertex = np.arange(shape[0] * shape[1]).reshape(shape)
    here, right, above, beyond = vertex[:-1, :-1], vertex[1:, :-1], vertex[:-1, 1:], vertex[1:, 1:]
    corners = [np.stack(each, axis=-1).reshape(-1, 3) for each in ((here, right, beyond), (here, beyond, above))]
    return np.concatenate(corners)


def _loops(heights: Vector, places: Matrix, triangles: NDArray[np.int64], threshold: float) -> list[Matrix]:
    """Return the closed lines between the vertices above a threshold and the others, what is above to their left."""
    above = heights > threshold
    inside = above[triangles]
    cut = triangles[inside.any(axis=1) & ~inside.all(axis=1)]
    inside = above[cut]
    # Around a triangle one side leads out of what is above and one back into it; the line goes from the first to the
    # second, where the next triangle has it as the side that leads out.
    sides = np.stack([cut, np.roll(cut, -1, axis=1)], axis=-1)
    leaves, enters = inside & ~np.roll(inside, -1, axis=1), ~inside & np.roll(inside, -1, axis=1)
    start, end = np.sort(sides[leaves], axis=1), np.sort(sides[enters], axis=1)
    keys, follows = start @ [len(heights), 1], end @ [len(heights), 1]
    order = np.argsort(keys)
    successor = order[np.searchsorted(keys[order], follows)].tolist()
    points = _crossings(heights, places, start, threshold)
    seen = [False] * len(successor)
    loops = []
    for first in range(len(successor)):
        line, at = [], first
        while not seen[at]:
            seen[at] = True
            line.append(at)
            at = successor[at]
        outline = points[line]
        distinct = outline[(outline != np.roll(outline, 1, axis=0)).any(axis=1)]
        if len(distinct) > 2:
            loops.append(distinct)
    return loops


def _crossings(heights: Vector, places: Matrix, sides: NDArray[np.int64], threshold: float) -> Matrix:
    """Return where the function passes the threshold on each side, of which one end is above it."""
    low, high = np.where((heights[sides[:, 0]] <= threshold)[:, None], sides, sides[:, ::-1]).T
    share = np.ones(len(low))  # from infinitely low, it does so at the other end
    finite = np.isfinite(heights[low])
    bottom, top = heights[low[finite]], heights[high[finite]]
    share[finite] = (threshold - bottom) / (top - bottom)
    return np.asarray(places[low] + share[:, None] * (places[high] - places[low]))


def _signed_area(outline: Matrix) -> float:
    x, y = (outline - outline[0]).T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


N_BANDS = 14  # colours of the plane
MAX_SIDE = 101  # vertices along a side from which the plane is painted; of more, evenly spaced ones
MAX_MARKS = 100  # minima drawn, the most persistent; and saddles, the lowest
SIDE = 340  # of the plane, in pixels
TREE_WIDTH = 260
STRIP = 12  # width of the strip of colours, in pixels
MIN_LABEL_GAP = 0.1  # distance between two labels of steps, as a share of the plane's sides
MANY_MARKS = 50  # more are drawn smaller
_SHAPES = {"minimum": "circle", "saddle": "diamond", "centre": "cross"}
_DARK, _LIGHT = "#14181d", "#ffffff"  # one of them is seen on any colour of the scale, so a mark has both


def contour(
    values: Matrix,
    x: Vector,
    y: Vector,
    tree: tuple[Vector, Vector, Indices],
    minima: Indices,
    saddles: Indices,
    *,
    path: Matrix | None = None,
    steps: Sequence[int] | None = None,
    centre: tuple[float, float] | None = None,
    value: str = "loss",
    directions: tuple[str, str] = ("first direction", "second direction"),
    name: str = "contour",
    title: str | None = None,
) -> Chart:
    """Draw a function on a plane, its critical points, a path on it, and next to it a merge tree of several leaves."""
    births, deaths, parents = tree
    low, high = limits(values)
    logarithmic = spans_decades(low, high)
    edges = np.geomspace(low, high, N_BANDS + 1) if logarithmic else np.linspace(low, high, N_BANDS + 1)
    several = len(births) > 1  # a tree of one leaf shows nothing
    plane = _plane(values, x, y, edges[1:-1], directions, None if several else _colour_key(edges, value))
    y_axis = value_axis(low, high, value)
    lowest_saddles = saddles[np.argsort(values.ravel()[saddles], kind="stable")][:MAX_MARKS]
    deepest_minima = minima[np.argsort(births - deaths, kind="stable")][:MAX_MARKS]
    marks = _marks(values, x, y, {"minimum": deepest_minima, "saddle": lowest_saddles}, centre)
    line, labels = _path(path, steps, x, y) if path is not None else ([], [])
    layers: list[alt.Chart] = [*plane, *line, *marks, *labels]
    figure: Figure = alt.layer(*layers).properties(width=SIDE, height=SIDE)
    words, caption = "One minimum", "The cross is the checkpoint." if centre is not None else ""
    if several:
        side = [_strip(edges, y_axis), *tree_layers(births, deaths, parents, y_axis, margin=2 * STRIP / TREE_WIDTH)]
        figure = alt.concat(
            figure, alt.layer(*side).properties(width=TREE_WIDTH, height=SIDE), columns=2
        ).resolve_scale(color="independent", shape="independent")
        words = tree_title(births, deaths)
        caption = (
            "Colours are those of the strip next to the merge tree, whose branches rise from a minimum to the saddle "
            "where they join an older one."
        )
    drawn = [
        f"the {MAX_MARKS} {which} of {count:,} {what}"
        for which, count, what in (("most persistent", len(minima), "minima"), ("lowest", len(saddles), "saddles"))
        if count > MAX_MARKS
    ]
    if drawn:
        caption += f" Drawn are {' and '.join(drawn)}."
    what = f"Filled contours of the {value} on a plane{', and its merge tree' if several else ''}. {words}."
    return Chart(name, title or words, caption, what, figure)


def _colour_key(edges: Vector, value: str) -> alt.Legend:
    """Return the key of the colours, by the middle of each band."""
    middles = [f"{middle:.3g}" for middle in (edges[:-1] + edges[1:]) / 2]
    places = [0, len(middles) // 2, len(middles) - 1]
    return alt.Legend(title=value, values=places, labelExpr=f"{middles}[datum.value]", gradientLength=SIDE // 3)


def _plane(
    values: Matrix, x: Vector, y: Vector, thresholds: Vector, directions: tuple[str, str], legend: alt.Legend | None
) -> list[alt.Chart]:
    """Return the filled contours, as polygons painted one over the other."""
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, MAX_SIDE)).round().astype(int)) for n in values.shape)
    regions = isobands(values[np.ix_(rows, columns)], x[rows], y[columns], thresholds)
    outlines = [
        {
            "region": i,
            "band": region.band,
            "x": rounded(region.outline[:, 0], *limits(x)),
            "y": rounded(region.outline[:, 1], *limits(y)),
        }
        for i, region in enumerate(regions)
    ]
    painted = alt.Chart(data(outlines)).transform_flatten(["x", "y"]).mark_line(
        filled=True, interpolate="linear-closed", strokeWidth=0.4, stroke=_DARK, strokeOpacity=0.5, strokeJoin="round"
    ).encode(
        x=alt.X("x:Q", title=directions[0], scale=_exact(x)),
        y=alt.Y("y:Q", title=directions[1], scale=_exact(y), axis=alt.Axis(grid=False)),
        color=alt.Color("band:Q", legend=legend, scale=alt.Scale(domain=[0, len(thresholds)])),
        detail="region:N",
        order=alt.value(None),  # that of the rows, not of x
    )  # fmt: skip
    return [painted]


def _strip(edges: Vector, y_axis: dict[str, Any]) -> alt.Chart:
    """Return the colours of the plane along the axis of values."""
    rows = [{"low": float(a), "high": float(b), "band": i} for i, (a, b) in enumerate(pairwise(edges))]
    digits = digits_between(edges[0], edges[-1])
    strip: alt.Chart = alt.Chart(data(rows, digits)).mark_rect().encode(
        x=alt.value(0), x2=alt.value(STRIP), y=alt.Y("low:Q", **y_axis), y2="high:Q",
        color=alt.Color("band:Q", legend=None, scale=alt.Scale(domain=[0, len(edges) - 2])),
        tooltip=["low:Q", "high:Q"],
    )  # fmt: skip
    return strip


def _marks(
    values: Matrix, x: Vector, y: Vector, vertices: Mapping[str, Indices], centre: tuple[float, float] | None
) -> list[alt.Chart]:
    """Return minima, saddles and the centre."""
    flat = values.ravel()
    rows: list[dict[str, Any]] = [
        {"kind": kind, "x": float(x[v // len(y)]), "y": float(y[v % len(y)]), "value": float(flat[v])}
        for kind, chosen in vertices.items()
        for v in chosen.tolist()
    ]
    if centre is not None:
        rows.append({"kind": "centre", "x": float(centre[0]), "y": float(centre[1])})
    shapes = {kind: _SHAPES[kind] for kind in _SHAPES if any(row["kind"] == kind for row in rows)}
    digits = max(digits_between(*limits(each)) for each in (x, y, values))
    marks: alt.Chart = alt.Chart(data(rows, digits)).mark_point(
        filled=True, fill=_LIGHT, stroke=_DARK, strokeWidth=1.1, opacity=1, size=46 if len(rows) <= MANY_MARKS else 22
    ).encode(
        x="x:Q", y="y:Q", tooltip=["kind:N", "x:Q", "y:Q", "value:Q"],
        shape=alt.Shape("kind:N", title=None, scale=alt.Scale(domain=[*shapes], range=[*shapes.values()])),
    )  # fmt: skip
    return [marks]


def _path(path: Matrix, steps: Sequence[int] | None, x: Vector, y: Vector) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Return the path with its places, and the steps of those places that have room for them."""
    inside = np.all((path >= [x[0], y[0]]) & (path <= [x[-1], y[-1]]), axis=1).tolist()
    rows = [
        {"order": i, "x": float(a), "y": float(b), "step": None if steps is None else int(steps[i])}
        for i, (a, b) in enumerate(path.tolist())
        if inside[i]
    ]
    base = alt.Chart(data(rows)).encode(x="x:Q", y="y:Q")
    line = base.encode(order="order:Q")
    tooltip = ["step:Q", "x:Q", "y:Q"] if steps is not None else ["x:Q", "y:Q"]
    labels: list[alt.Chart] = []
    drawn = [
        line.mark_line(color=_LIGHT, strokeWidth=4, opacity=0.9),
        line.mark_line(color=RUNS[1], strokeWidth=2),
        base.mark_point(filled=True, fill=RUNS[1], stroke=_LIGHT, strokeWidth=1, size=36, opacity=1).encode(
            tooltip=tooltip
        ),
    ]
    if steps is not None and rows:
        labelled = _with_room(np.array([[row["x"], row["y"]] for row in rows]) / [np.ptp(x), np.ptp(y)])
        words = alt.Chart(data([rows[i] for i in labelled])).encode(
            x="x:Q", y="y:Q", text=alt.Text("step:Q", format=",d")
        )
        place: dict[str, Any] = {"align": "left", "dx": 7, "dy": -7, "fontWeight": "bold"}
        labels.append(words.mark_text(color=_LIGHT, stroke=_LIGHT, strokeWidth=3.5, strokeJoin="round", **place))
        labels.append(words.mark_text(color=_DARK, **place))
    return drawn, labels


def _with_room(places: Matrix) -> list[int]:
    """Choose places that lie apart: the last, the first, then the others in order."""
    chosen: list[int] = []
    for i in dict.fromkeys([len(places) - 1, 0, *range(len(places))]):
        if all(np.abs(places[i] - places[j]).max() >= MIN_LABEL_GAP for j in chosen):
            chosen.append(i)
    return chosen


def _exact(axis: Vector) -> alt.Scale:
    return alt.Scale(domain=[float(axis[0]), float(axis[-1])], nice=False, zero=False)
