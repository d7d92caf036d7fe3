"""What every filtration in this package returns, and vectors made from it: Betti curve, persistence landscape, image.

Formulas and sources: ``docs/methods/diagrams.md``.

The vectors use the finite bars of positive length; births and deaths are taken as (min, max), so a descending
filtration gives the same vectors as the ascending one with its ends exchanged. Essential and truncated classes are not
among the finite bars. Nothing is scaled by the diagram: the same grid gives vectors that can be compared between
diagrams.

Other libraries mean other numbers by the same names; each docstring says how GUDHI (3.13, ``gudhi.representations``),
persim (0.4) and giotto-tda (by its source) differ.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array, as_count, as_number, as_positive
from toposcope.typing import Matrix, Vector

if TYPE_CHECKING:
    from toposcope.charts.chart import Chart
    from toposcope.charts.diagrams import Bars

MAX_TENTS = 2_000_000  # values of tents that a landscape holds at a time
N_LEVELS, MAX_BASINS = 64, 100  # of a profile


@dataclass(frozen=True, eq=False)
class Diagram:
    """A persistence diagram in one dimension: its finite points, and the births of what is not among them.

    Attributes
    ----------
    pairs : ndarray, shape (k, 2), float64
        Finite (birth, death) points, sorted; bars of length zero are kept. In a descending filtration
        (neural persistence) death is below birth. Anything else is refused with a `ToposcopeError`, and so are
        counts and a dimension that are no whole numbers of at least 0, and a negative cover radius.
    dimension : int
        Homology dimension.
    n_essential : int
        Classes that never die; may be left out where their births are given.
    n_truncated : int
        Classes still alive at the filtration cap, whose death is not known; as well.
    cover_radius : float
        0 if every point was used; else the covering radius r of the landmarks: the diagram is within bottleneck
        distance 2r of the exact one. nan if the points that were left out are not available.
    engine : str
        The algorithm that ran, where there is a choice: ``sort``, ``prim``, ``boruvka``, ``lunes``. It does
        not change the diagram, and is not stored in a study.
    births : ndarray, shape (b,), float64, or None
        Where the diagram is of landmarks: the births of all bars of positive length of all points, ascending, exact.
    essential_births, truncated_births : ndarray, float64, or None
        When the classes are born that never die, shape (n_essential,), and those alive at the cap, shape
        (n_truncated,); ascending. None where only their number is known. They are finite.
    """

    pairs: Matrix
    dimension: int
    n_essential: int = 0
    n_truncated: int = 0
    cover_radius: float = 0.0
    engine: str = ""
    births: Vector | None = None
    essential_births: Vector | None = None
    truncated_births: Vector | None = None

    def __post_init__(self) -> None:
        usual = type(self.pairs) is np.ndarray and self.pairs.dtype == np.float64
        pairs = self.pairs if usual else as_array(self.pairs, "pairs")
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "fiu":
            raise ToposcopeError(
                f"pairs: expected (birth, death) points, shape (k, 2), got {pairs.dtype} of shape {pairs.shape}"
            )
        if not np.isfinite(pairs).all():
            raise ToposcopeError(
                f"pairs: {int((~np.isfinite(pairs)).any(axis=1).sum())} of {len(pairs)} points are not finite; give "
                "when what never dies is born as essential_births"
            )
        if not usual:
            object.__setattr__(self, "pairs", pairs.astype(np.float64, copy=False))
        for name in ("dimension", "n_essential", "n_truncated"):
            object.__setattr__(self, name, as_count(getattr(self, name), name, 0))
        for kind in ("essential", "truncated"):
            if (given := getattr(self, f"{kind}_births")) is not None:
                self._keep_births(kind, np.sort(as_sequence(given, f"{kind}_births")))
        if not isinstance(self.cover_radius, float) or self.cover_radius < 0:
            object.__setattr__(self, "cover_radius", as_number(self.cover_radius, "cover_radius", 0))

    def _keep_births(self, kind: str, births: Vector) -> None:
        """Take the births of one kind of class without a death, and with them their number."""
        count = getattr(self, f"n_{kind}")
        if not np.isfinite(births).all() or count not in (0, len(births)):
            raise ToposcopeError(
                f"{kind}_births: expected {count or len(births)} finite numbers, one of each class that n_{kind} "
                f"counts, got {len(births)}, {int((~np.isfinite(births)).sum())} of them infinite"
            )
        object.__setattr__(self, f"{kind}_births", births)
        object.__setattr__(self, f"n_{kind}", len(births))

    def __repr__(self) -> str:
        parts = [f"{len(self.pairs)} finite bars"]
        if len(self.pairs):
            parts.append(f"longest {self.lifetimes.max():.4g}")
        parts.append(f"{self.n_essential} essential")
        if self.n_truncated:
            parts.append(f"{self.n_truncated} truncated")
        return f"Diagram(H{self.dimension}: {', '.join(parts)})"

    @property
    def lifetimes(self) -> Vector:
        """Length of every finite bar, ``|death - birth|``, zero lengths included; shape (k,)."""
        with np.errstate(over="ignore"):  # beyond the range it is infinite
            return np.abs(self.pairs[:, 1] - self.pairs[:, 0])

    def plot(self, *others: "Diagram") -> "Chart":
        """Draw the diagram, births across and deaths up.

        Parameters
        ----------
        *others : Diagram
            Drawn in the same figure: other dimensions, or diagrams of other clouds.

        Returns
        -------
        Chart
            Shows itself in a notebook; ``save("diagram.svg")`` writes it.

        Examples
        --------
        >>> import numpy as np
        >>> from toposcope import rips
        >>> angles = np.arange(12) * np.pi / 6
        >>> h0, h1 = rips(np.column_stack([np.cos(angles), np.sin(angles)]))
        >>> h0.plot(h1).title
        'H0: 11 bars, the longest 0.518; H1: 1 bar of 1.21'
        """
        from toposcope.charts.diagrams import persistence_diagram

        return persistence_diagram(self._bars(others))

    def barcode(self, *others: "Diagram") -> "Chart":
        """Draw the longest bars, from birth to death; `others` as in `plot`."""
        from toposcope.charts.diagrams import barcode

        return barcode(self._bars(others))

    def _bars(self, others: "tuple[Diagram, ...]") -> "list[Bars]":
        """Return the bars of this and other diagrams for charts, each with a name of its own."""
        from toposcope.charts.diagrams import Bars

        bars: list[Bars] = []
        for diagram in (self, *(as_diagram(other, "others") for other in others)):
            name = f"H{diagram.dimension}"
            n_same = sum(each.name.partition(" ")[0] == name for each in bars)
            name = f"{name} ({n_same + 1})" if n_same else name
            births = [b for b in (diagram.essential_births, diagram.truncated_births) if b is not None]
            unending = np.concatenate([np.empty(0), *births])
            bars.append(Bars(name, diagram.pairs, diagram.n_essential, diagram.n_truncated, unending))
        return bars


def as_diagram(value: Any, name: str) -> Diagram:
    """Return a diagram; refuse anything else."""
    if not isinstance(value, Diagram):
        raise ToposcopeError(
            f"{name}: expected a Diagram, got {type(value).__name__}; Diagram(pairs, dimension) makes one"
        )
    return value


def sorted_pairs(pairs: Matrix) -> Matrix:
    """Sort points by birth, then death, so that equal diagrams are equal arrays."""
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


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
    values = as_sequence(at, "at")
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
    values = as_sequence(at, "at")
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
    x_edges, y_edges = as_edges(birth_edges, "birth_edges"), as_edges(lifetime_edges, "lifetime_edges")
    low, high = _ends(diagram)
    lifetime = high - low

    def mass(edges: Vector, centres: Vector) -> Vector:
        with np.errstate(over="ignore"):  # infinitely many bandwidths away is far enough
            return np.diff(ndtr((edges[:, None] - centres) / bandwidth), axis=0)

    return np.asarray((mass(y_edges, lifetime) * lifetime) @ mass(x_edges, low).T)


def as_sequence(values: ArrayLike | Any, name: str) -> Vector:
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


def as_edges(values: ArrayLike | Any, name: str) -> Vector:
    """Return the edges of pixels, ascending, at least two."""
    edges = as_sequence(values, name)
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
