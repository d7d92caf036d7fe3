"""Maximum spanning tree of the complete bipartite graph of a dense matrix, in little more than one pass over it.

1. A sample gives a threshold that about 3 (m + n) entries exceed, and one pass collects these.
2. Kruskal's algorithm on them joins nearly all vertices in one giant component; their sort is by digits, least
   significant first (Knuth 1998, The Art of Computer Programming 3, 5.2.5). Where very many entries equal the
   threshold (quantised weights), these are streamed in next, in any order, with at most one pass more.
3. The components left outside (dead rows, rows on a small scale) each choose their heaviest leaving entry by reading
   their own rows and columns alone, in Boruvka's rounds, the small first; the giant never chooses.

Equal weights can close a cycle among the picks of a round, and union-find refuses one of them: every edge of such a
cycle is as heavy as any that leaves the component that chose it, so the rest still lies in a maximum spanning tree.

Cost: O(mn) for weights of one scale, at worst O(mn log(m + n)); O(m + n) memory. A small matrix takes Prim's algorithm.
Source: Kruskal 1956, Boruvka 1926, Prim 1957; the filtration is that of Rieck et al. 2019, arXiv:1812.09764, section 3.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.bipartite_prim import prim_entries, prim_keys
from toposcope.kernels.compiled import compiled, inlined, wide
from toposcope.kernels.magnitudes import Entries, Keys, Magnitudes
from toposcope.kernels.sets import ONE, WORD, ZERO, Parents, bits_above, find, join, lowest_bit
from toposcope.typing import Indices

# Chosen on two cores (benchmarks/neural_persistence.py); no result depends on them.
SURVIVORS_PER_VERTEX = 3.0  # entries to collect: 6 incident to each, so that about e^-6 of them stay unjoined
N_SAMPLED_ABOVE = 32  # entries of the sample above the threshold; as many below show whether they equal it
N_SAMPLED_NEIGHBOURS = 32  # at each position
KEY_RUN = 256  # entries of a row that are compared together where rows are read again: few hold one that matters
N_WORDS = 64  # words of comparisons that are made before the entries above are taken out of them
MAX_SHORT_SORT = 1 << 12  # up to so many are sorted by digits of 8 bits, more by 12, whose counts take more room
MIN_COLUMNS_PER_LOOKUP = 16  # columns outside are looked up one by one where there is at most one to so many columns
MAX_SMALL = 16  # components of at most so many vertices choose first, where few of the vertices outside are in them
MAX_PRIM_VERTICES = 600  # up to so many vertices, Prim's algorithm is as fast
MIN_ENTRIES_PER_THREAD = 1 << 18  # fewer entries than this are not worth another thread
# from so many on, each step is a call of its own: what is compiled into another function runs slower from the disk
MIN_ENTRIES_BY_STEP = 1 << 22

Index = NDArray[np.integer[Any]]
Block = tuple[int, int]
Result = TypeVar("Result")


class Heavy(NamedTuple):
    """The entries above a threshold."""

    keys: Keys  # shape (k,)
    positions: Index  # shape (k,); row-major
    threshold: Any
    tied: bool  # whether the threshold is the value of more than m + n entries, by the sample


@compiled
def heavy_entries(matrix: Entries, index: Index, begin: int, end: int) -> Heavy:
    """Collect the heavy entries of some rows, in no order.

    The threshold is the same for all rows of a matrix, raised where a block of rows has too many above it.
    """
    m = len(matrix.starts)
    top = _heaviest_of_sample(matrix)
    threshold = top[N_SAMPLED_ABOVE]
    capacity = int(1.6 * SURVIVORS_PER_VERTEX * (m + matrix.n)) * (end - begin) // m
    keys = np.empty(capacity + WORD * N_WORDS, matrix.buffer.dtype)
    positions = np.empty(capacity + WORD * N_WORDS, index.dtype)
    words, places = np.empty(N_WORDS, np.uint64), np.empty(N_WORDS, np.int64)
    n_found = 0
    # One long row, where that is possible: narrow matrices would be read in short runs.
    height = end - begin if matrix.contiguous else 1
    scratch = scratch_for(matrix)
    for i in range(begin, end, height):
        row = row_of(matrix, i, height, scratch)
        for begin_run in range(0, len(row), WORD * N_WORDS):
            n_words = 0
            for c in range(begin_run, min(begin_run + WORD * N_WORDS, len(row)), WORD):
                # Kept if it counts: a branch would be mispredicted half the time.
                words[n_words] = _word_above(row, c, matrix.mask, threshold)
                places[n_words] = c
                n_words += words[n_words] != ZERO
            for k in range(n_words):
                word = words[k]
                while word != ZERO:
                    place = places[k] + lowest_bit(word)
                    keys[n_found] = row[place] & matrix.mask
                    positions[n_found] = i * matrix.n + place
                    n_found += 1
                    word &= word - ONE
            if n_found > capacity:
                threshold, n_found = _thinned(keys[:n_found], positions[:n_found], capacity // 2)
    n_equal = 0
    for key in top:
        n_equal += key == threshold
    tied = bool(n_equal * SURVIVORS_PER_VERTEX > N_SAMPLED_ABOVE)
    return Heavy(keys[:n_found], positions[:n_found], threshold, tied)


@inlined
def _word_above(row: Keys, c: int, mask: Any, threshold: Any) -> Any:
    """Return what `bits_above` does; fewer entries than a word has may be left."""
    if c + WORD <= len(row):
        return bits_above(row, c, mask, threshold)
    word = ZERO
    for j in range(c, len(row)):
        if row[j] & mask > threshold:
            word |= ONE << np.uint64(j - c)
    return word


@compiled
def _thinned(keys: Keys, positions: Index, count: int) -> tuple[Any, int]:
    """Keep about the `count` heaviest, from the beginning on; return the threshold they exceed, and their number."""
    ordered, places = descending(keys.copy(), positions.copy())
    threshold, kept = ordered[count], 0
    while ordered[kept] > threshold:
        keys[kept], positions[kept] = ordered[kept], places[kept]
        kept += 1
    return threshold, kept


@compiled
def descending(keys: Keys, positions: Index) -> tuple[Keys, Index]:
    """Sort by key, from the heaviest, on the bits in which keys differ; both arrays are overwritten."""
    differing = np.uint64(0)
    for key in keys:
        differing |= np.uint64(key ^ keys[0])
    spare, spare_positions = np.empty_like(keys), np.empty_like(positions)
    bits = 8 if len(keys) <= MAX_SHORT_SORT else 12
    at = np.empty((1 << bits) + 1, positions.dtype)
    last = np.uint64((1 << bits) - 1)
    shift = np.uint64(0)
    while shift < 64 and differing >> shift != 0:
        at[:] = 0
        for key in keys:
            at[last - (np.uint64(key) >> shift & last) + np.uint64(1)] += 1
        for digit in range(len(at) - 1):
            at[digit + 1] += at[digit]
        for k in range(len(keys)):
            own = last - (np.uint64(keys[k]) >> shift & last)
            spare[at[own]], spare_positions[at[own]] = keys[k], positions[k]
            at[own] += 1
        keys, spare = spare, keys
        positions, spare_positions = spare_positions, positions
        shift += np.uint64(bits)
    return keys, positions


@compiled
def row_of(matrix: Entries, i: int, height: int, scratch: Keys) -> Keys:
    """Return a row as neighbours in memory, gathered into `scratch` where it is not so stored.

    Of a contiguous matrix, return several rows, one after the other.
    """
    start = matrix.starts[i]
    if matrix.step == 1:
        return matrix.buffer[start : start + height * matrix.n]
    for j in range(matrix.n):
        scratch[j] = matrix.buffer[start + j * matrix.step]
    return scratch


@compiled
def scratch_for(matrix: Entries) -> Keys:
    """Return room for a row where it must be gathered."""
    return np.empty(matrix.n if matrix.step != 1 else 0, matrix.buffer.dtype)


@compiled
def _heaviest_of_sample(matrix: Entries) -> Keys:
    """Return the largest keys among entries at random positions, descending, the same at every call."""
    sample = _sample(matrix)
    top = np.zeros(2 * N_SAMPLED_ABOVE, matrix.buffer.dtype)
    for c in range(0, len(sample), WORD):
        word = bits_above(sample, c, matrix.mask, top[-1])
        while word != 0:
            key = sample[c + lowest_bit(word)]
            word &= word - ONE
            if key > top[-1]:
                place = len(top) - 1
                while place > 0 and top[place - 1] < key:
                    top[place] = top[place - 1]
                    place -= 1
                top[place] = key
    return top


@compiled
def _sample(matrix: Entries) -> Keys:
    """Return the keys at random positions, one in each of many equal stretches, filled up with zeros to whole words.

    It is the way to an entry that costs: neighbours are taken together, the stretches in the order of the memory, and
    all are fetched before any is looked at. The generator is Knuth's linear congruential one (MMIX); its high bits
    choose.
    """
    m, n = len(matrix.starts), matrix.n
    together = min(N_SAMPLED_NEIGHBOURS, n)
    width = n - together + 1
    n_places = max(1, int(N_SAMPLED_ABOVE * m * n / (SURVIVORS_PER_VERTEX * (m + n) * together)))
    stretch = m * width // n_places
    sample = np.zeros((n_places * together + WORD - 1) // WORD * WORD, matrix.buffer.dtype)
    firsts = np.empty(n_places, np.int64)
    state = np.uint64(1)
    for place in range(n_places):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        position = place * m * width // n_places + (np.int64(state >> np.uint64(33)) * stretch >> 31)
        firsts[place] = matrix.starts[position // width] + position % width * matrix.step
        sample[place] = matrix.buffer[firsts[place]]
    for place in range(n_places):
        for k in range(together):
            sample[place * together + k] = matrix.buffer[firsts[place] + k * matrix.step] & matrix.mask
    return sample


@compiled
def join_heavy(matrix: Entries, heavy: Heavy, parent: Parents, tree: Keys, places: Indices) -> int:
    """Join along all entries above a threshold, and along those equal to it where they are very many.

    Returns how many edges the tree holds.
    """
    m, divisor = len(matrix.starts), heavy.positions.dtype.type(matrix.n)  # 32 bits divide sooner than 64
    keys, positions = descending(heavy.keys, heavy.positions)
    n_edges = 0
    for k in range(len(keys)):
        i: Any = np.int64(positions[k] // divisor)
        if join(parent, i, m + np.int64(positions[k]) - i * matrix.n):
            tree[n_edges], places[n_edges] = keys[k], positions[k]
            n_edges += 1
            if n_edges == len(tree):
                return n_edges
    if heavy.tied:
        n_edges += _join_equal(matrix, heavy.threshold, parent, tree[n_edges:], places[n_edges:])
    return n_edges


@compiled
def _join_equal(matrix: Entries, value: Any, parent: Parents, tree: Keys, places: Indices) -> int:
    """Join along all entries of one value, in the order they are stored; all heavier ones must be joined already.

    A row is left as soon as it and all columns are in one component.
    """
    m, n, mask, n_edges = len(matrix.starts), matrix.n, matrix.mask, 0
    scratch = scratch_for(matrix)
    holds_column = np.zeros(m + n, np.bool_)
    # The root of every column when last looked up: with it, most entries that join nothing need no search.
    label = np.empty(n, parent.dtype)
    n_column_trees = 0
    for j in range(n):
        label[j] = find(parent, m + j)
        n_column_trees += not holds_column[label[j]]
        holds_column[label[j]] = True
    for i in range(m):
        row = row_of(matrix, i, wide(1), scratch)
        root = find(parent, i)
        for c in range(0, n, KEY_RUN):
            if n_column_trees == 1 and holds_column[root]:
                break
            run, labels = row[c : c + KEY_RUN], label[c : c + KEY_RUN]
            hit = False
            for j in range(len(run)):
                hit |= ((run[j] & mask) == value) & (labels[j] != root)
            if not hit:
                continue
            for j in range(len(run)):
                if (run[j] & mask) != value or labels[j] == root:
                    continue
                if join(parent, root, m + c + j):
                    tree[n_edges], places[n_edges] = value, i * n + c + j
                    n_edges += 1
                    n_column_trees -= holds_column[root]
                    root = find(parent, root)
                    holds_column[root] = True
                labels[j] = root
    return n_edges


class Components(NamedTuple):
    """The trees of a forest, numbered."""

    rows: Index  # the number of every vertex's component; the largest has number 0
    columns: Index  # the number of every vertex's component; the largest has number 0
    outside: Index  # columns of the components that choose
    n_trees: int
    chooses: NDArray[np.bool_]  # by number; small ones alone where they are few, else all but the largest


class Choices(NamedTuple):
    """The heaviest leaving edge of every component, by number; the largest has none."""

    keys: Keys  # -1 if there is none
    rows: Index
    columns: Index


@compiled
def components(parent: Parents, m: int) -> Components:
    """Give every component of a forest a number."""
    size = np.zeros_like(parent)
    for vertex in range(len(parent)):
        size[find(parent, vertex)] += 1
    largest = np.argmax(size)
    n_small, count = 0, 1
    number, chooses = np.zeros_like(parent), np.zeros(len(parent), np.bool_)
    for vertex in range(len(parent)):
        if parent[vertex] == vertex and vertex != largest:
            number[vertex], chooses[count] = count, size[vertex] <= MAX_SMALL
            n_small += np.int64(size[vertex]) * chooses[count]
            count += 1
    all_choose = n_small == 0 or n_small * MIN_COLUMNS_PER_LOOKUP > len(parent) - np.int64(size[largest])
    outside, n_outside = np.empty(len(number) - m, np.int64), 0
    for vertex in range(len(parent)):
        number[vertex] = number[find(parent, vertex)]
        chooses[number[vertex]] |= all_choose and number[vertex] != 0
        if vertex >= m:
            outside[n_outside] = vertex - m
            n_outside += chooses[number[vertex]]
    return Components(number[:m], number[m:], outside[:n_outside], count, chooses[:count])


@compiled
def choose(matrix: Entries, forest: Components, begin: int, end: int) -> Choices:
    """Let the components that choose do so among the entries of some rows."""
    buffer, mask, columns, inside = matrix.buffer, matrix.mask, forest.columns, wide(0)
    none = np.full(forest.n_trees, -1)
    choices = Choices(none.astype(buffer.dtype), none.astype(forest.rows.dtype), none.astype(forest.rows.dtype))
    while forest.rows[inside] != 0:  # the largest has a row. Of equal keys that to it is taken: fewest remain
        inside += 1
    heaviest, places = np.full(matrix.n, mask), np.empty_like(columns)
    for j in forest.outside:
        heaviest[j], places[j] = buffer[matrix.starts[inside] + j * matrix.step] & mask, inside
    few, scratch = len(forest.outside) * MIN_COLUMNS_PER_LOOKUP < matrix.n, scratch_for(matrix)
    for k in range(begin, end):
        # Backwards where little is read: the last rows are still in the cache. Forwards is quicker where all is.
        i = begin + end - 1 - k if few and forest.n_trees * MIN_COLUMNS_PER_LOOKUP < end - begin else k
        own = forest.rows[i]
        if few and not forest.chooses[own]:
            for j in forest.outside:
                key = buffer[matrix.starts[i] + j * matrix.step] & mask
                if key > heaviest[j] and columns[j] != own:
                    heaviest[j], places[j] = key, i
            continue
        needed = choices.keys[own] if forest.chooses[own] else mask
        key, j = _heaviest_leaving(row_of(matrix, i, wide(1), scratch), mask, columns, own, needed, heaviest, places, i)
        if j >= 0:
            _offer(choices, wide(own), wide(key), i, j)
    for j in forest.outside:
        _offer(choices, wide(columns[j]), wide(heaviest[j]), wide(places[j]), j)
    return choices


@compiled
def _heaviest_leaving(
    row: Keys, mask: Any, numbers: Index, own: Any, least: Any, heaviest: Keys, places: Index, i: int
) -> tuple[Any, int]:
    """Return a row's heaviest leaving key, and its column, -1 if none is above `least`; note each column's heaviest."""
    nothing, place = heaviest.dtype.type(-1), places.dtype.type(i)
    top, begin, most = least, -1, nothing
    for j in range(len(row)):  # this brings the row into the cache, at the speed of the memory
        most = max(most, row[j] & mask)
    for c in range(0, len(row), KEY_RUN):
        run, others, tops = row[c : c + KEY_RUN], numbers[c : c + KEY_RUN], heaviest[c : c + KEY_RUN]
        before, hits, at = top, 0, places[c : c + KEY_RUN]
        for j in range(len(run)):
            key = run[j] & mask if others[j] != own else nothing
            hits += key > tops[j]
            top = max(top, key)
        if hits:
            for j in range(len(run)):
                key = run[j] & mask if others[j] != own else nothing
                at[j] = place if key > tops[j] else at[j]
                tops[j] = max(tops[j], key)
        begin = c if top > before else begin
    if begin >= 0 and most != nothing:
        for j in range(begin, len(row)):
            if row[j] & mask == top and numbers[j] != own:
                return top, j
    return least, -1


@compiled
def join_choices(choices: Choices, m: int, parent: Parents, tree: Keys, places: Indices, n_edges: int) -> int:
    """Join every component along its choice; return how many edges the tree holds."""
    n = len(parent) - m
    for component in range(len(choices.keys)):
        key, i, j = choices.keys[component], wide(choices.rows[component]), wide(choices.columns[component])
        if key >= 0 and join(parent, i, m + j):
            tree[n_edges], places[n_edges] = key, i * n + j
            n_edges += 1
    return n_edges


@compiled
def _offer(choices: Choices, component: int, key: Any, i: int, j: int) -> None:
    """Offer an edge to a component."""
    if key > choices.keys[component]:
        choices.keys[component], choices.rows[component], choices.columns[component] = key, i, j


def bipartite_tree_keys(matrix: Magnitudes, n_threads: int = 1) -> Keys:
    """Return the weights of the maximum spanning tree as keys, descending; shape (m + n - 1,)."""
    if is_small(*matrix.shape):
        return np.sort(prim_keys(matrix.entries))[::-1]
    tree, _, n_heavy = _spanning_tree(matrix, n_threads)
    # The heavy ones were added in order, and no other is heavier.
    tree[n_heavy:] = np.sort(tree[n_heavy:])[::-1]
    return tree


def bipartite_tree_entries(matrix: Magnitudes) -> NDArray[np.int64]:
    """Return row and column of the entries of the tree, in the same order; shape (m + n - 1, 2)."""
    entries: NDArray[np.int64]
    if is_small(*matrix.shape):
        entries = prim_entries(matrix.entries, len(matrix.entries.starts))[0]
    else:
        tree, places, _ = _spanning_tree(matrix, 1)
        positions = places[np.argsort(-tree, kind="stable")]
        entries = np.stack([positions // matrix.entries.n, positions % matrix.entries.n], axis=1)
    return entries


def _spanning_tree(matrix: Magnitudes, n_threads: int) -> tuple[Keys, Indices, int]:
    """Return the keys of the tree and their row-major positions, and how many of the first are in order."""
    m, n = matrix.shape
    parent: Parents = np.arange(m + n, dtype=np.uint32 if m * n < 1 << 32 else np.int64)
    tree, places = np.empty(m + n - 1, matrix.entries.buffer.dtype), np.empty(m + n - 1, np.int64)
    n_threads = max(1, min(n_threads, m, m * n // MIN_ENTRIES_PER_THREAD))
    # Few entries for each vertex: no threshold would leave many of them out.
    filtered = 2 * SURVIVORS_PER_VERTEX * (m + n) < m * n
    if m * n < MIN_ENTRIES_BY_STEP and n_threads == 1:
        n_heavy = _grow(matrix.entries, filtered, parent, tree, places)
    else:
        n_heavy = _grow_by_step(matrix.entries, filtered, parent, tree, places, n_threads)
    return tree, places, n_heavy


def is_small(m: int, n: int) -> bool:
    """Return whether a matrix takes Prim's algorithm."""
    return m + n <= MAX_PRIM_VERTICES


@compiled
def _grow(matrix: Entries, filtered: bool, parent: Parents, tree: Keys, places: Indices) -> int:
    """Fill the tree, in one call: several matrices can be measured in as many threads; return how many are heavy."""
    m, n_edges = len(matrix.starts), 0
    if filtered:
        n_edges = join_heavy(matrix, heavy_entries(matrix, parent, wide(0), m), parent, tree, places)
    n_heavy = n_edges
    while n_edges < len(tree):
        choices = choose(matrix, components(parent, m), wide(0), m)
        n_edges = join_choices(choices, m, parent, tree, places, n_edges)
    return n_heavy


def _grow_by_step(matrix: Entries, filtered: bool, parent: Parents, tree: Keys, places: Indices, n_threads: int) -> int:
    """Do the same step by step, with the rows shared out among threads where they are read."""
    m, n_edges = len(matrix.starts), 0
    blocks = [(m * k // n_threads, m * (k + 1) // n_threads) for k in range(n_threads)]
    with ThreadPoolExecutor(max(n_threads - 1, 1)) as pool:
        if filtered:
            parts = _shared(pool, partial(heavy_entries, matrix, parent), blocks)
            n_edges = join_heavy(matrix, _united(parts), parent, tree, places)
        n_heavy = n_edges
        while n_edges < len(tree):
            choices = _heaviest(_shared(pool, partial(choose, matrix, components(parent, m)), blocks))
            n_edges = join_choices(choices, m, parent, tree, places, n_edges)
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
