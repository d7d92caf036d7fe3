"""The kinds of point cloud: Euclidean points, points by their directions, a matrix of distances, or points with one.

Each gives the lengths of its minimum spanning tree, distances between chosen points, and landmarks.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import MAX_NORMAL_EXPONENT, as_float_matrix, as_scaled_matrix, scaled, shown
from toposcope.homology.memory import check_fits
from toposcope.typing import Indices, Matrix, Vector

if TYPE_CHECKING:
    from toposcope.kernels.prim import Tree

# With fewer points or coordinates Prim's algorithm is quicker (benchmarks/point_clouds.py); no result depends on it.
MIN_BORUVKA_POINTS, MIN_BORUVKA_COORDINATES = 1000, 40_000
MAX_LEAST_ENTRY = 128  # up to this least entry, integer rows are recognised, whatever they were multiplied by

Metric = Literal["euclidean", "cosine", "precomputed"]

CACHE_LINE_BYTES = 64
MAX_SAFE_EXPONENT = 1000
"""Distances between points whose coordinates are below two to this power are in the range of float64."""


class Cloud(Protocol):
    """What a filtration needs of a cloud."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array it came as; first the number of points."""

    @property
    def distance_bytes(self) -> int:
        """Bytes of the distances of all points that are already computed."""

    def tree(self) -> tuple[Vector, str]:
        """Return the n - 1 edge lengths of the minimum spanning tree, ascending, and the algorithm."""

    def tree_edges(self) -> Indices:
        """Return the ends of its edges of finite length, in the order of `tree`, the smaller first; shape (m, 2)."""

    def distances(self, chosen: Indices) -> Matrix:
        """Return the distances between chosen points, shape (k, k); not to be changed."""

    def landmarks(self, count: int) -> tuple[Indices, Vector]:
        """Return greedy farthest points and the cover radius up to and with each."""

    def cover_radius(self, chosen: Indices) -> float:
        """Return the largest distance of a point from its nearest chosen one."""


def as_cloud(points: ArrayLike | Any, metric: Metric, name: str) -> Cloud:
    """Check the user's points; `name` is how messages call them. A cloud of `with_distances` is returned as it is."""
    check_metric(metric)
    if isinstance(points, Distances):
        if points.metric != metric:
            raise ToposcopeError(f"{name}: its distances are of metric {points.metric!r}, not {metric!r}")
        return points
    if metric == "precomputed":
        return Distances(as_distances(points, name, infinite=True))
    if metric == "euclidean" and getattr(points, "is_cuda", False):
        return DeviceEuclidean.of(points, name)
    if metric == "euclidean":
        return Euclidean.of(points, name)
    return Directions.of(as_float_matrix(points, name).astype(np.float64, copy=False), name)


def check_metric(metric: Any) -> None:
    """Refuse what is no metric."""
    if not isinstance(metric, str) or metric not in ("euclidean", "cosine", "precomputed"):
        raise ToposcopeError(f"metric: expected 'euclidean', 'cosine' or 'precomputed', got {shown(metric)}")


def is_large(shape: tuple[int, ...]) -> bool:
    """Return whether Boruvka's rounds are quicker than Prim's algorithm for points in several dimensions."""
    return shape[0] >= MIN_BORUVKA_POINTS and shape[0] * shape[1] >= MIN_BORUVKA_COORDINATES and shape[1] > 1


def with_distances(points: ArrayLike | Any, metric: Metric = "euclidean", name: str = "points") -> Cloud:
    """Compute the distances of all points once, for several functions that take the result in place of the points."""
    cloud = as_cloud(points, metric, name)
    if isinstance(cloud, Distances):
        return cloud
    n = cloud.shape[0]
    check_fits(8 * n * n, f"{name}: distances of {n} points", "take fewer points")
    return Distances(cloud.distances(np.arange(n)), metric, cloud)


@dataclass(frozen=True, eq=False)
class Euclidean:
    """Points with the Euclidean distance, in units of a power of two.

    A power of two changes no digit of a result, and keeps the squares of all but vanishing differences in range.
    """

    points: Matrix
    exponent: int
    name: str

    @classmethod
    def of(cls, points: ArrayLike | Any, name: str) -> "Euclidean":
        """Check the points, and choose the unit so that no coordinate is above one."""
        return cls(*as_scaled_matrix(points, name), name)

    distance_bytes: ClassVar[int] = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Points and dimensions."""
        return self.points.shape

    def tree(self) -> tuple[Vector, str]:
        """Sort on a line; else Prim's algorithm or Boruvka's, by size."""
        if self.points.shape[1] == 1:
            return self.unscaled(np.sort(np.diff(np.sort(self.points[:, 0])))), "sort"
        (squares, _), engine = self._spanning_tree()
        squares.sort()
        return self.unscaled(np.sqrt(squares, out=squares)), engine

    def tree_edges(self) -> Indices:
        """Order ties as the algorithm adds them."""
        if self.points.shape[1] == 1:
            order = np.argsort(self.points[:, 0], kind="stable")
            squares, ends = np.diff(self.points[order, 0]), np.sort(np.column_stack([order[:-1], order[1:]]))
        else:
            (squares, ends), _ = self._spanning_tree()
        return ends[np.argsort(squares, kind="stable")]

    def _spanning_tree(self) -> tuple["Tree", str]:
        """Return the tree of points in several dimensions, unsorted, and the algorithm."""
        from toposcope.kernels.pairwise import repeats
        from toposcope.kernels.prim import Tree, prim_tree

        if not is_large(self.points.shape):
            return prim_tree(self.points), "prim"
        repeated = repeats(self.points)
        distinct = np.delete(np.arange(len(self.points)), repeated[:, 1])
        tree, engine = self._boruvka_tree(distinct), "boruvka"
        if tree is None:
            tree, engine = prim_tree(self.points[distinct]), "prim"
        squares = np.concatenate([np.zeros(len(repeated)), tree.squares])
        return Tree(squares, np.concatenate([repeated, distinct[tree.ends]])), engine

    def _boruvka_tree(self, distinct: Indices) -> "Tree | None":
        from toposcope.kernels.boruvka import boruvka_tree

        return boruvka_tree(self.points if len(distinct) == len(self.points) else self.points[distinct])

    def distances(self, chosen: Indices) -> Matrix:
        """Compute them from coordinate differences."""
        from toposcope.kernels.pairwise import distance_matrix

        matrix = distance_matrix(_aligned(self.points[chosen]))
        return self.unscaled(matrix, out=matrix)

    def landmarks(self, count: int) -> tuple[Indices, Vector]:
        """Begin with the point farthest from the centroid."""
        from toposcope.kernels.farthest import farthest_order

        indices, squared_radii = farthest_order(self.points, int(np.argmax(from_centroid(self.points))), count)
        return indices, self.unscaled(np.sqrt(squared_radii))

    def cover_radius(self, chosen: Indices) -> float:
        """Look up the nearest chosen point of each."""
        from scipy.spatial.distance import cdist

        from toposcope.kernels.farthest import nearest_squares

        squares = nearest_squares(self.points, chosen)
        far = np.flatnonzero(squares >= (1 - 1e-6) * squares.max())
        nearest = [cdist(self.points[i : i + 1], self.points[chosen]).min() for i in far]
        return float(self.unscaled(np.array(nearest)).max())

    def unscaled(self, lengths: Vector, out: Vector | None = None) -> Vector:
        """Return lengths in the unit of the user's points, in `out` if it is given."""
        if self.exponent < MAX_SAFE_EXPONENT:
            return scaled(lengths, self.exponent, out)
        with np.errstate(over="ignore"):
            unscaled = scaled(lengths, self.exponent, out)
        if not np.isfinite(unscaled).all():
            raise ToposcopeError(
                f"{self.name}: distances are beyond the range of float64, shape {self.points.shape}; divide the points "
                "by a constant"
            )
        return unscaled


def _aligned(points: Matrix) -> Matrix:
    """Return a copy that begins where a cache line does: what a processor takes at once lies in one line then."""
    per_line = CACHE_LINE_BYTES // points.itemsize
    room = np.empty(points.size + per_line)
    begin = -room.ctypes.data // points.itemsize % per_line
    copy = room[begin : begin + points.size].reshape(points.shape)
    copy[:] = points
    return copy


def trees_batch(stack: NDArray[Any]) -> list[Vector | None]:
    """Return the lengths of the minimum spanning tree of many small clouds of one shape, made in one compiled call."""
    trees: list[Vector | None] = [None] * len(stack)
    if stack.shape[2] == 1 or is_large(stack.shape[1:]):
        return trees
    usual, exponents, (squares, _) = spanning_trees(stack)
    squares.sort(axis=1)
    for place, lengths in zip(usual.tolist(), np.sqrt(squares, out=squares), strict=True):
        trees[place] = scaled(lengths, int(exponents[place]))
    return trees


def spanning_trees(stack: NDArray[Any], counts: Indices | None = None) -> tuple[Indices, Indices, "Tree"]:
    """Return which clouds are finite and in range, all exponents, and the trees of these, or of their first points."""
    from toposcope.kernels.prim import prim_trees

    largest = np.abs(stack).max(axis=(1, 2)).astype(np.float64)
    exponents = np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]
    usual = np.flatnonzero(np.isfinite(largest) & (np.abs(exponents) < MAX_NORMAL_EXPONENT))
    units = np.ldexp(1.0, -exponents[usual])[:, None, None]
    clouds = np.multiply(stack[usual], units, dtype=np.float64, order="C")
    n_points = np.full(len(clouds), stack.shape[1]) if counts is None else counts[usual]
    return usual, exponents, prim_trees(clouds, n_points)


@dataclass(frozen=True, eq=False)
class DeviceEuclidean(Euclidean):
    """Points that lie on a GPU too, where the tree of a large cloud is made."""

    device_points: Any  # shape (n, d); the same points, in the same unit

    @classmethod
    def of(cls, points: Any, name: str) -> "DeviceEuclidean":
        """Check and scale the points; the copy on the host serves landmarks, loops, and small clouds."""
        host = Euclidean.of(points, name)
        # In two steps: one power of two may be out of range.
        half = host.exponent // 2
        device_points = points.detach().double() * 2.0**-half * 2.0 ** (half - host.exponent)
        return cls(host.points, host.exponent, name, device_points)

    def _boruvka_tree(self, distinct: Indices) -> "Tree | None":
        from toposcope.kernels.device_search import device_tree

        return device_tree(self.device_points[distinct])


@dataclass(frozen=True, eq=False)
class Directions:
    """Points with the cosine distance 1 - cos: half the square of the chord between their directions.

    The chord loses no digits where 1 - cos would. Chords are at most 2, so distances move by at most twice what chords
    do, and twice the cover radius in chords serves as that in cosine distances.
    """

    sphere: Euclidean  # the points divided by their norms
    integers: Matrix | None  # shape (n, d); as of `_integer_rows`: then distances are equal where the angles are

    @classmethod
    def of(cls, points: Matrix, name: str) -> "Directions":
        """Divide every point by its norm."""
        points = np.ascontiguousarray(points)  # sums depend on the layout
        largest = np.abs(points).max(axis=1)
        if not largest.all():
            raise ToposcopeError(
                f"{name}: {int((largest == 0).sum())} of {len(points)} points are zero, shape {points.shape}; they "
                "have no direction to take the cosine of, leave them out"
            )
        integers = _integer_rows(points)
        unit = points / largest[:, None] if integers is None else integers
        return cls(Euclidean(unit / np.linalg.norm(unit, axis=1)[:, None], 0, name), integers)

    distance_bytes: ClassVar[int] = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Points and dimensions."""
        return self.sphere.shape

    def tree(self) -> tuple[Vector, str]:
        """Take the tree of the chords, as the distance grows with the chord; of integers, of their distances."""
        if self.integers is None:
            chords, engine = self.sphere.tree()
            return chords**2 / 2, engine
        lengths, _, engine = self._integer_tree(self.integers)
        return np.sort(lengths), engine

    def tree_edges(self) -> Indices:
        """Take those of the chords; of integers, of their distances."""
        if self.integers is None:
            return self.sphere.tree_edges()
        lengths, ends, _ = self._integer_tree(self.integers)
        return ends[np.argsort(lengths, kind="stable")]

    def _integer_tree(self, integers: Matrix) -> tuple[Vector, Indices, str]:
        from toposcope.kernels.integer_cosines import boruvka_integer_tree, integer_tree
        from toposcope.kernels.pairwise import repeats

        repeated, tree, engine = repeats(integers), None, "boruvka"
        distinct = np.delete(np.arange(len(integers)), repeated[:, 1])
        if is_large(self.shape):
            tree = boruvka_integer_tree(integers[distinct], self.sphere.points[distinct])
        if tree is None:
            tree, engine = integer_tree(integers[distinct]), "prim" if self.shape[1] > 1 else "sort"
        lengths, ends = tree
        return np.concatenate([np.zeros(len(repeated)), lengths]), np.concatenate([repeated, distinct[ends]]), engine

    def distances(self, chosen: Indices) -> Matrix:
        """Compute them from chords, or of integers."""
        if self.integers is None:
            return self.sphere.distances(chosen) ** 2 / 2
        from toposcope.kernels.integer_cosines import integer_distances

        rows = self.integers[chosen]
        dots = rows @ rows.T
        integer_distances(dots, dots.diagonal().copy())
        return dots

    def landmarks(self, count: int) -> tuple[Indices, Vector]:
        """Those of the chords."""
        indices, radii = self.sphere.landmarks(count)
        return indices, 2 * radii

    def cover_radius(self, chosen: Indices) -> float:
        """Twice that of the chords."""
        return 2 * self.sphere.cover_radius(chosen)


def from_centroid(points: Matrix) -> Vector:
    """Return the distances of points from their centroid, without a copy of the points."""
    centroid = points.mean(axis=0)
    return np.concatenate([np.linalg.norm(points[i : i + 256] - centroid, axis=1) for i in range(0, len(points), 256)])


def outlasts_rounding(pairs: Matrix, cloud: Cloud) -> NDArray[np.bool_]:
    """Return which bars are longer than the rounding of their ends, which cosine distances that should tie differ by.

    To first order, and with what half a unit in the last place of the entries makes: directions are off by 4 units of
    rounding in each entry, and by half of d + 6 as a whole; the square of a chord by d + 6 more.
    """
    directions = cloud.points if isinstance(cloud, Distances) else cloud
    tolerance: Any = 0.0
    if isinstance(directions, Directions) and directions.integers is None:
        unit, d, deaths = np.finfo(np.float64).eps / 2, directions.shape[1], pairs[:, 1]
        tolerance = 2 * unit * ((2 * d + 16) * deaths + 8 * np.sqrt(2 * deaths) + (d + 16) ** 2 * unit)
    lasting: NDArray[np.bool_] = pairs[:, 1] - pairs[:, 0] > tolerance
    return lasting


def _integer_rows(points: Matrix) -> Matrix | None:
    """Return integer rows without common factor, of the same directions to rounding; None if one has none.

    Of a row, up to 27 bits are integers; else multiples of its least entry are, or are so to 4 units in the last
    place. Squared norms are at most `MAX_SQUARED_NORM`.
    """
    from toposcope.kernels.integer_cosines import MAX_SQUARED_NORM

    rows = np.empty_like(points)
    for begin, end in pairwise([0, *range(1, len(points), 1024), len(points)]):  # most clouds end at the first row
        part, size = points[begin:end], np.abs(points[begin:end])
        least = size.min(axis=1, where=size > 0, initial=np.inf)
        integers = np.ldexp(part, 27 - np.frexp(size.max(axis=1))[1][:, None])
        rest = np.flatnonzero((integers != np.rint(integers)).any(axis=1))
        factors = np.arange(1.0, MAX_LEAST_ENTRY + 1)
        # Most clouds end here: some entries of one row fit no factor.
        if len(rest) and not _integer_multiples(size[rest[:1], :64], least[rest[:1]], factors[:, None])[1].any():
            return None
        for factor in factors.tolist():
            if not len(rest):
                break
            nearest, fits = _integer_multiples(size[rest], least[rest], factor)
            integers[rest[fits]] = np.copysign(nearest[fits], part[rest[fits]])
            rest = rest[~fits]
        if len(rest):
            return None
        integers /= np.gcd.reduce(integers.astype(np.int64), axis=1)[:, None]
        if (integers**2).sum(axis=1).max() > MAX_SQUARED_NORM:
            return None
        rows[begin:end] = integers
    return rows


def _integer_multiples(rows: Matrix, least: Vector, factor: Any) -> tuple[Matrix, NDArray[np.bool_]]:
    """Return multiples of rows over their least entries, rounded, and which are integers to 4 last places."""
    from toposcope.kernels.integer_cosines import MAX_SQUARED_NORM

    with np.errstate(over="ignore"):
        multiple = rows / least[:, None] * factor
        nearest = np.rint(np.minimum(multiple, MAX_SQUARED_NORM))
        return nearest, (np.abs(multiple - nearest) <= 4 * np.finfo(np.float64).eps * nearest).all(axis=1)


@dataclass(frozen=True, eq=False)
class Distances:
    """A matrix of distances, alone or with the points it is of.

    They need not obey the triangle inequality, without which a cover radius bounds nothing.
    """

    matrix: Matrix  # shape (n, n)
    metric: Metric = "precomputed"  # what the distances are; ``"precomputed"`` where they came without points
    points: Cloud | None = None  # gives landmarks and cover radius in place of the matrix

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the points, else of the matrix."""
        return self.points.shape if self.points else self.matrix.shape

    @property
    def distance_bytes(self) -> int:
        """Bytes of the matrix."""
        return self.matrix.nbytes

    def tree(self) -> tuple[Vector, str]:
        """Prim's algorithm."""
        return np.sort(self._tree()[0]), "prim"

    def tree_edges(self) -> Indices:
        """Leave out what joins components."""
        lengths, ends = self._tree()
        return ends[np.argsort(lengths, kind="stable")[: np.count_nonzero(lengths < np.inf)]]

    def _tree(self) -> tuple[Vector, Indices]:
        from toposcope.kernels.compiled import kernel_or_python
        from toposcope.kernels.prim import matrix_tree

        return kernel_or_python(matrix_tree, 2 * self.matrix.size)(self.matrix)

    def distances(self, chosen: Indices) -> Matrix:
        """Look them up."""
        if np.array_equal(chosen, np.arange(len(self.matrix))):
            return self.matrix
        return self.matrix[np.ix_(chosen, chosen)]

    def landmarks(self, count: int) -> tuple[Indices, Vector]:
        """Begin with the point that has the farthest other point, where there are no points."""
        if self.points:
            return self.points.landmarks(count)
        indices, radii = np.empty(count, np.int64), np.empty(count)
        nearest = np.full(len(self.matrix), np.inf)
        farthest = int(self.matrix.max(axis=1).argmax())
        for k in range(count):
            indices[k] = farthest
            np.minimum(nearest, self.matrix[farthest], out=nearest)
            nearest[farthest] = -1  # chosen, and never again: not even where all others repeat landmarks
            farthest = int(nearest.argmax())
            radii[k] = max(nearest[farthest], 0)
        return indices, radii

    def cover_radius(self, chosen: Indices) -> float:
        """Look up the nearest chosen point of each."""
        if self.points:
            return self.points.cover_radius(chosen)
        return float(self.matrix[chosen].min(axis=0).max())


def as_distances(values: ArrayLike | Any, name: str, *, infinite: bool = False) -> Matrix:
    """Return a matrix of distances between n points: symmetric, not negative, zero on the diagonal; float64.

    If `infinite`, there may be none between two points.
    """
    matrix = as_float_matrix(values, name, infinite=infinite).astype(np.float64, copy=False)
    wanted = f"{name}: expected an (n, n) matrix of distances"
    if matrix.shape[0] != matrix.shape[1]:
        raise ToposcopeError(f"{wanted}, got shape {matrix.shape}")
    if (matrix < 0).any():
        raise ToposcopeError(f"{wanted}, got {int((matrix < 0).sum())} negative entries in shape {matrix.shape}")
    if matrix.diagonal().any():
        raise ToposcopeError(
            f"{wanted}, got {np.count_nonzero(matrix.diagonal())} entries other than 0 on the diagonal of shape "
            f"{matrix.shape}; np.fill_diagonal, of tensors D.fill_diagonal_(0), removes what rounding left"
        )
    if (uneven := matrix != matrix.T).any():
        raise ToposcopeError(
            f"{wanted}, got one of shape {matrix.shape} with {int(uneven.sum()) // 2} asymmetric pairs; "
            "(D + D.T) / 2 removes what rounding left"
        )
    return matrix
