"""The heavy entries of a matrix, above a threshold that a sample suggests, and Kruskal's algorithm on them.

Cost: one pass that compares runs of entries with a threshold, O(k) for the k entries above it; where very many entries
equal the threshold, at most one pass more.
Source: Kruskal 1956; the sort is by digits, least significant first (Knuth 1998, The Art of Computer Programming 3,
5.2.5).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, inlined, wide
from toposcope.kernels.magnitudes import Entries, Keys
from toposcope.kernels.sets import ONE, WORD, ZERO, Parents, bits_above, find, join, lowest_bit
from toposcope.kernels.tuning import (
    KEY_RUN,
    MAX_SHORT_SORT,
    N_SAMPLED_ABOVE,
    N_SAMPLED_TOGETHER,
    N_WORDS,
    SURVIVORS_PER_VERTEX,
)

Index = NDArray[np.integer[Any]]


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
    together = min(N_SAMPLED_TOGETHER, n)
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
def join_heavy(matrix: Entries, heavy: Heavy, parent: Parents, tree: Keys) -> int:
    """Join along all entries above a threshold, and along those equal to it where they are very many.

    Returns how many edges `tree` holds.
    """
    m, divisor = len(matrix.starts), heavy.positions.dtype.type(matrix.n)  # 32 bits divide sooner than 64
    keys, positions = descending(heavy.keys, heavy.positions)
    n_edges = 0
    for k in range(len(keys)):
        i: Any = np.int64(positions[k] // divisor)
        if join(parent, i, m + np.int64(positions[k]) - i * matrix.n):
            tree[n_edges] = keys[k]
            n_edges += 1
            if n_edges == len(tree):
                return n_edges
    if heavy.tied:
        n_edges += _join_equal(matrix, heavy.threshold, parent, tree[n_edges:])
    return n_edges


@compiled
def _join_equal(matrix: Entries, value: Any, parent: Parents, tree: Keys) -> int:
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
                    tree[n_edges] = value
                    n_edges += 1
                    n_column_trees -= holds_column[root]
                    root = find(parent, root)
                    holds_column[root] = True
                labels[j] = root
    return n_edges
