"""Several planes around a checkpoint: the shape of each, and how far it depends on plane, text and resolution."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from toposcope.models.loss_planes.directions import Axes, Sample
from toposcope.models.loss_planes.shape import Graph, Shape, distances_between, shape_of
from toposcope.models.loss_planes.surface import ROUNDING, Surface, evaluate
from toposcope.progress import Progress, silent
from toposcope.typing import Matrix

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.models.summed_loss import SummedLoss


@dataclass(frozen=True, eq=False)
class Plane:
    """A plane through a checkpoint and the shape of the loss on it."""

    surface: Surface
    shape: Shape  # of the loss on the whole text at all points
    half: Shape  # at half the resolution
    by_batch: list[Shape]  # of the loss on each batch of the text; empty if there is one alone
    curvature: Matrix  # shape (2, 2); second derivatives of the loss at the checkpoint, along the directions
    curvature_error: float  # how far an eigenvalue of them may be wrong (see `slice_curvature`)
    axes: Axes  # what spans the plane


@dataclass(frozen=True)
class Estimate:
    """A statistic over planes, and what it depends on."""

    mean: float  # over the planes in which it is defined
    n_planes: int  # how many these are
    # standard deviation (ddof 1) over planes, and over the batches of the text within a plane, averaged over planes;
    # None where fewer than two have the statistic
    planes: float | None = None
    batches: float | None = None
    resolution: float | None = None  # mean absolute difference to half the resolution
    # of values that are computed by products with the Hessian, the largest numerical error of a plane: of eigenvalues
    # of the Hessian the residual
    error: float | None = None


def measure_plane(
    loss: SummedLoss,
    axes: Axes,
    sample: Sample,
    *,
    graph: Graph = "triangulation",
    batches: int = 1,
    progress: Progress = silent,
) -> Plane:
    """Measure the loss on a plane and describe it."""
    surface = evaluate(loss, axes.vectors, sample, batches=batches, progress=progress)
    shape, half = shape_of(surface, graph), shape_of(surface.half(), graph)
    if "centre_height" in shape.statistics:  # the checkpoint need not be one of every second point
        lowest = float(half.values.min() - shape.values.min())
        half.statistics["centre_height"] = shape.statistics["centre_height"] - lowest
    curvature, error = slice_curvature(loss, axes.vectors)
    return Plane(
        surface,
        shape,
        half,
        [shape_of(surface.on_batch(k), graph) for k in range(batches)] if batches > 1 else [],
        curvature,
        error,
        axes,
    )


def is_differentiable(loss: SummedLoss) -> bool:
    """Return whether a loss has a gradient by its weights; a function that returns a float has none."""
    import torch

    if not loss.one_by_one:
        return True
    leaves = [leaf.detach().requires_grad_() for leaf in loss.parameters(loss.point)]
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a number of a loss with a gradient is taken
        return bool(loss.total(leaves, loss.pieces[0]).requires_grad)


def slice_curvature(loss: SummedLoss, directions: Tensor) -> tuple[Matrix, float]:
    """Return the second derivatives of the loss at the checkpoint along some directions, and their error.

    They are by Hessian-vector products, or of a function without a gradient by second differences of its values.
    """
    from toposcope.models.hessian_products import HessianProduct

    if not is_differentiable(loss):
        return _second_differences(loss, directions)
    product = HessianProduct(loss, loss.point)
    products = [product(direction).double() for direction in directions]
    matrix: Matrix = np.array([[float(one @ other.double()) for other in directions] for one in products])
    asymmetry = float(np.abs(matrix - matrix.T).max()) / 2
    # Each entry is wrong by the error of a product with a unit vector times two lengths; no eigenvalue by more than the
    # Frobenius norm of these (Weyl 1912).
    of_products = product.error * float(directions.double().square().sum())
    return np.asarray((matrix + matrix.T) / 2), max(asymmetry, of_products)


def _second_differences(loss: SummedLoss, directions: Tensor) -> tuple[Matrix, float]:
    """Extrapolate from two steps, near where truncation and rounding are equal; exact for a polynomial of degree 5."""
    step = (loss.rounding or ROUNDING * float(np.finfo(np.float32).eps)) ** 0.25
    coarse, fine = (_differences_at(loss, directions, width) for width in (2 * step, step))
    rounding = 4 * loss.rounding * abs(loss.value_at_checkpoint()) / step**2
    return fine + (fine - coarse) / 3, float(np.abs(fine - coarse).max()) + rounding


def _differences_at(loss: SummedLoss, directions: Tensor, step: float) -> Matrix:
    def value(a: int, b: int) -> float:
        return loss.value(loss.point + step * (a * directions[0] + b * directions[1]))

    middle = value(0, 0)
    first, second = (value(a, b) - 2 * middle + value(-a, -b) for a, b in ((1, 0), (0, 1)))
    mixed = (value(1, 1) - value(1, -1) - value(-1, 1) + value(-1, -1)) / 4
    return np.array([[first, mixed], [mixed, second]]) / step**2


def estimates(planes: Sequence[Plane]) -> dict[str, Estimate]:
    """Return the statistics of several planes (see `shape_of`), each with its spread.

    Besides those of `shape_of`: ``slice_curvature_max`` and ``slice_curvature_min``, the eigenvalues of the second
    derivatives at the checkpoint within a plane, and ``slice_curvature_mean``; of planes along eigenvectors
    ``eigenvalue_1`` and ``eigenvalue_2`` of the Hessian.
    """
    names = list(dict.fromkeys(name for plane in planes for name in plane.shape.statistics))
    result = {name: _estimate(name, planes) for name in names}
    eigenvalues = np.array([np.linalg.eigvalsh(plane.curvature) for plane in planes])
    if np.isfinite(eigenvalues).all():
        error = max(plane.curvature_error for plane in planes)
        for name, values in (
            ("max", eigenvalues[:, 1]),
            ("min", eigenvalues[:, 0]),
            ("mean", eigenvalues.mean(axis=1)),
        ):
            result[f"slice_curvature_{name}"] = replace(_over_planes(values), error=error)
    axes = planes[0].axes  # several planes along eigenvectors have the same two
    for k, (value, residual) in enumerate(zip(axes.eigenvalues, axes.residuals, strict=True), start=1):
        result[f"eigenvalue_{k}"] = Estimate(value, len(planes), error=residual)
    return result


def between_planes(planes: Sequence[Plane]) -> dict[str, float]:
    """Return the mean distances between the diagrams of all pairs of planes (see `distances_between`)."""
    return distances_between([plane.shape.tree.diagram for plane in planes])


def _estimate(name: str, planes: Sequence[Plane]) -> Estimate:
    defined = [plane for plane in planes if name in plane.shape.statistics]
    values = np.array([plane.shape.statistics[name] for plane in defined])
    by_batch = [[shape.statistics[name] for shape in plane.by_batch if name in shape.statistics] for plane in defined]
    spreads = [np.std(each, ddof=1) for each in by_batch if len(each) > 1]
    changes = [
        abs(value - plane.half.statistics[name])
        for value, plane in zip(values, defined, strict=True)
        if name in plane.half.statistics
    ]
    over_planes = _over_planes(values)
    return Estimate(
        over_planes.mean,
        len(values),
        over_planes.planes,
        float(np.mean(spreads)) if spreads else None,
        float(np.mean(changes)) if changes else None,
    )


def _over_planes(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Estimate:
    return Estimate(float(values.mean()), len(values), float(values.std(ddof=1)) if len(values) > 1 else None)
