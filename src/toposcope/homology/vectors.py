"""Vectors made from one diagram: Betti curve, persistence landscape, persistence image (METHODS 4).

All three use the finite bars of positive length; births and deaths are taken as (min, max), so a descending filtration
gives the same vectors as the ascending one with its ends exchanged.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.diagram import Diagram

Vector = NDArray[np.float64]


def betti_curve(diagram: Diagram, at: ArrayLike) -> NDArray[np.int64]:
    """Count the bars alive at given filtration values; a bar is half-open, [birth, death).

    Parameters
    ----------
    diagram : Diagram
    at : array-like, shape (k,)

    Returns
    -------
    ndarray, shape (k,), int64
        Essential and truncated classes are not among the finite bars and not counted.
    """
    values = np.asarray(at, dtype=np.float64)
    low, high = _ends(diagram)
    born = np.searchsorted(np.sort(low), values, side="right")
    died = np.searchsorted(np.sort(high), values, side="right")
    return np.asarray(born - died, dtype=np.int64)


def landscape(diagram: Diagram, at: ArrayLike, n_layers: int = 5) -> Vector:
    """Sample the first persistence landscape functions (Bubenik 2015).

    lambda_k(t) is the k-th largest of max(0, min(t - birth, death - t)) over the bars, with no factor sqrt(2).

    Returns
    -------
    ndarray, shape (n_layers, k)
    """
    if n_layers < 1:
        raise ToposcopeError(f"n_layers: expected at least 1, got {n_layers}")
    values = np.asarray(at, dtype=np.float64)
    low, high = _ends(diagram)
    tents = np.maximum(0.0, np.minimum(values - low[:, None], high[:, None] - values))
    layers = np.zeros((n_layers, len(values)))
    kept = -np.sort(-tents, axis=0)[:n_layers]
    layers[: len(kept)] = kept
    return layers


def persistence_image(
    diagram: Diagram, birth_edges: ArrayLike, lifetime_edges: ArrayLike, bandwidth: float
) -> NDArray[np.float64]:
    """Integrate the persistence surface over the pixels of a grid (Adams et al. 2017).

    Each bar puts an isotropic Gaussian of standard deviation `bandwidth` at (birth, lifetime), weighted by its
    lifetime; a pixel holds the exact integral over its area, not a sample at its centre.

    Returns
    -------
    ndarray, shape (len(lifetime_edges) - 1, len(birth_edges) - 1)
    """
    from scipy.special import ndtr

    if not bandwidth > 0:
        raise ToposcopeError(f"bandwidth: expected a number above 0, got {bandwidth!r}")
    low, high = _ends(diagram)
    lifetime = high - low

    def mass(edges: ArrayLike, centres: Vector) -> Vector:
        return np.diff(ndtr((np.asarray(edges, dtype=np.float64)[:, None] - centres) / bandwidth), axis=0)

    return np.asarray((mass(lifetime_edges, lifetime) * lifetime) @ mass(birth_edges, low).T)


def _ends(diagram: Diagram) -> tuple[Vector, Vector]:
    """Lower and upper ends of the bars of positive length."""
    ends = np.sort(diagram.pairs, axis=1)
    positive = ends[:, 1] > ends[:, 0]
    return ends[positive, 0], ends[positive, 1]
