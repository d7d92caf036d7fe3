"""Deep graph persistence of the matrices of a network (Girrbach et al. 2023, arXiv:2307.10865), exact on every weight.

Its graph joins every input of the network with every output, by an edge of the weight of the best path between them,
max over paths of min over edges: the (max, min) product S of the layers. S is not computed. An edge of the layered
graph from u to v lies on whole paths of weight at least t as long as t is at most

    min(|w_uv|, best path from an input to u, best path from v to an output).

With these weights the layered graph has, at any t, the components of S, and besides them the hidden units without a
path of that weight, each by itself. The edges of its maximum spanning tree so weigh what those of S do, and one for
each hidden unit weighs what the best path through the unit does; the latter are left out. The layered graph is
bipartite, even layers against odd ones, and goes through the kernels of neural persistence. Pairs of layers that are
not neighbours weigh zero there, a level at which S is connected anyway.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_float_matrix
from toposcope.homology.neural_persistence import NeuralPersistence, check_sums, persistence_of_tree, tree_weights
from toposcope.typing import Matrix, Vector


def deep_graph_persistence(
    matrices: Sequence[ArrayLike | Any],
    *,
    standardize: bool = True,
    p: float = 2.0,
    essential: Literal["drop", "count"] = "drop",
    names: Sequence[str] | None = None,
) -> NeuralPersistence:
    """Return the neural persistence of the (max, min) product of a network's layers.

    Parameters
    ----------
    matrices : sequence of array-like or torch.Tensor, shapes (n_0, n_1), (n_1, n_2) and so on
        From the inputs to the outputs, inputs along the rows: transpose the weights of ``nn.Linear``.
    standardize : bool
        Subtract the mean of each matrix and divide by its standard deviation (population) before magnitudes are
        taken. A matrix whose entries are all equal becomes zero.
    p, essential
        As of `neural_persistence`.
    names : sequence of str, optional
        How messages call the matrices.

    Returns
    -------
    NeuralPersistence
        Its ``n_0 + n_L - 1`` deaths are divided by the largest entry of the product, which is ``scale``. Of one matrix
        that is not standardized, it is its `neural_persistence`.

    Raises
    ------
    ToposcopeError
        If there is no matrix, one is not a finite floating-point matrix or does not fit the one before, or an option is
        out of range.

    Notes
    -----
    O(sum of m n) time for one or two matrices, without the product; of more, the graph of even against odd layers has
    entries that stand for no weight, about L / 4 times as many for L layers of one width. Memory is 8 bytes for each
    entry of it and of the matrices. Source: Girrbach et al. 2023, and the authors' code; see
    ``docs/methods/neural-persistence.md``.

    Examples
    --------
    >>> import numpy as np
    >>> first, second = np.array([[1.0, 0.5], [0.2, 0.4]]), np.array([[0.3], [0.8]])
    >>> deep_graph_persistence([first, second], standardize=False).deaths.tolist()
    [1.0, 0.8]
    """
    p = check_sums(p, essential)
    if not hasattr(matrices, "__len__"):
        raise ToposcopeError(f"matrices: expected a list of matrices, got {type(matrices).__name__}")
    if not len(matrices):
        raise ToposcopeError("matrices: expected at least one, got none")
    names = names or [f"matrices[{k}]" for k in range(len(matrices))]
    if len(names) != len(matrices):
        raise ToposcopeError(f"names: expected one of each of the {len(matrices)} matrices, got {len(names)}")
    layers = [_magnitudes(W, name, standardize) for W, name in zip(matrices, names, strict=True)]
    for (first, one), (second, other) in pairwise(zip(layers, names, strict=True)):
        if first.shape[1] != second.shape[0]:
            raise ToposcopeError(
                f"{other}: has {second.shape[0]} rows, but {one} before it {first.shape[1]} columns; each matrix takes "
                "the outputs of the one before along its rows"
            )
    weights = _product_tree(layers)
    return persistence_of_tree(weights, float(weights[0]), p, essential)


def _magnitudes(W: Any, name: str, standardize: bool) -> Matrix:
    """Return the magnitudes of a matrix in float64, standardized before if wanted."""
    matrix: Matrix = as_float_matrix(W, name).astype(np.float64)
    if standardize:
        least, most = float(matrix.min()), float(matrix.max())
        if least == most:
            return np.zeros_like(matrix)  # else what is divided by is rounding
        matrix /= max(-least, most)  # squares neither overflow nor vanish
        matrix -= matrix.mean()
        entries = matrix.ravel(order="K")
        matrix /= np.sqrt(entries @ entries / len(entries))
    return np.abs(matrix, out=matrix)


def _product_tree(layers: Sequence[Matrix]) -> Vector:
    """Return the weights of the maximum spanning tree of the (max, min) product, descending."""
    if len(layers) == 1:
        return tree_weights(layers[0], "the layer")
    reached, reaching = [np.full(len(layers[0]), np.inf)], [np.full(layers[-1].shape[1], np.inf)]
    for W in layers:
        reached.append(np.minimum(W, reached[-1][:, None]).max(axis=0))
    for W in reversed(layers):
        reaching.append(np.minimum(W, reaching[-1]).max(axis=1))
    reaching.reverse()
    best = [np.minimum(*ends) for ends in zip(reached, reaching, strict=True)]  # of the paths through each unit
    sizes = [len(unit) for unit in best]
    starts = [sum(sizes[k % 2 : k : 2]) for k in range(len(sizes))]
    graph = np.zeros((sum(sizes[::2]), sum(sizes[1::2])))
    for k, W in enumerate(layers):
        into = graph.T if k % 2 else graph
        block = into[starts[k] : starts[k] + sizes[k], starts[k + 1] : starts[k + 1] + sizes[k + 1]]
        np.minimum(W, reached[k][:, None], out=block)
        np.minimum(block, reaching[k + 1], out=block)
    weights, counts = np.unique(tree_weights(graph, "the layered graph"), return_counts=True)
    for hidden in best[1:-1]:
        np.subtract.at(counts, np.searchsorted(weights, hidden), 1)
    return np.repeat(weights, counts)[::-1]
