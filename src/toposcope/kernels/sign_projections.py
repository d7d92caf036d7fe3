"""Projections of a matrix on directions of random signs, which are made as they are needed: 64 for a word of 64 bits.

The word of an entry is a hash of its position (the finaliser of SplitMix64: Steele, Lea & Flood 2014, "Fast splittable
pseudorandom number generators"), so that no direction is ever stored.
"""

import numpy as np

from toposcope.kernels.compiled import compiled
from toposcope.typing import Matrix, Vector

WORD_BITS = 64  # directions that one word of bits holds


@compiled
def add_sign_projections(
    rows: Matrix, start: int, row_step: int, column_step: int, seed: np.uint64, sums: Vector
) -> None:
    """Add the projections of some rows of a matrix to those of the rows before."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            position = np.uint64(start + i * row_step + j * column_step)
            bits = seed + (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = bits ^ (bits >> np.uint64(31))
            w = rows[i, j]
            for k in range(64):
                sums[k] += w if (bits >> np.uint64(k)) & np.uint64(1) else -w
