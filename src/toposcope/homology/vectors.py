"""Vectors made from one diagram: Betti curve, persistence landscape, persistence image.

Formulas and sources: ``docs/methods/diagrams.md``.

All three use the finite bars of positive length; births and deaths are taken as (min, max), so a descending filtration
gives the same vectors as the ascending one with its ends exchanged. Essential and truncated classes are not among the
finite bars. Nothing is scaled by the diagram: the same grid gives vectors that can be compared between diagrams.

Other libraries mean other numbers by the same names; each docstring says how GUDHI (3.13, ``gudhi.representations``),
persim (0.4) and giotto-tda (by its source) differ.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_positive
from toposcope.homology.diagram import Diagram, as_diagram
from toposcope.typing import Matrix, Vector

MAX_TENTS = 2_000_000
"""Values of tents that a landscape holds at a time; of more bars than these, one filtration value's."""


def betti_curve(diagram: Diagram, at: ArrayLike) -> NDArray[np.int64]:
    """Count the bars alive at given filtration values; a bar is half-open, [birth, death).

    Parameters
    ----------
    diagram : Diagram
    at : array-like, shape (k,)
        Filtration values in any order, infinities allowed.

    Returns
    -------
    ndarray, shape (k,), int64

    Raises
    ------
    ToposcopeError
        If `at` is not a sequence of numbers, or holds NaN.

    Notes
    -----
    A bar is alive at its birth and not at its death, so that of two bars [0, 1) and [1, 2) one is alive at 1. GUDHI's
    ``BettiCurve`` and giotto-tda's do the same on their grids; GUDHI's also counts essential classes, if given. For n
    bars O((n + k) log n) time, O(n + k) memory.
    """
    values = _as_sequence(at, "at")
    low, high = _ends(diagram)
    born = np.searchsorted(np.sort(low), values, side="right")
    died = np.searchsorted(np.sort(high), values, side="right")
    return np.asarray(born - died, dtype=np.int64)


def landscape(diagram: Diagram, at: ArrayLike, n_layers: int = 5) -> Vector:
    """Sample the first persistence landscape functions (Bubenik 2015).

    Layer number i at t is the i-th largest of max(0, min(t - birth, death - t)) over the bars: half a lifetime at the
    middle of a bar, with no factor sqrt(2).

    Parameters
    ----------
    diagram : Diagram
    at : array-like, shape (k,)
        Filtration values in any order, infinities allowed.
    n_layers : int
        At least 1. Layers beyond the number of bars are 0.

    Returns
    -------
    ndarray, shape (n_layers, k), float64
        The largest first.

    Raises
    ------
    ToposcopeError
        If `at` is not a sequence of numbers or holds NaN, or `n_layers` is out of range.

    Notes
    -----
    Exact samples, up to one rounding. GUDHI's ``Landscape`` is sqrt(2) times this (its bars are turned by 45 degrees);
    persim's and giotto-tda's are this. For n bars O(nk) time, O(n + k) memory.
    """
    n_layers = as_count(n_layers, "n_layers", 1)
    values = _as_sequence(at, "at")
    low, high = _ends(diagram)
    layers = np.zeros((n_layers, len(values)))
    n_kept = min(n_layers, len(low))
    for start in range(0, len(values) if n_kept else 0, step := max(1, MAX_TENTS // max(len(low), 1))):
        part = values[start : start + step, None]
        tents = np.maximum(0.0, np.minimum(part - low, high - part))
        largest = np.partition(tents, len(low) - n_kept, axis=1)[:, len(low) - n_kept :]
        layers[:n_kept, start : start + step] = -np.sort(-largest.T, axis=0)
    return layers


def persistence_image(diagram: Diagram, birth_edges: ArrayLike, lifetime_edges: ArrayLike, bandwidth: float) -> Matrix:
    """Integrate the persistence surface over the pixels of a grid (Adams et al. 2017).

    Each bar puts an isotropic Gaussian of standard deviation `bandwidth` at (birth, lifetime), weighted by its
    lifetime; a pixel holds the exact integral over its area, not a sample at its centre.

    Parameters
    ----------
    diagram : Diagram
    birth_edges, lifetime_edges : array-like, shape (w + 1,) and (h + 1,)
        Where pixels begin and end, ascending; infinite first and last edges are allowed.
    bandwidth : float
        Above 0 and finite, in units of the filtration.

    Returns
    -------
    ndarray, shape (h, w), float64
        Rows are lifetimes from the shortest, columns are births from the earliest.

    Raises
    ------
    ToposcopeError
        If the edges are not ascending sequences of at least two numbers, or `bandwidth` is out of range.

    Notes
    -----
    The integral is the product of two differences of the normal distribution function, whose rounding is 1e-16 of a
    bar's weight. Refining the grid splits pixels and changes no sum; over the whole plane the image sums to the total
    lifetime. What falls beyond the edges is lost, lifetimes below 0 included. persim's ``PersistenceImager`` integrates
    with the same weight, but has births for rows. GUDHI's ``PersistenceImage`` samples the surface at grid points, and
    weighs every bar 1 by default. giotto-tda's counts the bars of each pixel, clips to the grid those beyond
    it, and weighs pixels relative to the heaviest. For n bars O(n (h + w) + nhw) time, O(n (h + w)) memory.
    """
    from scipy.special import ndtr

    bandwidth = as_positive(bandwidth, "bandwidth")
    x_edges, y_edges = _as_edges(birth_edges, "birth_edges"), _as_edges(lifetime_edges, "lifetime_edges")
    low, high = _ends(diagram)
    lifetime = high - low

    def mass(edges: Vector, centres: Vector) -> Vector:
        with np.errstate(over="ignore"):  # infinitely many bandwidths away is far enough
            return np.diff(ndtr((edges[:, None] - centres) / bandwidth), axis=0)

    return np.asarray((mass(y_edges, lifetime) * lifetime) @ mass(x_edges, low).T)


def _as_sequence(values: ArrayLike | Any, name: str) -> Vector:
    """Return filtration values as a float64 vector without NaN; it may be empty."""
    array = as_array(values, name)
    if array.dtype.kind not in "fiu":
        raise ToposcopeError(f"{name}: expected a sequence of real numbers, got entries of type {array.dtype}")
    if array.ndim != 1:
        raise ToposcopeError(f"{name}: expected a sequence, shape (k,), got shape {array.shape}; flatten it")
    vector: Vector = array.astype(np.float64)
    if n_undefined := int(np.isnan(vector).sum()):
        raise ToposcopeError(f"{name}: {n_undefined} of {len(vector)} values are NaN; leave them out")
    return vector


def _as_edges(values: ArrayLike | Any, name: str) -> Vector:
    """Return the edges of pixels, ascending, at least two."""
    edges = _as_sequence(values, name)
    if len(edges) < 2 or not (edges[1:] > edges[:-1]).all():
        raise ToposcopeError(
            f"{name}: expected at least two edges, each above the one before, got {edges.tolist()!r:.80}"
        )
    return edges


def _ends(diagram: Diagram) -> tuple[Vector, Vector]:
    """Lower and upper ends of the bars of positive length."""
    ends = np.sort(as_diagram(diagram, "diagram").pairs, axis=1)
    positive = ends[:, 1] > ends[:, 0]
    return ends[positive, 0], ends[positive, 1]
