"""Bounds of the squared distances of points of many coordinates, from products of 16-bit integers.

Points are rounded to multiples of a unit of their own, so large that no product of two of them leaves 32 bits, and what
rounding took away is measured: with x = s q + e, of x.y nothing is missing but |s q| |f| + |e| |y| (Cauchy-Schwarz). A
processor multiplies twice as many 16-bit integers at once as float32, sums are exact, and what is known of them is no
less than of float32 in as many dimensions, whose rounding grows with their number.

Cost: O(n^2 d) time, O(nd) memory of two bytes an entry. Source: Higham 2002, section 3.1, for the rounding of the rest.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from toposcope.kernels.compiled import compiled
from toposcope.typing import Indices, Matrix, Vector

MAX_ENTRY, MAX_NORM = 32767, 46340  # of a rounded point: its entries fit 16 bits, its products with others 31
llvm: Any = cgutils  # it has no types
SIDE = 4  # the products of so many points with as many are summed at the same time
TILE = 256  # columns whose rounded points stay in the cache
COVER = 2.0**-21  # relatively, more than what float32 and the sums of this module round
LEAST = 2.0**-100  # nothing in float64 that vanishes when it is squared is as large


class Rounded(NamedTuple):
    """Points about their centroid, as multiples of a unit of each."""

    entries: NDArray[np.int16]  # shape (n, d), and zeros up to a multiple of what a processor takes at once
    units: Vector  # shape (n,)
    norms: Vector  # shape (n,); of the points as they are
    errors: Vector  # shape (n,); no less than the norm of what rounding took away

    def some(self, rows: Any) -> "Rounded":
        """Return some of the points."""
        return Rounded(*(part[rows] for part in self))


def rounded(points: Matrix, order: Indices) -> Rounded:
    """Round points in an order; their entries are at most about one."""
    n, d = len(order), points.shape[1]
    largest = MAX_NORM - np.sqrt(d)  # rounding adds half a unit to an entry
    result = Rounded(np.zeros((n, d + -d % _lanes()), np.int16), np.ones(n), np.empty(n), np.empty(n))
    centre = points.mean(axis=0)
    for begin in range(0, n, 256):  # no second copy of the points
        rows = slice(begin, begin + 256)
        centred = points[order[rows]] - centre
        norms = np.linalg.norm(centred, axis=1)
        units = np.maximum(np.maximum(norms / largest, np.abs(centred).max(axis=1) / MAX_ENTRY), np.finfo(float).tiny)
        multiples = np.rint(centred / units[:, None])
        result.entries[rows, :d] = multiples
        centred -= units[:, None] * multiples
        result.units[rows], result.norms[rows] = units, norms
        result.errors[rows] = (1 + COVER) * np.linalg.norm(centred, axis=1) + 1e-12 * norms
    return result


def _lanes() -> int:
    """Return how many 16-bit integers this processor multiplies at once."""
    features = binding.get_host_cpu_features()
    return 32 if features.get("avx512bw") else 16 if features.get("avx2") else 8


def _build(_typing: Any, left: Any, i: Any, right: Any, j: Any, sums: Any, place: Any) -> tuple[Any, Any]:
    lanes = _lanes()
    word, half = ir.IntType(64), ir.IntType(32)
    run, wide, total = ir.VectorType(ir.IntType(16), lanes), ir.VectorType(half, lanes), ir.VectorType(half, lanes // 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def array(k: int) -> tuple[Any, list[Any]]:
            made = context.make_array(signature.args[k])(context, builder, arguments[k])
            return made.data, llvm.unpack_tuple(builder, made.shape)

        def rows(k: int) -> list[Any]:
            """Point to as many points as a side has, to the last again where fewer are left."""
            data, (n, d) = array(k)
            last = builder.sub(n, word(1))
            places = [builder.add(arguments[k + 1], word(r)) for r in range(SIDE)]
            places = [builder.select(builder.icmp_signed("<", p, last), p, last) for p in places]
            return [builder.gep(data, [builder.mul(p, d)]) for p in places]

        def load(row: Any, t: Any) -> Any:
            return builder.sext(builder.load(builder.bitcast(builder.gep(row, [t]), run.as_pointer()), align=2), wide)

        def halved(a: Any, b: Any) -> Any:
            """Add neighbours, of a and then of b: processors have instructions for just that."""
            places = (ir.Constant(total, [*range(first, lanes, 2)]) for first in (0, 1))
            return builder.add(*(builder.shuffle_vector(a, b, half_of) for half_of in places))

        lines, columns, (_, (_, d)), (out, (_, width)) = rows(0), rows(2), array(0), array(4)
        memory = [llvm.alloca_once_value(builder, total(None)) for _ in range(SIDE**2)]
        with llvm.for_range_slice(builder, word(0), d, word(lanes)) as (t, _):
            left_runs, right_runs = [load(row, t) for row in lines], [load(row, t) for row in columns]
            for kept, (a, b) in zip(memory, product(left_runs, right_runs), strict=True):
                terms = builder.mul(a, b)
                builder.store(builder.add(builder.load(kept), halved(terms, terms)), kept)
        vectors = [builder.load(kept) for kept in memory]
        for _ in range(lanes.bit_length() - 2):
            vectors = [halved(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        for r in range(SIDE):
            vector, first = divmod(SIDE * r, lanes // 2)
            line = ir.Constant(ir.VectorType(half, SIDE), [*range(first, first + SIDE)])
            line = builder.shuffle_vector(vectors[vector], vectors[vector], line)
            at = builder.gep(out, [builder.add(builder.mul(width, word(r)), arguments[5])])
            builder.store(line, builder.bitcast(at, line.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(left, i, right, j, sums, place), generate


_products: Any = intrinsic(_build)
"""Write the products of the rows from i on with those from j on, from a place of the lines of `sums` on."""


@compiled
def distance_bounds(left: Rounded, right: Rounded, sign: float, out: NDArray[np.float32]) -> None:
    """Bound squared distances of points from the first points, from below (`sign` -1) or above (1)."""
    h, stop = out.shape
    rounding = (
        1 + sign * (4 * right.entries.shape[1] + 64) * np.finfo(np.float64).eps
    )  # of squared norms and what follows
    sums, base = np.empty((SIDE, TILE), np.int32), rounding * right.norms**2
    for begin in range(0, stop, TILE):
        end = min(begin + TILE, stop)
        squares, units = base[begin:end], right.units[begin:end]
        norms, errors = right.norms[begin:end], right.errors[begin:end]
        for i in range(0, h, SIDE):
            for j in range(begin, end, SIDE):
                _products(left.entries, i, right.entries, j, sums, j - begin)
            for r in range(i, min(i + SIDE, h)):
                line, products = out[r, begin:end], sums[r - i]
                squared, unit = rounding * left.norms[r] ** 2, 2 * left.units[r]
                far, near = 2 * sign * (left.norms[r] + left.errors[r]), 2 * sign * left.errors[r]
                for c in range(len(line)):
                    missing = far * errors[c] + near * norms[c]
                    bound = squared + squares[c] - unit * units[c] * products[c] + missing
                    line[c] = bound + sign * COVER * (abs(bound) + LEAST)
