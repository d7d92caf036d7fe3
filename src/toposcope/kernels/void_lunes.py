"""The lune of an edge as a forest: its components, and a tree of each."""

from typing import NamedTuple

import numpy as np

from toposcope.kernels.annotations import NONE, Numbers
from toposcope.kernels.compiled import compiled
from toposcope.kernels.sets import ONE, ZERO, Words, lowest_bit
from toposcope.kernels.void_cocycles import ones
from toposcope.typing import Indices

N_COMPONENTS, N_STEMS, LARGEST = range(3)
TRIES = 8  # points of a lune that are asked whether they see all of it; the first are the most central


class Lune(NamedTuple):
    """The lune of an edge as a forest, and what one void's triangles with that edge are to be."""

    counters: Indices
    points: Words
    rest: Words
    roots: Numbers  # one of each component
    components: Words  # shape (n, n / 64)
    stems: Numbers  # points that have children, parents first
    children: Words  # shape (n, n / 64); those of each stem
    queue: Numbers
    closing: Indices  # the last edge of which this component has closed a loop, or opened a void
    touched: Words  # points whose differences are not all 0
    differences: Words  # shape (n, n / 64); for x and y, the sum of the values of uxy and vxy
    values: Words  # those of uvx


def no_lune(n: int) -> Lune:
    """Return room for the lunes of n points."""
    sets, numbers = np.zeros((n, max(-(-n // 64), 1)), np.uint64), np.empty(n, np.int32)
    words = np.zeros(sets.shape[1], np.uint64)
    forest = numbers, sets.copy(), numbers.copy(), sets.copy(), numbers.copy(), np.full(n, NONE)
    return Lune(np.zeros(3, np.int64), words, words.copy(), *forest, words.copy(), sets, words.copy())


@compiled
def center_of(near: Words, lune: Words) -> int:
    """Return a point of the lune that sees all of it, or -1 if none of the first few does."""
    tries = 0
    for i in range(len(lune)):
        word = lune[i]
        while word:
            x, j = (i << 6) + lowest_bit(word), 0
            while j < len(lune) and not lune[j] & ~near[x, j]:
                j += 1
            if j == len(lune):
                return int(x)
            word &= word - ONE
            tries += 1
            if tries == TRIES:
                return -1
    return -1


@compiled
def span(near: Words, lune: Lune) -> None:
    """Find the components of a lune, and a tree of each, breadth first."""
    rest, queue, n_words = lune.rest, lune.queue, len(lune.rest)
    n_components = n_stems = word = largest = 0
    most = -1
    for i in range(n_words):
        rest[i] = lune.points[i]
    while True:
        while word < n_words and not rest[word]:
            word += 1
        if word == n_words:
            break
        root, component = (word << 6) + lowest_bit(rest[word]), lune.components[n_components]
        rest[word] &= rest[word] - ONE
        for i in range(n_words):
            component[i] = ZERO
        component[word] = ONE << np.uint64(root & 63)
        queue[0] = root
        head, tail, left = 0, 1, ONE
        while head < tail and left:
            x, gained, left = queue[head], ZERO, ZERO
            head += 1
            for i in range(n_words):
                found = rest[i] & near[x, i]
                lune.children[n_stems, i] = found
                rest[i] ^= found
                component[i] |= found
                gained |= found
                left |= rest[i]
            if not gained:
                continue
            for i in range(n_words if left else 0):
                found = lune.children[n_stems, i]
                while found:
                    queue[tail] = (i << 6) + lowest_bit(found)
                    found &= found - ONE
                    tail += 1
            lune.stems[n_stems] = x
            n_stems += 1
        lune.roots[n_components] = root
        n_components += 1
    for q in range(n_components if n_components > 1 else 0):
        size = 0
        for i in range(n_words):
            size += ones(lune.components[q, i])
        if size > most:
            largest, most = q, size
    lune.counters[N_COMPONENTS], lune.counters[N_STEMS], lune.counters[LARGEST] = n_components, n_stems, largest
