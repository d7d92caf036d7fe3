"""Boruvka's rounds on the components of a bipartite forest: each but the largest picks its heaviest leaving edge.

Cost: a round reads the rows and columns of the vertices outside the largest component, at most one pass; the number of
components outside at least halves.
Source: Boruvka 1926.
"""

from typing import Any, NamedTuple

import numpy as np

from toposcope.kernels.bipartite_filter import RUN, Index, row_of, scratch_for
from toposcope.kernels.compiled import compiled, wide
from toposcope.kernels.magnitudes import Entries, Keys
from toposcope.kernels.union_find import Parents, find, join

MIN_COLUMNS_PER_LOOKUP = 16
"""Columns outside are looked up one by one where there is at most one of them to so many columns."""


class Components(NamedTuple):
    """The trees of a forest, numbered.

    Attributes
    ----------
    rows, columns : ndarray, shapes (m,) and (n,)
        The number of every vertex's component; the largest has number 0.
    outside : ndarray
        Columns of other components.
    n_trees : int
    """

    rows: Index
    columns: Index
    outside: Index
    n_trees: int


class Choices(NamedTuple):
    """The heaviest leaving edge of every component, by number; the largest has none.

    Attributes
    ----------
    keys : ndarray
        -1 if there is none.
    rows, columns : ndarray
    """

    keys: Keys
    rows: Index
    columns: Index


@compiled
def components(parent: Parents, m: int) -> Components:
    """Give every component of a forest a number."""
    size = np.zeros_like(parent)
    for vertex in range(len(parent)):
        size[find(parent, vertex)] += 1
    largest = np.argmax(size)
    number = size
    number[largest] = 0
    count = 1
    for vertex in range(len(parent)):
        if parent[vertex] == vertex and vertex != largest:
            number[vertex] = count
            count += 1
    for vertex in range(len(parent)):
        number[vertex] = number[find(parent, vertex)]
    outside, n_outside = np.empty(len(number) - m, np.int64), 0
    for j in range(len(outside)):
        outside[n_outside] = j
        n_outside += number[m + j] != 0
    return Components(number[:m], number[m:], outside[:n_outside], count)


@compiled
def choose(matrix: Entries, forest: Components, begin: int, end: int) -> Choices:
    """Let every component outside the largest choose among the entries of some rows."""
    buffer, mask = matrix.buffer, matrix.mask
    none = np.full(forest.n_trees, -1)
    choices = Choices(none.astype(buffer.dtype), none.astype(forest.rows.dtype), none.astype(forest.rows.dtype))
    # What an entry of a column must exceed to be of use to the column's component: no key exceeds the mask.
    needed = np.full(matrix.n, mask)
    needed[forest.outside] = -1
    few = len(forest.outside) * MIN_COLUMNS_PER_LOOKUP < matrix.n
    scratch = scratch_for(matrix)
    # Backwards: the last rows that were read are still in the cache.
    for i in range(end - 1, begin - 1, -1):
        own = forest.rows[i]
        if few:
            for j in forest.outside:
                key = buffer[matrix.starts[i] + j * matrix.step] & mask
                if key > needed[j] and forest.columns[j] != own:
                    needed[j] = _offer(choices, forest.columns[j], key, i, j)
            if own != 0:
                row = row_of(matrix, i, wide(1), scratch)
                key, j = _heaviest_leaving(row, mask, forest.columns, own, choices.keys[own])
                if j >= 0:
                    _offer(choices, own, key, i, j)
            continue
        own_needed = choices.keys[own] if own != 0 else mask
        row = row_of(matrix, i, wide(1), scratch)
        for c in range(0, matrix.n, RUN):
            run, numbers, needs = row[c : c + RUN], forest.columns[c : c + RUN], needed[c : c + RUN]
            hit = False
            for j in range(len(run)):
                key = run[j] & mask
                hit |= (numbers[j] != own) & ((key > needs[j]) | (key > own_needed))
            if not hit:
                continue
            for j in range(len(run)):
                key = run[j] & mask
                if numbers[j] == own:
                    continue
                if key > own_needed:
                    own_needed = _offer(choices, own, key, i, c + j)
                if key > needs[j]:
                    needs[j] = _offer(choices, numbers[j], key, i, c + j)
    return choices


@compiled
def _heaviest_leaving(row: Keys, mask: Any, numbers: Index, own: Any, least: Any) -> tuple[Any, int]:
    """Return the heaviest key of a row in a column of another component, and which; -1 if none is above `least`."""
    heaviest = least
    for j in range(len(row)):
        key = row[j] & mask
        heaviest = max(heaviest, key if numbers[j] != own else least)
    if heaviest > least:
        for j in range(len(row)):
            if row[j] & mask == heaviest and numbers[j] != own:
                return heaviest, j
    return least, -1


@compiled
def join_choices(choices: Choices, m: int, parent: Parents, tree: Keys, n_edges: int) -> int:
    """Join every component along its choice; return how many edges `tree` holds."""
    for component in range(len(choices.keys)):
        key = choices.keys[component]
        row, column = wide(choices.rows[component]), wide(choices.columns[component])
        if key >= 0 and join(parent, row, m + column):
            tree[n_edges] = key
            n_edges += 1
    return n_edges


@compiled
def _offer(choices: Choices, component: int, key: Any, i: int, j: int) -> Any:
    """Offer an edge to a component; returns what a later one must exceed to be better."""
    if key > choices.keys[component]:
        choices.keys[component] = key
        choices.rows[component] = i
        choices.columns[component] = j
    return choices.keys[component]
