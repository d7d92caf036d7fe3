"""Sets of small integers: union-find, bits with the largest member in a few steps, and comparisons that give bits.

A compiler does not compare 64 neighbours into one word by itself: it writes a byte for each comparison.

Cost: a `BitTree` of m numbers takes m / 8 bytes and a little more; adding, removing and finding the largest visit four
words each, beyond 64^4 numbers a few more.
Source: the bit tree of Bauer, Kerber, Reininghaus & Wagner 2017, "PHAT - Persistent Homology Algorithms Toolbox",
section 4.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled

Parents = NDArray[np.integer[Any]]
Words = NDArray[np.uint64]
WORD = 64
ONE = np.uint64(1)
ZERO = np.uint64(0)
VECTOR_BYTES = 64  # compared by one instruction where the processor has vectors of that size, by a few otherwise


@compiled
def find(parent: Parents, vertex: int) -> int:
    """Return the root of a vertex, halving the path on the way."""
    while parent[vertex] != vertex:
        parent[vertex] = parent[parent[vertex]]
        vertex = parent[vertex]
    return vertex


@compiled
def join(parent: Parents, a: int, b: int) -> bool:
    """Join the trees of two vertices; return whether they were two. The root of higher number stays a root."""
    a, b = find(parent, a), find(parent, b)
    if a == b:
        return False
    parent[min(a, b)] = max(a, b)
    return True


def _count_zeros(instruction: str) -> Any:
    """Return a compiled function that counts the zeros on one side of a word; 64 of an empty one."""

    def build(_typing: Any, _word: Any) -> tuple[Any, Any]:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.uint64), generate

    return intrinsic(build)


lowest_bit = _count_zeros("cttz")  # place of the lowest bit of a word that is not zero
_leading_zeros = _count_zeros("ctlz")


class BitTree(NamedTuple):
    """A set of numbers below 64^4 times the length of the last level; each level marks the words in use below it."""

    members: Words
    level_1: Words
    level_2: Words
    level_3: Words


def empty_tree(size: int) -> BitTree:
    """Return an empty set for numbers below `size`."""
    a = size // WORD + 1
    b = a // WORD + 1
    c = b // WORD + 1
    d = c // WORD + 1
    return BitTree(np.zeros(a, np.uint64), np.zeros(b, np.uint64), np.zeros(c, np.uint64), np.zeros(d, np.uint64))


empty_tree_inside = compiled(empty_tree)
"""The same for compiled functions; what these get from outside need not be compiled."""


@compiled
def toggle(tree: BitTree, member: int) -> None:
    """Add a number that is absent, remove one that is there."""
    a = member >> 6
    b, c = a >> 6, a >> 12
    tree.members[a] ^= ONE << np.uint64(member & 63)
    if tree.members[a]:
        tree.level_1[b] |= ONE << np.uint64(a & 63)
        tree.level_2[c] |= ONE << np.uint64(b & 63)
        tree.level_3[c >> 6] |= ONE << np.uint64(c & 63)
        return
    tree.level_1[b] &= ~(ONE << np.uint64(a & 63))
    if tree.level_1[b]:
        return
    tree.level_2[c] &= ~(ONE << np.uint64(b & 63))
    if tree.level_2[c]:
        return
    tree.level_3[c >> 6] &= ~(ONE << np.uint64(c & 63))


@compiled
def largest(tree: BitTree) -> int:
    """Return the largest member; -1 of an empty set."""
    for k in range(len(tree.level_3) - 1, -1, -1):
        if tree.level_3[k]:
            c = 64 * k + 63 - _leading_zeros(tree.level_3[k])
            b = 64 * c + 63 - _leading_zeros(tree.level_2[c])
            a = 64 * b + 63 - _leading_zeros(tree.level_1[b])
            return int(64 * a + 63 - _leading_zeros(tree.members[a]))
    return -1


def _bits_above(_typing: Any, array: Any, _start: Any, _mask: Any, _threshold: Any) -> tuple[Any, Any]:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, start, mask, threshold = arguments
        number = context.get_value_type(array.dtype)
        width = 8 * VECTOR_BYTES // number.width
        vector, word = ir.VectorType(number, width), ir.IntType(WORD)
        masks, thresholds = _repeated(builder, mask, vector), _repeated(builder, threshold, vector)
        data = context.make_array(array)(context, builder, values).data
        found = ir.Constant(word, 0)
        for first in range(0, WORD, width):
            place = builder.gep(data, [builder.add(start, ir.Constant(start.type, first))])
            loaded = builder.load(builder.bitcast(place, vector.as_pointer()), align=number.width // 8)
            above = builder.icmp_signed(">", builder.and_(loaded, masks), thresholds)
            bits = builder.bitcast(above, ir.IntType(width))
            bits = builder.zext(bits, word) if width < WORD else bits
            found = builder.or_(found, builder.shl(bits, ir.Constant(word, first)))
        return found

    return types.uint64(array, types.int64, array.dtype, array.dtype), generate


bits_above: Any = intrinsic(_bits_above)
"""``bits_above(array, start, mask, threshold)``: bit k of a word is ``array[start + k] & mask > threshold``.

k goes from 0 to 63; the array is of signed integers without gaps, and all 64 must be inside.
"""


def _repeated(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, zeros)
