"""Sublevel persistence of a function on the vertices of a grid or a graph: components, merge tree, saddles. Exact."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array
from toposcope.homology.diagram import Diagram
from toposcope.typing import Indices, Vector

# Clockwise from the north-west: consecutive cells touch, and bit k of a set of cells stands for cell k.
_RING = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))
# Freudenthal's triangulation has one diagonal a square: that along which both coordinates grow.
_NEIGHBOURS: Mapping[str, frozenset[tuple[int, int]]] = {
    "4": frozenset({(-1, 0), (0, 1), (1, 0), (0, -1)}),
    "8": frozenset(_RING),
    "freudenthal": frozenset({(-1, -1), (-1, 0), (0, 1), (1, 1), (1, 0), (0, -1)}),
}
_MAX_EXACT_INTEGER = 2**53  # up to here float64 holds every whole number


@dataclass(frozen=True, eq=False)
class Sublevel:
    """Components of the sublevel sets of a function on n vertices: where each is born, and where it joins an older one.

    A component is older if its minimum comes first in the order of (value, index). Minima and saddles are those of
    positive persistence: of a plateau without a lower neighbour only the vertex of smallest index can be a minimum, and
    a component that would die at the height of its birth is nowhere in this record.

    Attributes
    ----------
    diagram : Diagram
        H0, with death > birth for every pair; ``essential_births`` holds the lowest value of each connected component.
    minima : ndarray, shape (k,), int64
        Vertex at which each row of ``diagram.pairs`` is born.
    saddles : ndarray, shape (k,), int64
        Vertex at which it dies.
    essential_minima : ndarray, shape (n_essential,), int64
        Lowest vertex of each connected component, ascending.
    essential_births : ndarray, shape (n_essential,), float64
        Values of the function there.
    merges : ndarray, shape (k, 3), int64
        The merge tree from the leaves up, one row a pair: surviving minimum, dying minimum, saddle vertex, in
        increasing order of (value, index) of the saddle. Where several components meet in one vertex, the oldest
        survives them all, in as many rows as die.
    """

    diagram: Diagram
    minima: Indices
    saddles: Indices
    essential_minima: Indices
    essential_births: Vector
    merges: Indices

    def __repr__(self) -> str:
        return f"Sublevel({len(self.minima)} minima that die, {len(self.essential_minima)} essential)"

    def branches(self) -> "Branches":
        """Return the merge tree as branches, each from a minimum to the saddle at which it joins an older one.

        Returns
        -------
        Branches
            In the order in which they join another, then those that never do.
        """
        minima = np.concatenate([self.merges[:, 1], self.essential_minima])
        by_vertex = np.argsort(minima)
        row = np.argsort(self.minima)[np.searchsorted(np.sort(self.minima), self.merges[:, 1])]
        parents = by_vertex[np.searchsorted(minima[by_vertex], self.merges[:, 0])]
        n_essential = len(self.essential_minima)
        return Branches(
            minima=minima,
            births=np.concatenate([self.diagram.pairs[row, 0], self.essential_births]),
            deaths=np.concatenate([self.diagram.pairs[row, 1], np.full(n_essential, np.inf)]),
            parents=np.concatenate([parents, np.full(n_essential, -1)]),
        )


class Branches(NamedTuple):
    """The branches of a merge tree, by the elder rule."""

    minima: Indices  # shape (n,); vertices
    births: Vector  # shape (n,); values of the minima
    deaths: (
        Vector  # shape (n,); values of the saddles at which the branches join another; infinite for those that never do
    )
    # shape (n,); the branch that each one joins, which is born no later and joins another no earlier; -1 for none
    parents: Indices

    def most_persistent(self, count: int) -> Indices:
        """Return the most persistent branches, at most so many; each behind the one that it joins."""
        # a parent lives at least as long as its children; of equals the one that merges later comes first
        later_first = -np.arange(len(self.births))
        return np.lexsort((later_first, self.parents >= 0, self.births - self.deaths))[:count]


def sublevel_grid(values: ArrayLike | Any, *, connectivity: Literal["4", "8", "freudenthal"] = "8") -> Sublevel:
    """Return the 0-dimensional sublevel persistence of a function on a two-dimensional grid.

    A vertex enters at its value, an edge at the larger of its two ends.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (m, n)
        Finite real numbers, integers or booleans; computed in float64, and left as they are.
    connectivity : "4", "8" or "freudenthal"
        Which vertices are neighbours of (i, j): the four along the axes, as in a cubical complex built from vertices;
        also the four diagonal ones, as in one built from top cells; or the four and (i - 1, j - 1), (i + 1, j + 1),
        which is a triangulation.

    Returns
    -------
    Sublevel
        Vertices are flat indices in C order: (i, j) is i * n + j.

    Raises
    ------
    ToposcopeError
        If the grid is not a finite real matrix with at least one entry, holds integers beyond 2^53, or the connectivity
        is unknown.

    Notes
    -----
    O(mn) time plus O(s log s) for s saddles; 17 to 50 bytes a vertex of memory. Values are compared and never
    combined, so births and deaths are values of the grid, to the last bit. See `toposcope.kernels.merge_tree`.
    """
    from toposcope.kernels.merge_tree import grid_basins

    _check_connectivity(connectivity)
    grid = as_vertex_values(values, dimension=2)
    m, n = grid.shape
    padded = np.full((m + 2, n + 2), np.inf)
    padded[1:-1, 1:-1] = grid
    offsets, counts = _ring_groups(connectivity)
    basins = grid_basins(padded, offsets @ np.array([n + 2, 1]), counts)
    merges, essential = _joined(padded.ravel(), *basins)

    def unpadded(vertices: Indices) -> Indices:
        row, column = np.divmod(vertices, n + 2)
        return np.asarray((row - 1) * n + column - 1)

    return _record(grid.ravel(), unpadded(merges), unpadded(essential))


def sublevel_graph(values: ArrayLike | Any, edges: ArrayLike | Any) -> Sublevel:
    """Return the 0-dimensional sublevel persistence of a function on the vertices of a graph.

    A vertex enters at its value, an edge at the larger of its two ends: the lower-star filtration.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (n,)
        Finite real numbers, integers or booleans; computed in float64, and left as they are.
    edges : array-like or torch.Tensor, shape (k, 2)
        Integers from 0 to n - 1, in any order; repeated edges and loops change nothing. May be empty.

    Returns
    -------
    Sublevel
        ``n_essential`` is the number of connected components, isolated vertices included.

    Raises
    ------
    ToposcopeError
        If the values are not a finite real vector with at least one entry, hold integers beyond 2^53, or the edges are
        not pairs of vertices.

    Notes
    -----
    O((n + k) log n) time in the worst case, plus O(s log s) for s edges between basins; O(n + k) memory. Births and
    deaths are values of the function, to the last bit.
    """
    from toposcope.kernels.merge_tree import graph_basins

    function = as_vertex_values(values, dimension=1)
    pairs = as_edges(edges, len(function))
    merges, essential = _joined(function, *graph_basins(function, pairs))
    return _record(function, merges, essential)


def _joined(
    values: Vector, parent: Indices, minima: Indices, saddles: Indices, ends: Indices
) -> tuple[Indices, Indices]:
    """Return the merge tree and the essential minima, as vertices."""
    from toposcope.kernels.merge_tree import join_basins

    births, heights = values[minima], values[saddles]
    by_age, ascending = _order(births, minima), _order(heights, saddles)
    # From here on a basin goes by its age, so that the union-find works in a short array and compares no values.
    age = parent
    age[minima[by_age]] = np.arange(len(minima))
    merges, essential = join_basins(
        births[by_age], heights[ascending], saddles[ascending], age[ends].take(ascending, axis=0)
    )
    minima = minima[by_age]
    return np.column_stack([minima[merges[:, :2]], merges[:, 2]]), np.sort(minima[essential])


def _order(keys: Vector, tie_breakers: Indices) -> Indices:
    """Sort by two keys. Where the first decides, NumPy's default sort does it in a fraction of the time of lexsort."""
    order = np.argsort(keys)
    ranked, breakers = keys[order], tie_breakers[order]
    if ((ranked[1:] == ranked[:-1]) & (breakers[1:] != breakers[:-1])).any():
        return np.lexsort((tie_breakers, keys))
    return order


def _record(values: Vector, merges: Indices, essential_minima: Indices) -> Sublevel:
    births, deaths = values[merges[:, 1]], values[merges[:, 2]]
    # Merges ascend in their saddles, so their place stands for their death.
    order = _order(births, np.arange(len(births)))
    return Sublevel(
        diagram=Diagram(np.column_stack([births, deaths])[order], 0, essential_births=values[essential_minima]),
        minima=merges[order, 1],
        saddles=merges[order, 2],
        essential_minima=essential_minima,
        essential_births=values[essential_minima],
        merges=merges,
    )


@cache
def _ring_groups(connectivity: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tabulate, for each set of ring cells, the groups of neighbours that are joined within it."""
    neighbours = _NEIGHBOURS[connectivity]
    offsets, counts = np.zeros((256, 4, 2), np.int64), np.zeros(256, np.int64)
    for cells in range(256):
        present = [_RING[k] for k in range(8) if cells >> k & 1]
        group = {cell: cell for cell in present}
        for a in present:
            for b in present:
                if (b[0] - a[0], b[1] - a[1]) in neighbours:
                    group = {cell: group[a] if root == group[b] else root for cell, root in group.items()}
        leaders = {group[cell]: cell for cell in present if cell in neighbours}
        counts[cells] = len(leaders)
        offsets[cells, : len(leaders)] = list(leaders.values()) or np.empty((0, 2))
    return offsets, counts


def ring_structure(connectivity: str) -> NDArray[np.bool_]:
    """Return the neighbours of a vertex of a grid as a 3 x 3 mask, its own place included."""
    _check_connectivity(connectivity)
    offsets = [(0, 0), *_NEIGHBOURS[connectivity]]
    return np.array([[(i, j) in offsets for j in (-1, 0, 1)] for i in (-1, 0, 1)])


def _check_connectivity(connectivity: object) -> None:
    if not isinstance(connectivity, str) or connectivity not in _NEIGHBOURS:
        raise ToposcopeError(f"connectivity: expected '4', '8' or 'freudenthal', got {connectivity!r}")


def as_vertex_values(values: Any, dimension: int) -> NDArray[np.float64]:
    """Return a finite, C-contiguous float64 array of that many dimensions; the caller's own if it is one."""
    array = as_array(values, "values")
    expected = "one value a vertex, shape (n,)" if dimension == 1 else "a 2-D grid, shape (m, n)"
    if array.ndim != dimension:
        raise ToposcopeError(f"values: expected {expected}, got shape {array.shape}")
    if array.size == 0:
        raise ToposcopeError(f"values: expected {expected} with at least one entry, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ToposcopeError(f"values: expected real numbers, got {array.dtype} of shape {array.shape}")
    if array.dtype.kind in "iu" and max(-int(array.min()), int(array.max())) > _MAX_EXACT_INTEGER:
        raise ToposcopeError(
            f"values: expected integers within 2^53, which float64 keeps apart, got {array.dtype} from "
            f"{array.min()} to {array.max()}, shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # a long double beyond the range becomes infinite, and is refused below
        numbers = np.ascontiguousarray(array, dtype=np.float64)
    finite = np.isfinite(numbers)
    if not finite.all():
        raise ToposcopeError(
            f"values: {int(numbers.size - finite.sum())} of {numbers.size} entries are NaN or infinite, shape "
            f"{numbers.shape}; expected finite float64 numbers"
        )
    return numbers


def as_edges(edges: Any, n_vertices: int) -> Indices:
    """Return edges as a C-contiguous int64 array of shape (k, 2) whose entries are vertices."""
    array = as_array(edges, "edges")
    if array.size == 0 and array.ndim in (1, 2) and array.shape[-1] in (0, 2):
        return np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ToposcopeError(f"edges: expected pairs of vertices, shape (k, 2), got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise ToposcopeError(f"edges: expected integers, got {array.dtype} of shape {array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n_vertices:
        raise ToposcopeError(
            f"edges: expected vertices from 0 to {n_vertices - 1}, got {low if low < 0 else high}, shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)
