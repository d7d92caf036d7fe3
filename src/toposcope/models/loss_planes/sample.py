"""Where a plane is sampled: a grid, or scattered points."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix

MIN_SIDE = 3
MIN_POINTS = 9


@dataclass(frozen=True, eq=False)
class Sample:
    """Points of a plane, in units of its directions.

    Attributes
    ----------
    coordinates : ndarray, shape (n, 2), float64
        Along the first and the second direction; the checkpoint is the origin.
    shape : (int, int) or None
        Of a grid whose first index goes with the first direction, in C order; None of scattered points.
    """

    coordinates: Matrix
    shape: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.coordinates)

    def half(self) -> "tuple[Sample, np.ndarray[tuple[int], np.dtype[np.int64]]]":
        """Return the sample of half the resolution, and which of these points are in it.

        Of a grid it is every second row and column, from the first on; of scattered points, the first quarter.
        """
        if self.shape is None:
            chosen = np.arange(max(MIN_POINTS, len(self) // 4))
            return Sample(self.coordinates[chosen], None), chosen
        places = np.arange(len(self)).reshape(self.shape)[::2, ::2]
        return Sample(self.coordinates[places.ravel()], (places.shape[0], places.shape[1])), places.ravel()

    def border(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return which points lie on the border: of the grid, or of the convex hull."""
        inside = np.zeros(len(self), dtype=bool)
        if self.shape is not None:
            inside.reshape(self.shape)[1:-1, 1:-1] = True
            return ~inside
        from scipy.spatial import ConvexHull

        inside[:] = True
        inside[ConvexHull(self.coordinates).vertices] = False
        return ~inside


def grid_sample(shape: tuple[int, int], span: float | tuple[float, float]) -> Sample:
    """Return a grid from -span to span in both directions, indexing ij: row i lies at the i-th first coordinate.

    Parameters
    ----------
    shape : (int, int)
        Points along the first and the second direction, each at least 3. The checkpoint is a point of the grid if both
        are odd.
    span : float or (float, float)
        Largest coordinate along each direction.

    Raises
    ------
    ToposcopeError
        If the shape or the span is out of range.

    Examples
    --------
    >>> grid_sample((3, 5), (1, 2)).coordinates[1]
    array([-1., -1.])
    """
    spans = span if isinstance(span, tuple) else (span, span)
    if min(shape) < MIN_SIDE:
        raise ToposcopeError(f"plane: a grid of {shape[0]} x {shape[1]}; it needs at least {MIN_SIDE} points a side")
    _check_spans(spans)
    # Whole numbers first, so that the middle of an odd number of points is exactly 0.
    axes = [np.arange(1 - n, n, 2) * (size / (n - 1)) for n, size in zip(shape, spans, strict=True)]
    return Sample(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2), shape)


def scattered_sample(
    n: int, span: float | tuple[float, float], seed: int, how: Literal["latin", "uniform"] = "latin"
) -> Sample:
    """Return the origin and random points of the rectangle from -span to span.

    Parameters
    ----------
    n : int
        Number of points, the origin included; at least 9.
    span : float or (float, float)
    seed : int
    how : "latin" or "uniform"
        A Latin hypercube (McKay, Beckman & Conover 1979) has one point in each of n - 1 equal slices of either axis.

    Raises
    ------
    ToposcopeError
        If the number or the span is out of range.
    """
    from scipy.stats import qmc

    spans = span if isinstance(span, tuple) else (span, span)
    if n < MIN_POINTS:
        raise ToposcopeError(f"plane: {n} scattered points; it needs at least {MIN_POINTS}")
    _check_spans(spans)
    rng = np.random.default_rng(derive_seed(seed, "points of a plane"))
    drawn = qmc.LatinHypercube(2, seed=rng).random(n - 1) if how == "latin" else rng.random((n - 1, 2))
    return Sample(np.concatenate([np.zeros((1, 2)), (2 * drawn - 1) * np.array(spans)]), None)


def _check_spans(spans: tuple[float, float]) -> None:
    if not all(np.isfinite(size) and size > 0 for size in spans):
        raise ToposcopeError(f"plane: a span of {spans[0]} x {spans[1]}; both must be positive")
