"""Directions in the space of the weights that span a plane of the loss, and where the plane is sampled.

All directions of a plane are orthogonal to each other. What a coordinate of 1 means depends on where they come from:

- random: every filter is moved by as much as its own length (Li et al. 2018, "Visualizing the Loss Landscape of Neural
  Nets", arXiv:1712.09913, section 4);
- eigenvectors of the Hessian: the quadratic approximation changes by one nat a token;
- the path of training: 1.25 times the largest coordinate of a checkpoint on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from toposcope.errors import ToposcopeError
from toposcope.progress import Progress, silent
from toposcope.seeds import derive_seed
from toposcope.typing import Matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from toposcope.models.summed_loss import Block, SummedLoss
    from toposcope.typing import Vector

MAX_PRODUCTS = 400  # for the directions of a plane; what has not converged after them is reported so
PATH_SHARE = 0.8  # largest coordinate of a checkpoint in a plane along the path of training
MIN_SIDE = 3
MIN_POINTS = 9
PART = 1 << 20  # entries of the weights that are widened to float64 at once


@dataclass(frozen=True, eq=False)
class Axes:
    """The directions that span a plane, and how well they are known."""

    vectors: Tensor  # shape (2, p)
    # of eigenvectors of the Hessian: Rayleigh quotients, and the norms of Hv - value v, the error of the products
    # included. Empty of other directions
    eigenvalues: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()
    converged: bool = True  # whether the directions are what they are called: eigenvectors may not be


def random_directions(point: Tensor, blocks: Mapping[str, Block], seed: int) -> Tensor:
    """Draw two Gaussian directions, normalised filter by filter (Li et al. 2018, equation 1)."""
    import torch

    directions = torch.zeros(2, len(point), dtype=point.dtype)
    for name, block in blocks.items():
        filters = _filters(point, block)
        if filters is None or filters.shape[1] < 2:
            continue
        pair = _orthogonal_pair(filters, np.random.default_rng(derive_seed(seed, "direction", name)))
        parts = np.stack([part.T if block.transposed else part for part in pair]).reshape(2, -1)
        directions[:, block.start : block.stop] = torch.from_numpy(parts).to(point.dtype)
    if not directions.any(dim=1).all():
        raise ToposcopeError(
            "directions: no matrix of the model has weights other than zero; take other directions, or another step"
        )
    return directions.to(point.device)


def can_move(point: Tensor, blocks: Mapping[str, Block]) -> bool:
    """Return whether there is a filter that `random_directions` moves."""
    every = (_filters(point, block) for block in blocks.values())
    return any(filters is not None and filters.shape[1] >= 2 and filters.any() for filters in every)


def _filters(point: Tensor, block: Block) -> Matrix | None:
    """Return the filters of a parameter as rows, in float64; None if it has one dimension."""
    if len(block.shape) < 2:
        return None
    weights = point[block.start : block.stop].detach().cpu().double().reshape(block.shape).numpy()
    return np.ascontiguousarray(weights.T) if block.transposed else weights.reshape(len(weights), -1)


def _orthogonal_pair(filters: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Draw two matrices whose rows have the lengths of `filters` and are orthogonal to the same row of the other."""
    lengths = np.linalg.norm(filters, axis=1, keepdims=True)
    first, second = rng.standard_normal(filters.shape), rng.standard_normal(filters.shape)
    first = first / np.linalg.norm(first, axis=1, keepdims=True)
    for _ in range(2):  # once leaves rounding errors where the draws are nearly parallel
        second -= (second * first).sum(axis=1, keepdims=True) * first
    return first * lengths, second / np.linalg.norm(second, axis=1, keepdims=True) * lengths


def eigenvector_directions(eigenvalues: Sequence[float], eigenvectors: Tensor) -> Tensor:
    """Scale eigenvectors of the Hessian so that the quadratic approximation changes by one nat at coordinate 1."""
    import torch

    if not all(np.isfinite(value) and value != 0 for value in eigenvalues):
        raise ToposcopeError(
            f"directions: the Hessian's eigenvalues are {', '.join(f'{value:.3g}' for value in eigenvalues)}, which "
            "set no scale; take random directions"
        )
    scales = [(2 / abs(value)) ** 0.5 for value in eigenvalues]
    return eigenvectors * torch.tensor(scales, dtype=eigenvectors.dtype, device=eigenvectors.device)[:, None]


def hessian_directions(loss: SummedLoss, seed: int, progress: Progress = silent) -> Axes:
    """Return the two eigenvectors of the Hessian with the largest eigenvalues, scaled by `eigenvector_directions`."""
    import torch

    from toposcope.homology.eigenpairs import extreme_eigenpairs
    from toposcope.models.hessian_products import HessianProduct

    point = loss.point
    if len(point) == 1:
        raise ToposcopeError("directions: a model of one parameter has no plane")
    product = HessianProduct(loss, point)
    progress("eigenvectors", 0, MAX_PRODUCTS)

    def on_arrays(vector: NDArray[np.floating]) -> NDArray[np.floating]:
        progress("eigenvectors", min(product.products, MAX_PRODUCTS - 1), MAX_PRODUCTS)
        return product(torch.from_numpy(vector).to(point)).cpu().numpy()

    dtype = np.float64 if point.dtype == torch.float64 else np.float32
    pairs, _ = extreme_eigenpairs(
        on_arrays, len(point), 2, 0, max_products=MAX_PRODUCTS, rng=np.random.default_rng(seed), dtype=dtype
    )
    progress("eigenvectors", MAX_PRODUCTS, MAX_PRODUCTS)
    if len(pairs.values) < 2:
        raise ToposcopeError(
            f"directions: the two largest eigenvalues did not converge in {product.products} products; "
            "take random directions"
        )
    vectors = pairs.vectors * np.sign(pairs.vectors[[0, 1], np.abs(pairs.vectors).argmax(axis=1)])[:, None]
    values, residuals = pairs.values.tolist(), (pairs.residuals + product.error).tolist()
    directions = eigenvector_directions(values, torch.from_numpy(vectors).to(point))
    return Axes(directions, tuple(values), tuple(residuals), pairs.n_reliable >= 2)


def path_directions(point: Tensor, path: Sequence[Tensor]) -> tuple[Tensor, Matrix, float]:
    """Return the two directions that hold most of a path as seen from a point: its principal components there.

    The components are those of the differences to the point (Li et al. 2018, section 7), which are not centred, so that
    the plane goes through the point.
    """
    import torch

    if len(path) < 2:
        raise ToposcopeError("directions: a plane along a path needs two other checkpoints; name a series of more")
    products = np.zeros((len(path), len(path)))
    for part in _parts(len(point)):
        differences = _differences(point, path, part)
        products += (differences @ differences.T).numpy()
    if not np.isfinite(products).all():
        raise ToposcopeError("directions: a checkpoint of the path has weights that are not finite; leave it out")
    # Few rows, many columns: the eigenvectors of their inner products give the components.
    squares, vectors = np.linalg.eigh(products)
    squares, vectors = squares[::-1], vectors[:, ::-1]
    if not squares[1] > 1e-12 * squares[0]:
        raise ToposcopeError(
            f"directions: {len(path)} other checkpoints do not span a plane with this one; name a series of more"
        )
    lengths: Vector = np.sqrt(squares[:2])
    coordinates = vectors[:, :2] * lengths
    signs = np.sign(coordinates[np.abs(coordinates).argmax(axis=0), [0, 1]])  # fixes what the solver leaves open
    coordinates = coordinates * signs
    scale = float(np.abs(coordinates).max()) / PATH_SHARE
    weights = torch.from_numpy(np.ascontiguousarray((vectors[:, :2] * signs / lengths).T * scale))
    directions = torch.empty(2, len(point), dtype=point.dtype)
    for part in _parts(len(point)):
        directions[:, part] = (weights @ _differences(point, path, part)).to(point.dtype)
    return directions.to(point.device), coordinates / scale, float(squares[:2].sum() / np.maximum(squares, 0).sum())


def points_on_disk(points: Iterable[Tensor]) -> list[Tensor]:
    """Write points to a temporary file, one after the other, and return them as views of it.

    The file has no name and is gone with the last view.
    """
    import torch

    n, shape, dtype = 0, (0,), np.dtype(np.float32)
    with tempfile.TemporaryFile() as file:
        for point in points:
            values = point.detach().cpu().numpy()
            n, shape, dtype = n + 1, values.shape, values.dtype
            try:
                file.write(values.data)
            except OSError as error:
                raise ToposcopeError(
                    f"{tempfile.gettempdir()}: cannot hold the checkpoints of a path, {values.nbytes * n / 1e9:.3g} GB "
                    f"so far ({error.strerror}); name another folder in TMPDIR, or a series of fewer steps"
                ) from error
        if not n:
            return []
        file.flush()
        # private: torch takes no read-only memory
        rows = np.memmap(file, dtype, "c", shape=(n, *shape))
    return [torch.from_numpy(row) for row in rows]


def _parts(n: int) -> list[slice]:
    return [slice(start, start + PART) for start in range(0, n, PART)]


def _differences(point: Tensor, path: Sequence[Tensor], part: slice) -> Tensor:
    """Return some entries of the differences to the point, in float64."""
    import torch

    return torch.stack([other[part].double().cpu() for other in path]) - point[part].double().cpu()


@dataclass(frozen=True, eq=False)
class Sample:
    """Points of a plane, in units of its directions."""

    coordinates: Matrix  # shape (n, 2); along the first and the second direction; the checkpoint is the origin
    # of a grid whose first index goes with the first direction, in C order; None of scattered points
    shape: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.coordinates)

    def half(self) -> tuple[Sample, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Return the sample of half the resolution, and which of these points are in it.

        Of a grid it is every second row and column, from the first on; of scattered points, the first quarter.
        """
        if self.shape is None:
            chosen = np.arange(max(MIN_POINTS, len(self) // 4))
            return Sample(self.coordinates[chosen], None), chosen
        places = np.arange(len(self)).reshape(self.shape)[::2, ::2]
        return Sample(self.coordinates[places.ravel()], (places.shape[0], places.shape[1])), places.ravel()

    def border(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
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
    """Return a grid from -span to span in both directions, indexing ij: row i lies at the i-th first coordinate."""
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
    """Return the origin and random points of the rectangle from -span to span."""
    from scipy.stats import qmc

    spans = span if isinstance(span, tuple) else (span, span)
    if n < MIN_POINTS:
        raise ToposcopeError(f"plane: {n} scattered points; it needs at least {MIN_POINTS}")
    _check_spans(spans)
    rng = np.random.default_rng(derive_seed(seed, "points of a plane"))
    uniform = qmc.LatinHypercube(2, seed=rng).random(n - 1) if how == "latin" else rng.random((n - 1, 2))
    return Sample(np.concatenate([np.zeros((1, 2)), (2 * uniform - 1) * np.array(spans)]), None)


def _check_spans(spans: tuple[float, float]) -> None:
    if not all(np.isfinite(size) and size > 0 for size in spans):
        raise ToposcopeError(f"plane: a span of {spans[0]} x {spans[1]}; both must be positive")
