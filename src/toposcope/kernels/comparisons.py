"""Which of 64 neighbours in memory exceed a threshold, as the bits of a word: many comparisons in one instruction.

A compiler does not find this by itself: it writes a byte for each comparison, and looking for the few that hold takes
as long as all comparisons.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from toposcope.kernels.bit_sets import WORD

VECTOR_BYTES = 64
"""Compared by one instruction where the processor has vectors of that size, by a few otherwise."""


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
"""``bits_above(array, start, mask, threshold)``: a word whose bit k tells if ``array[start + k] & mask > threshold``.

k goes from 0 to 63; the array is of signed integers without gaps, and all 64 must be inside.
"""


def _repeated(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, zeros)
