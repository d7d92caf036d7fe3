"""Neural persistence of one weight matrix (Rieck et al. 2019, arXiv:1812.09764), exact on every weight."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_float_matrix, as_number
from toposcope.homology.diagram import Diagram, sorted_pairs


@dataclass(frozen=True, eq=False)
class NeuralPersistence:
    """Neural persistence of one m x n matrix; N = m + n.

    Attributes
    ----------
    mean : float
        (1/(N-1)) sum(1 - a_e): ``np_mean``.
    norm : float
        (sum (1 - a_e)^p)^(1/p): ``np_norm``, Rieck Def. 2.
    normalized : float
        ``norm`` / (N-1)^(1/p), in [0, 1] when the essential class is dropped: ``np_normalized``, Rieck Def. 3.
    deaths : ndarray, shape (N-1,), float64
        Weights of the maximum spanning tree, divided by the scale, descending.
    diagram : Diagram
        The points (1, a_e); births are 1 and the filtration descends.
    scale : float
        What |W| was divided by.
    degenerate : bool
        True for an all-zero matrix, whose persistence is 0 by convention.
    """

    mean: float
    norm: float
    normalized: float
    deaths: NDArray[np.float64]
    diagram: Diagram
    scale: float
    degenerate: bool


def neural_persistence(
    W: ArrayLike | Any,
    *,
    scale: Literal["layer"] | float = "layer",
    p: float = 2.0,
    essential: Literal["drop", "count"] = "drop",
) -> NeuralPersistence:
    """Return the neural persistence of a weight matrix.

    The complete bipartite graph on m + n vertices is filtered by descending |W| / scale; the deaths are the weights
    of its maximum spanning tree. Every weight counts: nothing is subsampled.

    Parameters
    ----------
    W : array-like or torch.Tensor, shape (m, n)
        Any floating-point dtype.
    scale : "layer" or float
        ``"layer"`` divides by max|W| of this matrix. A number, at least max|W|, is the scale of a whole network
        (Rieck Algorithm 1).
    p : float
        Order of the norm, at least 1.
    essential : "drop" or "count"
        ``"count"`` adds the point (1, 0) to every sum, as Rieck's released code does.

    Raises
    ------
    ToposcopeError
        If W is not a finite floating-point matrix, or an option is out of range.

    Notes
    -----
    Cost O(mn log(m + n)) time, O(m + n) memory. See METHODS 2.
    """
    from toposcope.kernels.bipartite_tree import bipartite_tree_weights

    if not np.isfinite(p := as_number(p, "p", 1)):
        raise ToposcopeError("p: expected a finite number, got infinity; the limit is 1 - deaths.min()")
    if essential not in ("drop", "count"):
        raise ToposcopeError(f"essential: expected 'drop' or 'count', got {essential!r}")
    matrix = as_float_matrix(W, "W")
    largest = float(np.abs(matrix).max())
    divisor = _scale(scale, largest)
    if largest == 0:
        deaths = np.ones(sum(matrix.shape) - 1)
    else:
        deaths = np.sort(bipartite_tree_weights(matrix).astype(np.float64) / divisor)[::-1]
    return _summary(deaths, divisor, p, essential, degenerate=largest == 0)


def _scale(scale: Any, largest: float) -> float:
    if isinstance(scale, str) and scale == "layer":
        return largest
    number = as_number(scale, "scale", 0) if isinstance(scale, Real) else np.nan
    if not (np.isfinite(number) and number >= largest):
        raise ToposcopeError(f"scale: expected 'layer' or a number of at least max|W| = {largest:g}, got {scale!r}")
    return number


def _summary(
    deaths: NDArray[np.float64], scale: float, p: float, essential: str, *, degenerate: bool
) -> NeuralPersistence:
    persistences = 1.0 - deaths
    if essential == "count" and not degenerate:
        persistences = np.append(persistences, 1.0)
    # Relative to the largest, high powers of small persistences do not underflow all at once.
    unit = float(persistences.max()) or 1.0
    norm = unit * float(np.sum((persistences / unit) ** p) ** (1 / p))
    return NeuralPersistence(
        mean=float(persistences.sum() / len(deaths)),
        norm=norm,
        normalized=norm / len(deaths) ** (1 / p),
        deaths=deaths,
        diagram=Diagram(sorted_pairs(np.column_stack([np.ones_like(deaths), deaths])), dimension=0, n_essential=1),
        scale=scale,
        degenerate=degenerate,
    )
