"""The directions in which the loss is most curved."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from toposcope.errors import ToposcopeError
from toposcope.homology.lanczos import extreme_eigenpairs
from toposcope.models.hessian_products import HessianProduct
from toposcope.models.loss_planes.directions import Axes, eigenvector_directions
from toposcope.progress import Progress, silent

MAX_PRODUCTS = 400  # with the Hessian; what has not converged after them is said not to have

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toposcope.models.summed_loss import SummedLoss


def hessian_directions(loss: "SummedLoss", seed: int, progress: Progress = silent) -> Axes:
    """Return the two eigenvectors of the Hessian with the largest eigenvalues, scaled by `eigenvector_directions`."""
    point = loss.point
    if len(point) == 1:
        raise ToposcopeError("directions: a model of one parameter has no plane")
    product = HessianProduct(loss, point)

    progress("eigenvectors", 0, MAX_PRODUCTS)

    def on_arrays(vector: "NDArray[np.floating]") -> "NDArray[np.floating]":
        progress("eigenvectors", min(product.products, MAX_PRODUCTS - 1), MAX_PRODUCTS)
        return product(torch.from_numpy(vector).to(point)).cpu().numpy()

    dtype = np.float64 if point.dtype == torch.float64 else np.float32
    found = extreme_eigenpairs(
        on_arrays, len(point), 2, 0, max_steps=MAX_PRODUCTS, rng=np.random.default_rng(seed), dtype=dtype
    ).largest
    progress("eigenvectors", MAX_PRODUCTS, MAX_PRODUCTS)
    vectors = found.vectors * np.sign(found.vectors[[0, 1], np.abs(found.vectors).argmax(axis=1)])[:, None]
    values, residuals = found.values.tolist(), (found.residuals + product.error).tolist()
    directions = eigenvector_directions(values, torch.from_numpy(vectors).to(point))
    return Axes(directions, tuple(values), tuple(residuals), found.n_reliable >= 2)
