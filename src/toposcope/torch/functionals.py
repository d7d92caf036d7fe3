"""Numbers, vectors and distances of diagrams with gradients; values are those of `toposcope.homology`."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_count, as_positive
from toposcope.homology.diagram import Diagram, as_diagram, as_edges, as_sequence
from toposcope.homology.distances import matching, unending_costs
from toposcope.torch.diagrams import TensorDiagram, norms, on_host, widened
from toposcope.typing import Indices

MAX_DEVIATIONS = 40.0
"""Standard deviations beyond which a Gaussian and its derivatives are 0 in float64."""


def total(diagram: TensorDiagram, scale_free: bool = False) -> Tensor:
    """Return the sum of all lifetimes.

    Parameters
    ----------
    diagram : TensorDiagram
    scale_free : bool
        Divide by the Frobenius norm of the points (or of the matrix of distances) that the diagram is of, whose
        gradient is included: the total of W / ||W||. Diagrams that scaling does not change, those of cosine distances
        and of neural persistence by layer, are not divided. All points 0 give 0.

    Returns
    -------
    torch.Tensor, shape ()
    """
    lifetimes = _of(diagram).lifetimes
    if not scale_free:
        return lifetimes.sum()
    # in 32 bits at least, as the total may be beyond the range of 16
    norm = diagram.norm
    if not norm.isfinite():
        raise ToposcopeError(
            f"diagram: the norm of the points or distances is infinite in {norm.dtype}; take scale_free=False"
        )
    return (widened(lifetimes) / torch.where(norm == 0, 1.0, norm)).sum().to(lifetimes.dtype)


def entropy(diagram: TensorDiagram) -> Tensor:
    """Return -sum p_i ln p_i (nats) over the bars of positive length, p_i = lifetime / total; 0 where there are none.

    Returns
    -------
    torch.Tensor, shape ()
    """
    lifetimes = _of(diagram).lifetimes
    positive = widened(lifetimes[lifetimes > 0])
    if not len(positive):
        return lifetimes.sum() * 0
    positive = positive / positive.detach().max()  # the sum of huge ones is infinite
    shares = positive / positive.sum()
    return -(shares * shares.log()).sum().to(lifetimes.dtype)


def landscape(diagram: TensorDiagram, at: ArrayLike | Tensor, n_layers: int = 5) -> Tensor:
    """Sample the first persistence landscape functions, shape (n_layers, k), at k filtration values without gradients.

    Arguments, errors and values are those of `toposcope.homology.landscape`. Piecewise linear in births and deaths:
    second derivatives are 0. For n bars O(nk) time and memory.
    """
    low, high = _ends(diagram)
    values = torch.as_tensor(as_sequence(at, "at")).to(low)
    tents = torch.minimum(values[:, None] - low, high - values[:, None]).clamp(min=0)
    largest = tents.topk(min(as_count(n_layers, "n_layers", 1), len(low)), dim=1).values.T
    return torch.cat([largest, largest.new_zeros(n_layers - len(largest), len(values))])


def image(
    diagram: TensorDiagram, birth_edges: ArrayLike | Tensor, lifetime_edges: ArrayLike | Tensor, bandwidth: float
) -> Tensor:
    """Integrate the persistence surface over pixels, shape (lifetimes, births).

    Arguments, errors and values are those of `toposcope.homology.persistence_image`.
    """
    bandwidth = as_positive(bandwidth, "bandwidth")
    low, high = _ends(diagram)

    def mass(edges: ArrayLike | Tensor, name: str, centres: Tensor) -> Tensor:
        corners = torch.as_tensor(as_edges(edges, name)).to(centres)
        deviations = ((corners[:, None] - centres) / bandwidth).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        below: Tensor = torch.special.ndtr(deviations)
        return below.diff(dim=0)

    lifetimes = high - low
    masses = mass(lifetime_edges, "lifetime_edges", lifetimes), mass(birth_edges, "birth_edges", low)
    with torch.autocast(lifetimes.device.type, enabled=False):  # in the dtype of the points
        return (masses[0] * lifetimes).matmul(masses[1].T)


def wasserstein(diagram: TensorDiagram, target: Diagram | TensorDiagram, order: Literal[1, 2] = 2) -> Tensor:
    """Return the exact Wasserstein distance to another diagram, the diagonal included, ground metric l-infinity.

    Parameters
    ----------
    diagram : TensorDiagram
    target : Diagram or TensorDiagram
        Of the same dimension. The second kind gets gradients too.
    order : 1 or 2

    Returns
    -------
    torch.Tensor, shape ()

    Raises
    ------
    ToposcopeError
        If the dimensions or the numbers of essential classes differ, or the order is another.

    Notes
    -----
    The cheapest matching is found by `toposcope.homology.matching` in float64, and held fixed. Equal diagrams have
    distance 0 and gradient 0. Classes without a death cost what they cost there, without gradient.
    """
    detached, of_target = _detached(_of(diagram)), _detached(target)
    partners, unending = matching(detached, of_target, order), unending_costs(detached, of_target)
    other = target.pairs if isinstance(target, TensorDiagram) else torch.as_tensor(target.pairs)
    pairs = diagram.pairs.sort(dim=1).values
    others = other.to(pairs).sort(dim=1).values
    near = np.flatnonzero(partners >= 0)
    far = partners[near]
    costs = torch.cat(
        [
            (pairs[near.tolist()] - others[far.tolist()]).abs().amax(dim=1),
            _to_diagonal(pairs, near),
            _to_diagonal(others, far),
            torch.as_tensor(unending).to(pairs),
        ]
    )
    return norms(widened(costs)).to(costs.dtype) if order == 2 and len(costs) else costs.sum()


def _of(diagram: Any) -> TensorDiagram:
    if not isinstance(diagram, TensorDiagram):
        raise ToposcopeError(
            f"diagram: expected a TensorDiagram, got {type(diagram).__name__}; toposcope.torch.rips returns a list of "
            "them, one per dimension"
        )
    return diagram


def _to_diagonal(ends: Tensor, matched: Indices) -> Tensor:
    """Return the distance to the diagonal of the bars that are not matched."""
    alone = np.setdiff1d(np.arange(len(ends)), matched).tolist()
    return (ends[alone, 1] - ends[alone, 0]) / 2


def _ends(diagram: TensorDiagram) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the bars."""
    births, deaths = _of(diagram).births, diagram.deaths
    return (deaths, births) if diagram.descending else (births, deaths)


def _detached(diagram: Any) -> Diagram:
    """Return a diagram without gradients, its points in the same order."""
    if isinstance(diagram, TensorDiagram):
        pairs = on_host(diagram.pairs, "diagram").double().numpy()
        births = np.full(diagram.n_essential, float(diagram.descending))  # of H0, that of neural persistence at 1
        return Diagram(pairs, diagram.dimension, essential_births=births)
    return as_diagram(diagram, "target")
