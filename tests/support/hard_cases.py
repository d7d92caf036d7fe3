"""The inputs that break topology: ties, zeros, duplicates, heavy tails, distant scales.

Hypothesis strategies for small ones; large ones by name, made by a random generator.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
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


Make = Callable[[np.random.Generator, int, int], NDArray[Any]]
"""From a generator, a number of rows and of columns, to a matrix."""


def _clusters(spread: float) -> Make:
    def make(rng: np.random.Generator, n: int, d: int) -> NDArray[Any]:
        centres = rng.normal(size=(1 + n // 20, d))
        return centres[rng.integers(0, len(centres), n)] + spread * rng.normal(size=(n, d))

    return make


def _repeated(noise: float) -> Make:
    def make(rng: np.random.Generator, n: int, d: int) -> NDArray[Any]:
        places = rng.normal(size=(1 + n // 3, d))
        return places[rng.integers(0, len(places), n)] * (1 + noise * rng.normal(size=(n, d)))

    return make


def _sphere(rng: np.random.Generator, n: int, d: int) -> NDArray[Any]:
    points = rng.normal(size=(n, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points


LARGE_CLOUDS: dict[str, Make] = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "off the origin by 1e4": lambda rng, n, d: 1e4 + rng.normal(size=(n, d)),
    "off the origin by 1e6": lambda rng, n, d: 1e6 + rng.normal(size=(n, d)),
    "off the origin by 1e8": lambda rng, n, d: 1e8 + rng.normal(size=(n, d)),
    "clusters of 1e-3": _clusters(1e-3),
    "clusters of 1e-6": _clusters(1e-6),
    "clusters of 1e-9": _clusters(1e-9),
    "duplicates": _repeated(0),
    "near duplicates": _repeated(1e-9),
    "lattice": lambda rng, n, d: rng.integers(-3, 4, (n, d)).astype(float),
    "large lattice": lambda rng, n, d: rng.integers(-50, 50, (n, d)).astype(float),
    "low rank": lambda rng, n, d: rng.normal(size=(n, 2)) @ rng.normal(size=(2, d)),
    "collinear": lambda rng, n, d: rng.normal(size=(n, 1)) @ rng.normal(size=(1, d)),
    "scales": lambda rng, n, d: rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6, (n, 1)),
    "far scales": lambda rng, n, d: rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-20, 0, (n, 1)),
    "heavy tails": lambda rng, n, d: rng.standard_cauchy((n, d)),
    "zero rows": lambda rng, n, d: rng.normal(size=(n, d)) * (rng.random((n, 1)) < 0.5),
    "equal": lambda rng, n, d: np.ones((n, d)),
    "on a sphere": _sphere,
    "unit vectors": lambda rng, n, d: np.eye(d)[rng.integers(0, d, n)] * rng.integers(1, 4, (n, 1)),
}
"""Clouds of n points in d dimensions."""


def _dead(rng: np.random.Generator, m: int, n: int) -> NDArray[Any]:
    return rng.normal(size=(m, n)) * (rng.random((m, 1)) < 0.9) * (rng.random((1, n)) < 0.9)


def _blocks(rng: np.random.Generator, m: int, n: int) -> NDArray[Any]:
    inside = (4 * np.arange(m)[:, None] // m) == (4 * np.arange(n) // n)
    return rng.normal(size=(m, n)) * np.where(inside, 1.0, 1e-4)


def _band(rng: np.random.Generator, m: int, n: int) -> NDArray[Any]:
    far = np.abs(np.arange(m)[:, None] * n - np.arange(n) * m) >= 3 * max(m, n)
    return np.where(far, 0.0, rng.normal(size=(m, n)))


def _levels(step: float) -> Make:
    return lambda rng, m, n: np.round(rng.normal(size=(m, n)) / step) * step


LARGE_MATRICES: dict[str, Make] = {
    "normal": lambda rng, m, n: rng.normal(size=(m, n)),
    "heavy tails": lambda rng, m, n: rng.standard_cauchy((m, n)),
    "dead rows and columns": _dead,
    "row scales": lambda rng, m, n: rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-4, 1, (m, 1)),
    "column scales": lambda rng, m, n: rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-4, 1, (1, n)),
    "both scales": lambda rng, m, n: (
        rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-2, 1, (m, 1)) * 10.0 ** rng.uniform(-2, 1, (1, n))
    ),
    "rank 1": lambda rng, m, n: rng.normal(size=(m, 1)) @ rng.normal(size=(1, n)),
    "rank 8": lambda rng, m, n: rng.normal(size=(m, 8)) @ rng.normal(size=(8, n)),
    "int8": _levels(1 / 32),
    "int4": _levels(1 / 2),
    "ternary": lambda rng, m, n: rng.integers(-1, 2, (m, n)) * 0.5,
    "binary": lambda rng, m, n: rng.integers(0, 2, (m, n)) * 1.0,
    "half zeros": lambda rng, m, n: rng.normal(size=(m, n)) * (rng.random((m, n)) < 0.5),
    "sparse": lambda rng, m, n: rng.normal(size=(m, n)) * (rng.random((m, n)) < 0.002),
    "equal": lambda rng, m, n: np.full((m, n), -0.25),
    "zeros": lambda rng, m, n: np.zeros((m, n)),
    "blocks": _blocks,
    "ascending": lambda rng, m, n: np.sort(rng.normal(size=m * n)).reshape(m, n),
    "band": _band,
    "one entry": lambda rng, m, n: np.arange(m * n).reshape(m, n) == rng.integers(m * n),
    "mostly the largest": lambda rng, m, n: np.minimum(rng.normal(size=(m, n)), -0.5) * (rng.random((m, n)) < 0.99),
}
"""Weights of m rows and n columns, in float64; none overflows in float16."""


def large_cloud(name: str, n: int, d: int, seed: int = 0) -> Array:
    """Cloud of `LARGE_CLOUDS` in units of a power of two, so that no coordinate is above one."""
    points = LARGE_CLOUDS[name](np.random.default_rng(seed), n, d)
    return np.ldexp(points, -int(np.frexp(np.abs(points).max())[1]))


def large_matrix(name: str, m: int, n: int, seed: int = 0) -> Array:
    """Matrix of `LARGE_MATRICES` in float64, within the range of float16."""
    matrix = LARGE_MATRICES[name](np.random.default_rng(seed), m, n).astype(np.float64)
    return np.clip(matrix, -60000, 60000)


CLOUD_KINDS = ("normal", "lattice", "duplicates", "near ties", "circles", "spheres", "scales")


def hard_cloud(kind: str, n: int, d: int) -> Array:
    """A point cloud of a kind in `CLOUD_KINDS`; circles lie in at least two dimensions."""
    rng = np.random.default_rng([n, d])
    points = rng.normal(size=(n, d))
    if kind == "lattice":
        points = np.round(1.5 * points)
    elif kind == "duplicates":
        points = points[rng.integers(0, n // 2, n)]
    elif kind == "near ties":
        points = np.round(points) + 1e-13 * points
    elif kind == "circles":
        angles = rng.uniform(0, 2 * np.pi, n)
        centres = np.zeros((n, max(d, 2)))
        centres[:, 0] = 4 * rng.integers(0, 3, n)
        points = centres + 0.05 * rng.normal(size=centres.shape)
        points[:, 0] += np.cos(angles)
        points[:, 1] += np.sin(angles)
    elif kind == "spheres":
        points /= np.linalg.norm(points, axis=1)[:, None]
    elif kind == "scales":
        points *= 10.0 ** rng.uniform(-8, 8, (n, 1))
    return points


def directed(points: Array) -> Array:
    """The cloud without the points that have no direction."""
    points = points[np.abs(points).max(axis=1) > 0]
    assume(len(points) > 0)
    return points


def assert_same_pairs(first: list[Diagram], second: list[Diagram]) -> None:
    for a, b in zip(first, second, strict=True):
        assert_array_equal(a.pairs, b.pairs)
        assert (a.n_essential, a.n_truncated) == (b.n_essential, b.n_truncated)
