"""Filled contours of a function on a grid, as polygons to be painted one over the other."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.typing import Matrix, Vector


class Region(NamedTuple):
    """One closed contour line and the colour of what lies just inside it.

    Attributes
    ----------
    band : int
        How many thresholds lie below the values inside.
    outline : ndarray, shape (k, 2)
        Places around it; the last is joined to the first.
    """

    band: int
    outline: Matrix


def isobands(values: Matrix, x: Vector, y: Vector, thresholds: Vector) -> list[Region]:
    """Return regions which, painted in this order, show between which thresholds the function lies everywhere.

    The function is linear on the triangles of Freudenthal's triangulation, like the trees and saddles drawn with it.

    Parameters
    ----------
    values : ndarray, shape (m, n)
        Finite; `values[i, j]` at (x[i], y[j]).
    x, y : ndarray, shape (m,) and (n,)
        Ascending.
    thresholds : ndarray, shape (k,)
        Ascending.

    Returns
    -------
    list of Region
        The first is the whole rectangle, painted as below all thresholds. Outer lines come before those inside them.

    Notes
    -----
    O(k m n) time. A border of infinitely low values at the places of the outermost vertices closes every line.
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
