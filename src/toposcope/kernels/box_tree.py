"""A tree of boxes around points of the plane or space: relative neighbours, next neighbours, and points of a lune.

Points are put in the order of the tree, so that every box holds a run of them and labels that are close lie close.
Edges are ordered by length, those of one length by the labels of their ends. Lengths are those of
`toposcope.kernels.pairwise`, to the last bit: squares decide where they differ by more than they are rounded, and the
lengths themselves where they do not.

A search goes from the box of a point to the boxes beside it on the way to the root, the nearest first. For relative
neighbours, the points found so far refute others: those that are nearer to one of them than to the point where the
search began, and farther from it than that one. Whole boxes are refuted so, and few are left.

Cost: O(n log n) to build; O(log n) boxes a search, and a few more. Searches are slow only where many points are
farther from another than they can be told apart.
Source: the half-spaces are those of Chavez et al. 2006, "Half-space proximal"; the graph is that of Toussaint 1980.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, wide
from toposcope.kernels.pairwise import pair_distance
from toposcope.typing import Indices, Matrix, Vector

Labels = NDArray[np.int32]

LEAF_POINTS = 8
TIE = 1e-13  # squared distances this close to each other, relatively, are decided by the lengths
# points that may refute another, or a box, are tried in about the time of one visit; one where squares decide nothing
TRIED_PER_VISIT = 32
LEAST_SQUARE = 1e-280  # of lengths below its root nothing is decided by squares, which lose digits


class BoxTree(NamedTuple):
    """A complete binary tree; the children of box k are 2 k + 1 and 2 k + 2."""

    points: Matrix  # shape (n, d)
    axes: tuple[int, ...]  # 0 to d - 1: its length is known when a search is compiled
    boxes: Matrix  # shape (2 m - 1, 2 d); least coordinates, then greatest
    begin: Labels  # shape (2 m - 1,); the first point of each box
    end: Labels


def box_tree(points: Matrix) -> tuple[BoxTree, Indices]:
    """Return the tree of points, and the numbers of the points in its order."""
    n, d = points.shape
    depth = max(0, int(np.ceil(np.log2(max(n, 1) / LEAF_POINTS))))
    n_boxes = 2 ** (depth + 1) - 1
    tree = BoxTree(
        points.copy(),
        tuple(range(d)),
        np.empty((n_boxes, 2 * d)),
        np.zeros(n_boxes, np.int32),
        np.zeros(n_boxes, np.int32),
    )
    order = np.arange(n)
    _divide(tree, order)
    return tree, order


@compiled
def _divide(tree: BoxTree, order: Indices) -> None:
    """Put the points in order, and fill in the boxes."""
    d = len(tree.axes)
    tree.end[0] = len(order)
    n_boxes, place = 1, 0  # of one size, and of those which
    for k in range(len(tree.boxes)):
        begin, end = wide(tree.begin[k]), wide(tree.end[k])
        widest, width = 0, -1.0
        for t in range(d):
            least, greatest = np.inf, -np.inf
            for p in range(begin, end):
                least, greatest = min(least, tree.points[p, t]), max(greatest, tree.points[p, t])
            tree.boxes[k, t], tree.boxes[k, d + t] = least, greatest
            if greatest - least > width:
                widest, width = t, greatest - least
        if 2 * k + 2 < len(tree.boxes):
            middle = len(order) * (2 * place + 1) // (2 * n_boxes)
            _split(tree, order, begin, end, middle, widest)
            tree.begin[2 * k + 1], tree.end[2 * k + 1] = begin, middle
            tree.begin[2 * k + 2], tree.end[2 * k + 2] = middle, end
        place += 1
        if place == n_boxes:
            n_boxes, place = 2 * n_boxes, 0


@compiled
def _split(tree: BoxTree, order: Indices, begin: int, end: int, middle: int, t: int) -> None:
    """Move the points with the least coordinates before the middle (Hoare 1961, "Find")."""
    points = tree.points
    low, high = begin, end - 1
    while low < high:
        pivot = points[(low + high) // 2, t]
        i, j = low, high
        while i <= j:
            while points[i, t] < pivot:
                i += 1
            while points[j, t] > pivot:
                j -= 1
            if i <= j:
                for s in range(len(tree.axes)):
                    points[i, s], points[j, s] = points[j, s], points[i, s]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@compiled
def square(tree: BoxTree, a: int, b: int) -> float:
    """Return the squared distance of two points, rounded in whatever way."""
    total = 0.0
    for t in range(len(tree.axes)):
        difference = tree.points[a, t] - tree.points[b, t]
        total += difference * difference
    return total


@compiled
def comes_before(tree: BoxTree, a: int, b: int, length: float, i: int, j: int) -> bool:
    """Return whether an edge ab comes before the edge of this length with the ends i < j."""
    found, given = square(tree, a, b), length * length
    if given > LEAST_SQUARE:
        if found < given * (1 - TIE):
            return True
        if found > given * (1 + TIE):
            return False
    own = pair_distance(tree.points, a, b)
    if own != length:
        return own < length
    low, high = min(a, b), max(a, b)
    return low < i or (low == i and high < j)


@compiled
def _least_square(tree: BoxTree, k: int, a: int) -> float:
    """Return the squared distance of a point from a box."""
    d, total = len(tree.axes), 0.0
    for t in range(d):
        x = tree.points[a, t]
        gap = max(tree.boxes[k, t] - x, x - tree.boxes[k, d + t], 0.0)
        total += gap * gap
    return total


@compiled
def _greatest_square(tree: BoxTree, k: int, a: int) -> float:
    """Return the squared distance of a point from the farthest corner of a box."""
    d, total = len(tree.axes), 0.0
    for t in range(d):
        x = tree.points[a, t]
        gap = max(x - tree.boxes[k, t], tree.boxes[k, d + t] - x)
        total += gap * gap
    return total


@compiled
def new_stack(tree: BoxTree) -> Labels:
    """Return room for the boxes that a search has before it."""
    return np.empty(128, np.int32)


@compiled
def _leaf_of(tree: BoxTree, u: int) -> int:
    """Return the smallest box around a point."""
    n_leaves = (len(tree.boxes) + 1) // 2
    return n_leaves - 1 + ((u + 1) * n_leaves - 1) // len(tree.points)


@compiled
def _climb(tree: BoxTree, around: int, u: int, above: float, stack: Labels) -> tuple[int, int]:
    """Stack the box beside one on the way from a point to the root; return what both are in, and how many were stacked.

    None where all points up to a squared distance are in the box already.
    """
    d, inside = len(tree.axes), True
    for t in range(d):
        x = tree.points[u, t]
        gap = min(x - tree.boxes[around, t], tree.boxes[around, d + t] - x)
        inside &= gap * gap > above
    if around == 0 or inside:
        return around, 0
    stack[0] = around + 1 if around % 2 else around - 1
    return (around - 1) // 2, 1


@compiled
def _push_children(tree: BoxTree, k: int, u: int, stack: Labels, top: int) -> int:
    """Stack the two halves of a box, the one nearer to a point last."""
    a, b = 2 * k + 1, 2 * k + 2
    if _least_square(tree, a, u) < _least_square(tree, b, u):
        a, b = b, a
    stack[top], stack[top + 1] = a, b
    return top + 2


@compiled
def next_neighbours(
    tree: BoxTree, u: int, after: float, beyond: int, lengths: Vector, others: Labels, stack: Labels
) -> tuple[int, int]:
    """Fill in the next neighbours of a point, those after a length and, of that length, after a label.

    Returns how many there are, and how many boxes were visited.
    """
    points, room = tree.points, len(lengths)
    # Squares below and above are certainly too short and too long.
    below = after * after * (1 - TIE) if after * after > LEAST_SQUARE else -1.0
    count, above, visits = 0, np.inf, 0
    around, stack[0], top = _leaf_of(tree, u), _leaf_of(tree, u), 1
    while True:
        if top == 0:
            around, top = _climb(tree, around, u, above, stack)
            if top == 0:
                break
        top -= 1
        k = wide(stack[top])
        visits += 1
        if _least_square(tree, k, u) > above or _greatest_square(tree, k, u) < below:
            continue
        if 2 * k + 2 < len(tree.boxes):
            top = _push_children(tree, k, u, stack, top)
            continue
        for v in range(wide(tree.begin[k]), wide(tree.end[k])):
            found = square(tree, u, v)
            if found > above or found < below or v == u:
                continue
            length = pair_distance(points, u, v)
            if length < after or (length == after and v <= beyond):
                continue
            if count == room:
                if length > lengths[room - 1] or (length == lengths[room - 1] and v > others[room - 1]):
                    continue
                count -= 1
            place = count
            while place and (lengths[place - 1] > length or (lengths[place - 1] == length and others[place - 1] > v)):
                lengths[place], others[place] = lengths[place - 1], others[place - 1]
                place -= 1
            lengths[place], others[place] = length, v
            count += 1
            if count == room:
                above = max(lengths[room - 1] ** 2 * (1 + TIE), LEAST_SQUARE)
    return count, visits


@compiled
def point_of_lune(
    tree: BoxTree, u: int, v: int, length: float, marks: Labels, centres: Labels, n_centres: int, stack: Labels
) -> tuple[int, int]:
    """Return a point of the lune of an edge u < v that has no mark and that no centre sees; -1 if there is none.

    A centre is a point with known distances: it sees the points to which it has an earlier edge, and boxes of these
    are passed over. Also returned is how many boxes were visited.
    """
    above, below = max(length * length * (1 + TIE), LEAST_SQUARE), length * length * (1 - TIE)
    visits, around, stack[0], top = 0, _leaf_of(tree, u), _leaf_of(tree, u), 1
    while True:
        if top == 0:
            around, top = _climb(tree, around, u, above, stack)
            if top == 0:
                break
        top -= 1
        k = wide(stack[top])
        visits += 1
        if _least_square(tree, k, u) > above or _least_square(tree, k, v) > above:
            continue
        seen = False
        for i in range(n_centres):
            c = wide(centres[i])
            seen |= below > LEAST_SQUARE and _greatest_square(tree, k, c) < below
        if seen:
            continue
        if 2 * k + 2 < len(tree.boxes):
            top = _push_children(tree, k, v, stack, top)
            continue
        for w in range(wide(tree.begin[k]), wide(tree.end[k])):
            if marks[w] or w in (u, v):
                continue
            if comes_before(tree, u, w, length, u, v) and comes_before(tree, v, w, length, u, v):
                seen = False
                for i in range(n_centres):
                    c = wide(centres[i])
                    seen |= w == c or comes_before(tree, c, w, length, u, v)
                if not seen:
                    return w, visits
    return -1, visits


@compiled
def relative_neighbours(tree: BoxTree, budget: int) -> tuple[Labels, Vector, int]:
    """Return the edges whose lunes are empty, u < v, in the order of their ends, their lengths, and what is left.

    A budget of boxes and points visited; where it is spent, the rest is below zero, and the edges are not complete.
    """
    points, n = tree.points, len(tree.points)
    edges, lengths, n_edges = np.empty((2 * n + 16, 2), np.int32), np.empty(2 * n + 16), 0
    stack, marks, nobody = new_stack(tree), np.zeros(n, np.int32), np.empty(0, np.int32)
    found, squares, ahead = np.empty(64, np.int32), np.empty(64), np.empty((64, 3))
    for u in range(n):
        count, around, stack[0], top = 0, _leaf_of(tree, u), _leaf_of(tree, u), 1
        while budget >= 0:
            if top == 0:
                around, top = _climb(tree, around, u, np.inf, stack)
                if top == 0:
                    break
            top -= 1
            k = wide(stack[top])
            budget -= 1 + count // TRIED_PER_VISIT
            if _is_refuted(tree, k, u, squares[:count], ahead):
                continue
            if 2 * k + 2 < len(tree.boxes):
                top = _push_children(tree, k, u, stack, top)
                continue
            for v in range(wide(tree.begin[k]), wide(tree.end[k])):
                given = square(tree, u, v)
                budget -= 1 + count // (TRIED_PER_VISIT if given > LEAST_SQUARE else 1)
                if v == u or _refutes_some(tree, u, v, given, found[:count], squares):
                    continue
                if count == len(found):
                    found, squares, ahead = _longer(found), _longer(squares), _more_rows(ahead)
                found[count], squares[count] = v, given
                for t in range(len(tree.axes)):
                    ahead[count, t] = points[v, t] - points[u, t]
                count += 1
        if budget < 0:
            break
        begin = n_edges
        for k in range(count):
            v = wide(found[k])
            given = squares[k]
            budget -= count // (TRIED_PER_VISIT if given > LEAST_SQUARE else 1)
            if v < u or budget < 0 or _refutes_some(tree, u, v, given, found[:count], squares):
                continue
            length = pair_distance(points, u, v)
            other, visits = point_of_lune(tree, u, v, length, marks, nobody, wide(0), stack)
            budget -= visits
            if other >= 0:
                continue
            if n_edges == len(edges):
                edges, lengths = _more_rows(edges), _longer(lengths)
            place = n_edges
            while place > begin and edges[place - 1, 1] > v:
                edges[place, 1], lengths[place] = edges[place - 1, 1], lengths[place - 1]
                place -= 1
            edges[place, 1], lengths[place] = v, length
            edges[n_edges, 0] = u
            n_edges += 1
    return edges[:n_edges].copy(), lengths[:n_edges].copy(), budget


@compiled
def _is_refuted(tree: BoxTree, k: int, u: int, squares: Vector, ahead: Matrix) -> bool:
    """Return whether one of some points certainly refutes all edges from u into a box."""
    near = _least_square(tree, k, u)
    if near < LEAST_SQUARE:
        return False
    points, d = tree.points, len(tree.axes)
    margin = TIE * _greatest_square(tree, k, u)
    for w in range(len(squares)):
        if squares[w] < near * (1 - TIE):
            least = -squares[w] / 2
            for t in range(d):
                least += min(
                    ahead[w, t] * (tree.boxes[k, t] - points[u, t]), ahead[w, t] * (tree.boxes[k, d + t] - points[u, t])
                )
            if least > margin:
                return True
    return False


@compiled
def _refutes_some(tree: BoxTree, u: int, v: int, given: float, some: Labels, squares: Vector) -> bool:
    """Return whether one of some points refutes an edge; squares are of distances from u, `given` is the edge's."""
    above, below, length = max(given * (1 + TIE), LEAST_SQUARE), given * (1 - TIE), -1.0
    for k in range(len(some)):
        w = wide(some[k])
        if squares[k] > above or w == v:
            continue
        from_v = square(tree, v, w)
        if from_v > above:
            continue
        if given > LEAST_SQUARE and squares[k] < below and from_v < below:
            return True
        if length < 0:
            length = pair_distance(tree.points, u, v)
        low, high = min(u, v), max(u, v)
        if comes_before(tree, u, w, length, low, high) and comes_before(tree, v, w, length, low, high):
            return True
    return False


@compiled
def _longer(array: Any) -> Any:
    longer = np.empty(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _more_rows(array: Any) -> Any:
    longer = np.empty((2 * len(array), array.shape[1]), array.dtype)
    longer[: len(array)] = array
    return longer
