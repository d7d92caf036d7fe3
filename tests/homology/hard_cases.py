"""Hypothesis strategies for the inputs that break topology: ties, zeros, duplicates, heavy tails, distant scales."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from toposcope.homology import Diagram

Array = NDArray[np.float64]

quarters = st.integers(-8, 8).map(lambda k: k / 4)
"""Few values, exact in every floating-point format: ties everywhere."""

halves = st.floats(-1, 1, width=16)
"""Ordinary values no smaller than 6e-8, so that no square of a difference underflows."""


@st.composite
def matrices(draw: st.DrawFn, max_side: int = 8, *, extreme: bool = True) -> NDArray[Any]:
    """Weight matrices, float32 or float64. Without `extreme`, a scaling by 2^30 either way rounds nothing."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    m, n = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    kinds = ["plain", "ties", "sparse", "heavy tails", "row scales", "low rank", "equal"]
    kind = draw(st.sampled_from([*kinds, "any float"] if extreme else kinds))
    elements: st.SearchStrategy[float] = quarters
    if kind == "plain":
        elements = halves
    elif kind == "sparse":
        elements = st.sampled_from([0.0, -0.0, 0.0, 0.5, -1.0])
    elif kind == "heavy tails":
        elements = st.builds(lambda sign, e: sign * 10.0**e, st.sampled_from([-1.0, 1.0]), st.integers(-25, 25))
    elif kind == "any float":
        elements = st.floats(width=32 if dtype is np.float32 else 64, allow_nan=False, allow_infinity=False)
    matrix = draw(hnp.arrays(dtype, (m, n), elements=elements))
    if kind == "equal":
        matrix[:] = matrix[0, 0]
    elif kind == "low rank":
        matrix = (matrix[:, :1] * matrix[:1, :]).astype(dtype)
    elif kind == "row scales":
        exponents = draw(hnp.arrays(np.int64, (m, 1), elements=st.integers(-25, 20)))
        matrix = (matrix * 10.0**exponents).astype(dtype)
    if draw(st.booleans()):
        matrix[draw(st.integers(0, m - 1))] = 0
    if draw(st.booleans()):
        matrix[:, draw(st.integers(0, n - 1))] = 0
    return matrix


@st.composite
def clouds(draw: st.DrawFn, max_points: int = 12, *, exact: bool = False) -> Array:
    """Point clouds in 1 to 4 dimensions. With `exact`, coordinates are small integers: squared lengths do not round."""
    n, d = draw(st.integers(1, max_points)), draw(st.integers(1, 4))
    if exact:
        lattice: Array = draw(hnp.arrays(np.float64, (n, d), elements=st.integers(-3, 3).map(float)))
        return lattice
    kind = draw(st.sampled_from(["generic", "halves", "lattice", "duplicates", "collinear", "distant"]))
    if kind == "generic":
        return np.random.default_rng(draw(st.integers(0, 2**32))).normal(size=(n, d))
    cloud: Array = draw(hnp.arrays(np.float64, (n, d), elements=quarters if kind == "lattice" else halves))
    if kind == "duplicates":
        cloud = cloud[draw(hnp.arrays(np.int64, n, elements=st.integers(0, min(n, 3) - 1)))]
    elif kind == "collinear":
        cloud = cloud[:, :1] * draw(hnp.arrays(np.float64, (1, d), elements=quarters))
    elif kind == "distant":
        # A multiple of 2^-10 stays exact when 2^20 is added, so the distances are those of the cloud at the origin.
        cloud = np.round(cloud * 2**10) / 2**10 + 2.0**20
    return cloud


@st.composite
def diagrams(draw: st.DrawFn, max_bars: int = 8, *, heavy: bool = True, dimension: int = 1) -> Diagram:
    """Diagrams with ties, bars of length zero, lifetimes of very different orders, ascending or descending."""
    n = draw(st.integers(0, max_bars))
    kind = draw(st.sampled_from(["ties", "halves", "born together", "heavy"] if heavy else ["ties", "halves"]))
    births = draw(hnp.arrays(np.float64, n, elements=quarters if kind == "ties" else halves))
    lives = draw(hnp.arrays(np.float64, n, elements=quarters if kind == "ties" else halves))
    if kind == "born together":
        births[:] = 0
    if kind == "heavy":
        lives = 10.0 ** draw(hnp.arrays(np.float64, n, elements=st.integers(-9, 6).map(float)))
    sign = draw(st.sampled_from([1.0, -1.0]))
    pairs = np.column_stack([births, births + sign * np.abs(lives)])
    return Diagram(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))], dimension)
