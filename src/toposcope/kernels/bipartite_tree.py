"""Maximum spanning tree of the complete bipartite graph of a dense matrix, in little more than one pass over it.

Kruskal's algorithm on the few entries that matter, Boruvka's for what these leave unjoined:

1. A sample gives a threshold that about 3 (m + n) entries exceed, and one pass collects these.
2. Sorted, they join nearly all vertices in one giant component. Where the threshold is the value of very many entries
   (quantised weights), these are streamed in next, in any order.
3. The components left outside (dead rows, rows on a small scale) each choose their heaviest leaving entry by reading
   their own rows and columns alone, in rounds; the giant never chooses.

Equal weights can close a cycle among the picks of a round, and union-find refuses one of them: what is left of the
picks still lies in a maximum spanning tree, since every edge of such a cycle is as heavy as any that leaves the
component that chose it.

Cost: O(mn) for weights of one scale, at worst O(mn log(m + n)); O(m + n) memory beside the matrix, which is read in
place. A small matrix takes Prim's algorithm.
Source: Kruskal 1956, Boruvka 1926, Prim 1957; the filtration is that of Rieck et al. 2019, arXiv:1812.09764, section 3.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

from toposcope.kernels.bipartite_filter import SURVIVORS_PER_VERTEX, Heavy, heavy_entries
from toposcope.kernels.bipartite_kruskal import join_heavy
from toposcope.kernels.bipartite_prim import prim_keys
from toposcope.kernels.bipartite_rounds import Choices, choose, components, join_choices
from toposcope.kernels.compiled import compiled, wide
from toposcope.kernels.magnitudes import Entries, Keys, Magnitudes
from toposcope.kernels.union_find import Parents

MAX_PRIM_VERTICES = 600
"""Up to so many vertices, Prim's algorithm is as fast."""

MIN_ENTRIES_PER_THREAD = 1 << 18
"""Fewer entries than this are not worth another thread."""

MIN_ENTRIES_BY_STEP = 1 << 22
"""From so many on, each step is a call of its own: what is compiled into another function runs slower from the disk."""

Block = tuple[int, int]
Result = TypeVar("Result")


def bipartite_tree_keys(matrix: Magnitudes, n_threads: int = 1) -> Keys:
    """Return the weights of the maximum spanning tree as keys, descending; shape (m + n - 1,).

    Parameters
    ----------
    matrix : Magnitudes, shape (m, n)
    n_threads : int
        The keys do not depend on it.
    """
    m, n = matrix.shape
    if is_small(m, n):
        return np.sort(prim_keys(matrix.entries))[::-1]
    parent: Parents = np.arange(m + n, dtype=np.uint32 if m * n < 1 << 32 else np.int64)
    tree = np.empty(m + n - 1, matrix.entries.buffer.dtype)
    n_threads = max(1, min(n_threads, m, m * n // MIN_ENTRIES_PER_THREAD))
    # Few entries for each vertex: no threshold would leave many of them out.
    filtered = 2 * SURVIVORS_PER_VERTEX * (m + n) < m * n
    if m * n < MIN_ENTRIES_BY_STEP and n_threads == 1:
        n_heavy = _grow(matrix.entries, filtered, parent, tree)
    else:
        n_heavy = _grow_by_step(matrix.entries, filtered, parent, tree, n_threads)
    # The heavy ones were added in order, and no other is heavier.
    tree[n_heavy:] = np.sort(tree[n_heavy:])[::-1]
    return tree


def is_small(m: int, n: int) -> bool:
    """Return whether a matrix takes Prim's algorithm."""
    return m + n <= MAX_PRIM_VERTICES


@compiled
def _grow(matrix: Entries, filtered: bool, parent: Parents, tree: Keys) -> int:
    """Fill the tree, in one call: several matrices can be measured in as many threads; return how many are heavy."""
    m, n_edges = len(matrix.starts), 0
    if filtered:
        n_edges = join_heavy(matrix, heavy_entries(matrix, parent, wide(0), m), parent, tree)
    n_heavy = n_edges
    while n_edges < len(tree):
        n_edges = join_choices(choose(matrix, components(parent, m), wide(0), m), m, parent, tree, n_edges)
    return n_heavy


def _grow_by_step(matrix: Entries, filtered: bool, parent: Parents, tree: Keys, n_threads: int) -> int:
    """Do the same step by step, with the rows shared out among threads where they are read."""
    m, n_edges = len(matrix.starts), 0
    blocks = [(m * k // n_threads, m * (k + 1) // n_threads) for k in range(n_threads)]
    with ThreadPoolExecutor(max(n_threads - 1, 1)) as pool:
        if filtered:
            parts = _shared(pool, partial(heavy_entries, matrix, parent), blocks)
            n_edges = join_heavy(matrix, _united(parts), parent, tree)
        n_heavy = n_edges
        while n_edges < len(tree):
            choices = _shared(pool, partial(choose, matrix, components(parent, m)), blocks)
            n_edges = join_choices(_heaviest(choices), m, parent, tree, n_edges)
    return n_heavy


def _shared(pool: ThreadPoolExecutor, work: Callable[[int, int], Result], blocks: Sequence[Block]) -> list[Result]:
    """Work on all blocks at once, on the first in the calling thread, which would only wait."""
    others = [pool.submit(work, *block) for block in blocks[1:]]
    return [work(*blocks[0]), *(other.result() for other in others)]


def _united(parts: Sequence[Heavy]) -> Heavy:
    """Return what is heavy in all parts, above the highest of their thresholds."""
    top = max(parts, key=lambda part: part.threshold)
    keys = np.concatenate([part.keys for part in parts])
    positions = np.concatenate([part.positions for part in parts])
    above = keys > top.threshold
    return Heavy(keys[above], positions[above], keys.dtype.type(top.threshold), top.tied)


def _heaviest(parts: Sequence[Choices]) -> Choices:
    """Return the heaviest of the choices of every component."""
    best, numbers = np.argmax([part.keys for part in parts], axis=0), np.arange(len(parts[0].keys))
    return Choices(*(np.stack(field)[best, numbers] for field in zip(*parts, strict=True)))
