"""Neural persistence of one weight matrix (Rieck et al. 2019, arXiv:1812.09764), exact on every weight."""

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import (
    as_count,
    as_device_matrix,
    as_magnitudes,
    as_number,
    not_finite,
    warn_without_gradient,
)
from toposcope.homology.diagram import Diagram
from toposcope.typing import Vector


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
    scale : float
        What ``|W|`` was divided by.
    degenerate : bool
        True for an all-zero matrix, whose persistence is 0 by convention.
    diagram : Diagram
        The points (1, a_e); births are 1 and the filtration descends. Made on first access.
    """

    mean: float
    norm: float
    normalized: float
    deaths: Vector
    scale: float
    degenerate: bool

    def __repr__(self) -> str:
        return (
            f"NeuralPersistence(mean={self.mean:.4g}, norm={self.norm:.4g}, normalized={self.normalized:.4g}, "
            f"scale={self.scale:.4g}, {len(self.deaths)} deaths)"
        )

    @cached_property
    def diagram(self) -> Diagram:
        """The points (1, a_e); births are 1 and the filtration descends."""
        pairs = np.empty((len(self.deaths), 2))
        pairs[:, 0], pairs[:, 1] = 1, self.deaths[::-1]
        return Diagram(pairs, dimension=0, essential_births=np.ones(1))


def neural_persistence(
    W: ArrayLike | Any,
    *,
    scale: Literal["layer"] | float = "layer",
    p: float = 2.0,
    essential: Literal["drop", "count"] = "drop",
    rows: ArrayLike | None = None,
    n_threads: int = 1,
    name: str = "W",
) -> NeuralPersistence:
    """Return the neural persistence of a weight matrix.

    The complete bipartite graph on m + n vertices is filtered by descending ``|W| / scale``; the deaths are the weights
    of its maximum spanning tree. Every weight counts: nothing is subsampled.

    Parameters
    ----------
    W : array-like or torch.Tensor, shape (m, n)
        float16, bfloat16, float32 or float64, read where it lies: views, memory maps and 16-bit formats are not
        copied, and a tensor on a GPU is measured there. The result has no gradient, that of
        `toposcope.torch.neural_persistence` has. bfloat16 keeps 8 significant bits, so the value of weights
        rounded to it is within 0.4% of theirs.
    scale : "layer" or float
        ``"layer"`` divides by ``max|W|`` of this matrix. A number, at least ``max|W|``, is the scale of a whole network
        (Rieck Algorithm 1).
    p : float
        Order of the norm, at least 1.
    essential : "drop" or "count"
        ``"count"`` adds the point (1, 0) to every sum, as Rieck's released code does.
    rows : array-like of int, optional
        Measure these rows alone, for example one part of a fused matrix; they are not copied,
        but on a GPU.
    n_threads : int
        Threads for one large matrix. Where there are many matrices, one thread for each of them is quicker. The
        result does not depend on it.
    name : str
        How messages call the matrix.

    Raises
    ------
    ToposcopeError
        If W is not a finite floating-point matrix, or an option is out of range.

    Notes
    -----
    About one pass over the matrix, at worst O(mn log(m + n)) time; O(m + n) memory. Source: Rieck et al. 2019, section
    3; see ``docs/methods/neural-persistence.md``.
    """
    warn_without_gradient(W)
    p = check_sums(p, essential)
    n_threads = as_count(n_threads, "n_threads", 1)
    weights = _on_device(W, name, rows) if getattr(W, "is_cuda", False) else tree_weights(W, name, rows, n_threads)
    divisor = _scale(scale, float(weights[0]))
    return persistence_of_tree(weights, divisor, p, essential)


def neural_persistence_batch(
    stack: NDArray[Any], *, p: float = 2.0, essential: Literal["drop", "count"] = "drop"
) -> list[NeuralPersistence | None]:
    """Return the neural persistence of many small matrices of one shape, whose trees are made in one compiled call."""
    from toposcope.kernels.bipartite_prim import prim_trees
    from toposcope.kernels.bipartite_tree import is_small

    r, m, n = stack.shape
    if not is_small(m, n):
        return [None] * r
    matrix = as_magnitudes(np.ascontiguousarray(stack).reshape(r * m, n), "stack")
    keys = prim_trees(matrix.entries, m).keys
    keys.sort(axis=1)
    weights = matrix.values(keys.reshape(-1)).reshape(keys.shape)[:, ::-1]
    finite = keys[:, -1] < matrix.infinity
    return [
        persistence_of_tree(weights[k], scale, float(p), essential) if is_finite else None
        for k, (scale, is_finite) in enumerate(zip(weights[:, 0].tolist(), finite.tolist(), strict=True))
    ]


def check_sums(p: float, essential: str) -> float:
    """Return the order of the norm, once the options of the sums are checked."""
    if not math.isfinite(p := as_number(p, "p", 1)):
        raise ToposcopeError("p: expected a finite number, got infinity; the limit is 1 - deaths.min()")
    if essential not in ("drop", "count"):
        raise ToposcopeError(f"essential: expected 'drop' or 'count', got {essential!r}")
    return p


def persistence_of_tree(weights: Vector, scale: float, p: float, essential: str) -> NeuralPersistence:
    """Return the neural persistence from the weights of the maximum spanning tree, descending."""
    from toposcope.kernels.compiled import kernel_or_python
    from toposcope.kernels.death_sums import death_sums

    sums = kernel_or_python(death_sums, len(weights))
    deaths, total, unit, powers = sums(np.ascontiguousarray(weights), scale, p, essential == "count")
    norm = unit * powers ** (1 / p)
    return NeuralPersistence(
        mean=total / len(deaths),
        norm=norm,
        normalized=norm / len(deaths) ** (1 / p),
        deaths=deaths,
        scale=scale,
        # The heaviest entry of all is in every maximum spanning tree.
        degenerate=bool(weights[0] == 0),
    )


def tree_weights(W: Any, name: str, rows: ArrayLike | None = None, n_threads: int = 1) -> Vector:
    """Return the weights of the maximum spanning tree, descending."""
    from toposcope.kernels.bipartite_tree import bipartite_tree_keys

    matrix = as_magnitudes(W, name, rows)
    keys = bipartite_tree_keys(matrix, n_threads)
    if keys[0] >= matrix.infinity:
        shape = np.shape(W) if rows is None else (np.size(rows), np.shape(W)[1])
        raise not_finite(name, matrix.n_not_finite(), math.prod(matrix.shape), shape)
    return matrix.values(keys)


def _on_device(W: Any, name: str, rows: ArrayLike | None) -> Vector:
    """Return the same of a tensor on a GPU, which stays there."""
    from toposcope.kernels.device_bipartite_tree import device_tree_weights

    matrix = as_device_matrix(W, name, rows)
    weights = device_tree_weights(matrix)[::-1]
    if not math.isfinite(weights[0]):
        raise not_finite(name, int((~matrix.isfinite()).sum()), matrix.numel(), tuple(matrix.shape))
    return weights


def _scale(scale: Any, largest: float) -> float:
    if isinstance(scale, str) and scale == "layer":
        return largest
    number = as_number(scale, "scale", 0) if isinstance(scale, Real) else np.nan
    if not (math.isfinite(number) and number >= largest):
        raise ToposcopeError(f"scale: expected 'layer' or a number of at least max|W| = {largest:g}, got {scale!r}")
    return number
