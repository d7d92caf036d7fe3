"""The edges of a cloud in order of length, some at a time, and whether any that has not entered can open a loop.

Lengths are handled as the whole numbers that their bits are, which are in the same order (-0 is below all). A pass over
the matrix counts the edges by the leading bits of their lengths, in *buckets*; another writes those of some buckets,
each as 22 further bits of its length and both its ends. A bucket is sorted by these bits when it is reached; where they
are equal, the lengths themselves decide, and then the place in the matrix, row by row.

Cost: a pass for the survey, one for the counts, and one for every part that is written; 8 bytes for each edge in it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled, compiled_within, inlined, wide
from toposcope.kernels.sets import ONE, ZERO, Words, lowest_bit
from toposcope.typing import Indices

# Chosen on two cores (benchmarks/loops.py); no result depends on them.
EDGES_PER_BUCKET, MAX_BUCKETS = 512, 4096
MAX_INSERTED = 32  # up to so many edges are sorted by insertion
N_CENTRAL = 32  # most central neighbours of a point whose neighbours are left out at once
# of a point's neighbours, the most central and some from all directions are tried before all others
N_FIRST_NEIGHBOURS, N_SPREAD_NEIGHBOURS = 2, 8

Bits = NDArray[np.int64]  # of lengths; shape (n, n)
Keys = NDArray[np.uint64]

KEY_BITS, DIGIT_BITS = 22, 11
INFINITE = 0x7FF0000000000000  # its bits


class Scale(NamedTuple):
    """How lengths up to a cap are divided into buckets."""

    least: int  # bits of the least length above zero
    cap: int  # bits of the longest length that enters
    shift: int  # how many bits of a length above the least are on the right of its bucket's number
    n_buckets: int


@compiled
def survey(bits: Bits) -> tuple[Indices, Indices, int]:
    """Return how far each point is from all others together, in steps of bits, the largest of its row, and the least.

    The least is that of the lengths above zero.
    """
    n = len(bits)
    sums, largest = np.zeros(n, np.int64), np.zeros(n, np.int64)
    least = np.uint64(INFINITE)
    for i in range(n):
        row = bits[i]
        total, top = np.int64(0), np.int64(0)
        for j in range(i + 1, n):
            part = row[j] >> 20
            total += part
            sums[j] += part
            top = max(top, row[j])
            largest[j] = max(largest[j], row[j])
            least = min(least, np.uint64(row[j] - 1))
        sums[i] += total
        largest[i] = max(largest[i], top)
    return sums, largest, wide(least) + 1


def scale_of(n: int, least: int, cap: float) -> Scale:
    """Return buckets for the lengths of n points up to a cap."""
    bits = int(np.float64(max(0.0, cap)).view(np.int64))
    least = min(least, bits)
    n_wanted = min(max(n * n // (2 * EDGES_PER_BUCKET), 1), MAX_BUCKETS)
    shift = max((bits - least).bit_length() - n_wanted.bit_length() + 1, 0)
    return Scale(least, bits, shift, ((bits - least) >> shift) + 1)


@compiled
def bucket_sizes(bits: Bits, scale: Scale) -> Indices:
    """Return how many edges are in each bucket."""
    sizes = np.zeros(scale.n_buckets + 1, np.int64)
    for i in range(len(bits)):
        row = bits[i]
        for j in range(i + 1, len(bits)):
            above = max(row[j], scale.least) - scale.least
            sizes[above >> scale.shift if row[j] <= scale.cap else scale.n_buckets] += 1
    return sizes[: scale.n_buckets]


@compiled
def edges_of(bits: Bits, label: NDArray[np.int32], scale: Scale, begin: int, sizes: Indices) -> Keys:
    """Return the keys of the edges of some buckets from one on, bucket by bucket, row by row in each."""
    total = 0
    ends = np.empty(len(sizes), np.int64)
    for b in range(len(sizes)):
        ends[b] = total
        total += sizes[b]
    keys = np.empty(total, np.uint64)
    n = len(bits)
    # Divided before they are added up: the sums may be beyond 64 bits.
    last = begin + len(sizes) - 1
    places, lengths = np.empty(n, np.int32), np.empty(n, np.int64)
    for i in range(n):
        row, count = bits[i], 0
        for j in range(i + 1, n):
            # Written in any case, kept if it counts: a branch would be mispredicted half the time.
            places[count], lengths[count] = j, row[j]
            bucket = (max(row[j], scale.least) - scale.least) >> scale.shift
            count += (bucket >= begin) & (bucket <= last) & (row[j] <= scale.cap)
        for k in range(count):
            a, b = min(label[i], label[places[k]]), max(label[i], label[places[k]])
            offset = max(lengths[k], scale.least) - scale.least
            bucket = (offset >> scale.shift) - begin
            rest = np.uint64(_after(offset, scale.shift))
            keys[ends[bucket]] = rest << np.uint64(32) | np.uint64(a) << np.uint64(16) | np.uint64(b)
            ends[bucket] += 1
    return keys


@inlined
def _after(offset: int, shift: int) -> int:
    """Return the bits of a length that follow those of the number of its bucket."""
    rest = offset & ((wide(1) << shift) - 1)
    return int(rest >> (shift - KEY_BITS) if shift > KEY_BITS else rest)


@compiled
def sort_bucket(keys: Keys, spare: Keys, bits: Bits, order: NDArray[np.int64]) -> None:
    """Put the edges of one bucket in order, in place."""
    if len(keys) <= MAX_INSERTED:
        _insert(keys)
    else:
        at = np.empty((1 << DIGIT_BITS) + 1, np.int32)
        _by_digit(keys, spare[: len(keys)], at, wide(32))
        _by_digit(spare[: len(keys)], keys, at, wide(32 + DIGIT_BITS))
    begin = 0
    while begin < len(keys):
        end = begin + 1
        while end < len(keys) and keys[end] >> np.uint64(32) == keys[begin] >> np.uint64(32):
            end += 1
        if end - begin > 1:
            _order_ties(keys[begin:end], bits, order)
        begin = end


@inlined
def _insert(keys: Keys) -> None:
    for k in range(1, len(keys)):
        key, place = keys[k], k
        while place > 0 and keys[place - 1] >> np.uint64(32) > key >> np.uint64(32):
            keys[place] = keys[place - 1]
            place -= 1
        keys[place] = key


@compiled_within
def _by_digit(keys: Keys, into: Keys, at: NDArray[np.int32], shift: int) -> None:
    """Sort by one digit; what is equal stays in order."""
    last = np.uint64((1 << DIGIT_BITS) - 1)
    at[:] = 0
    for k in range(len(keys)):
        at[(keys[k] >> np.uint64(shift) & last) + ONE] += 1
    for digit in range(len(at) - 1):
        at[digit + 1] += at[digit]
    for k in range(len(keys)):
        digit = keys[k] >> np.uint64(shift) & last
        into[at[digit]] = keys[k]
        at[digit] += 1


@compiled
def _order_ties(keys: Keys, bits: Bits, order: NDArray[np.int64]) -> None:
    """Put edges whose keys cannot tell them apart in order of length, by Shell's method."""
    n = len(keys)
    lengths = np.empty(n, np.int64)
    ordered = True
    for k in range(n):
        lengths[k] = max(
            bits[order[keys[k] >> np.uint64(16) & np.uint64(0xFFFF)], order[keys[k] & np.uint64(0xFFFF)]], 0
        )
        ordered &= k == 0 or lengths[k - 1] <= lengths[k]
    if ordered:
        return
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap:
        for k in range(gap, n):
            length, key, place = lengths[k], keys[k], k
            while place >= gap and lengths[place - gap] > length:
                lengths[place], keys[place] = lengths[place - gap], keys[place - gap]
                place -= gap
            lengths[place], keys[place] = length, key
        gap //= 3


@compiled
def first_later_birth(
    bits: Bits, order: Indices, neighbours: Words, reached: int, cap: int, begin: int
) -> tuple[int, int]:
    """Return the label of the first point, from one on, with a later edge that may open a loop, and the edge's length.

    The label is the number of points if there is none. Points whose edges have been looked at need not be again.
    """
    n, n_words = neighbours.shape
    left = np.empty(n_words, np.uint64)
    others, lengths, near = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for u in range(begin, n):
        _two_hops_off(neighbours, u, left)
        count, row = wide(0), order[u]
        for i in range(u >> 6, n_words):
            word = left[i]
            while word:
                v = (i << 6) + lowest_bit(word)
                word &= word - ONE
                others[count], lengths[count] = order[v], bits[row, order[v]]
                count += v > u and reached < lengths[count] <= cap
        # The most central neighbours, some from all directions, then the others.
        degree = 0
        for i in range(n_words):
            word = neighbours[u, i]
            while word and count:
                near[degree] = order[(i << 6) + lowest_bit(word)]
                word &= word - ONE
                degree += 1
        stride = degree // N_SPREAD_NEIGHBOURS + 1
        for k in range(min(N_FIRST_NEIGHBOURS, degree)):
            count = _unrefuted(bits, row, near[k], others, lengths, count)
        for first in range(stride):
            for k in range(first, degree, stride):
                count = _unrefuted(bits, row, near[k], others, lengths, count)
        for k in range(count):
            if not _lune_has_a_point(bits, row, others[k]):
                return u, lengths[k]
    return n, 0


@compiled_within
def _unrefuted(bits: Bits, u: int, w: int, others: Indices, lengths: Indices, count: int) -> int:
    """Keep those of some edges from a point that another does not refute, in place; return how many."""
    kept, from_u = 0, bits[w, u]
    for k in range(count):
        others[kept], lengths[kept] = others[k], lengths[k]
        kept += max(from_u, bits[w, others[k]]) >= lengths[k]
    return kept


@compiled_within
def _two_hops_off(neighbours: Words, u: int, left: Words) -> None:
    """Fill in which points are seen by none of the most central neighbours of a point, nor by itself."""
    n, n_words = neighbours.shape
    for i in range(n_words):
        left[i] = ~neighbours[u, i]
    left[n_words - 1] &= ~ZERO >> np.uint64(64 * n_words - n)
    n_seen, some = 0, ~ZERO
    for i in range(n_words):
        word = neighbours[u, i]
        while word and some and n_seen < N_CENTRAL:
            w = (i << 6) + lowest_bit(word)
            word &= word - ONE
            n_seen += 1
            some = ZERO
            for k in range(n_words):
                left[k] &= ~neighbours[w, k]
                some |= left[k]


@inlined
def _lune_has_a_point(bits: Bits, a: int, b: int) -> bool:
    length = bits[a, b]
    for w in range(len(bits)):
        if bits[a, w] < length and bits[b, w] < length:
            return True
    return False
