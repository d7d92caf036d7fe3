"""Neural persistence of weight matrices with gradients."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal, overload

import torch
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import not_finite, shown
from toposcope.homology.pairings import neural_persistence_pairing, neural_persistence_pairing_batch
from toposcope.torch.diagrams import (
    TensorDiagram,
    as_places,
    check_tensor,
    compiler,
    norms,
    number,
    on_host,
    widened,
)
from toposcope.torch.point_clouds import by_shape
from toposcope.typing import Indices

Scale = Literal["layer"] | float | Tensor


@dataclass(frozen=True, eq=False)
class TensorNeuralPersistence:
    """Neural persistence of one m x n matrix, with gradients; N = m + n, p = 2.

    Attributes
    ----------
    deaths : torch.Tensor, shape (N - 1,)
        Weights of the maximum spanning tree, divided by the scale, in the order of `pairing`.
    scale : torch.Tensor, shape ()
        What ``|W|`` was divided by.
    pairing : ndarray, shape (N - 1, 2), int64
        Row and column of each of these weights, the heaviest first.
    """

    deaths: Tensor
    scale: Tensor
    pairing: Indices

    def __repr__(self) -> str:
        return f"TensorNeuralPersistence(mean={self.mean:.4g}, {len(self.deaths)} deaths)"

    @cached_property
    def mean(self) -> Tensor:
        """Mean of 1 - death."""
        return (1 - self.deaths).mean()

    @cached_property
    def norm(self) -> Tensor:
        """Root of the sum of (1 - death)^2."""
        return norms(widened(1 - self.deaths)).to(self.deaths.dtype)

    @cached_property
    def normalized(self) -> Tensor:
        """The norm, divided by the root of N - 1."""
        return self.norm / math.sqrt(len(self.deaths))

    @cached_property
    def diagram(self) -> TensorDiagram:
        """The points (1, death), from the lightest; the filtration descends."""
        deaths = self.deaths.flip(0)
        return TensorDiagram(torch.ones_like(deaths), deaths, self.pairing[::-1], 0, n_essential=1, descending=True)


@overload
def neural_persistence(W: Tensor, pairing: Any = ..., scale: Scale = ...) -> TensorNeuralPersistence: ...
@overload
def neural_persistence(
    W: Sequence[Tensor], pairing: Any = ..., scale: Scale = ...
) -> list[TensorNeuralPersistence]: ...
def neural_persistence(W: Tensor | Sequence[Tensor], pairing: Any = None, scale: Scale = "layer") -> Any:
    """Return the neural persistence of a weight matrix, with gradients.

    Which entries form the maximum spanning tree is found exactly and without gradients; their values are gathered
    from the matrix. The scale is part of the gradient.

    Parameters
    ----------
    W : torch.Tensor, shape (m, n)
        In any floating-point dtype, on any device. Several matrices: a tensor of shape (b, m, n), or a list of tensors
        of any shapes.
    pairing : optional
        What an earlier call returned for this matrix, or its `pairing`: it is kept, and none is searched for; the
        largest entry is looked up anew. For several matrices, a list of these.
    scale : "layer", float or torch.Tensor
        ``"layer"`` divides by ``max|W|``. A number, at least ``max|W|``, is the scale of a whole network; of a tensor
        it has a gradient too.

    Returns
    -------
    TensorNeuralPersistence
        Of several matrices, a list of these, in their order.

    Raises
    ------
    ToposcopeError
        If W is no finite floating-point tensor, or a pairing or the scale does not fit it.

    Notes
    -----
    Where magnitudes are equal, the gradient is one of several valid ones. An all-zero matrix has persistence 0 and
    gradient 0. Types, ``torch.compile`` and ``torch.func`` are as for `toposcope.torch.rips`. Source: Rieck et al.
    2019, section 3; see ``docs/methods/gradients.md``.

    Examples
    --------
    >>> import torch
    >>> W = torch.tensor([[2.0, -1.0]], requires_grad=True)
    >>> found = neural_persistence(W)
    >>> found.deaths.tolist()
    [1.0, 0.5]
    >>> found.mean.backward()
    >>> W.grad.tolist()
    [[0.125, 0.25]]
    """
    if compiler.is_dynamo_compiling():  # the search cannot be traced
        return compiler.disable(neural_persistence)(W, pairing, scale)
    if isinstance(W, Tensor) and W.ndim == 2:
        check_tensor(W, "W", "neural_persistence")
        places = neural_persistence_pairing(on_host(W, "W")) if pairing is None else _kept(pairing, W, "pairing")
        return _from_tree(W, places, scale, pairing is None, "W")
    matrices = W.unbind() if isinstance(W, Tensor) and W.ndim else W

    def of_stack(stack: Tensor, places: list[int]) -> list[TensorNeuralPersistence]:
        names = [f"W[{k}]" for k in places]
        found = (
            neural_persistence_pairing_batch(on_host(stack, "W"), names=names)
            if pairing is None
            else [_kept(pairing[k], stack[0], f"pairing[{k}]") for k in places]
        )
        trees = zip(places, found, names, strict=True)
        return [_from_tree(matrices[k], tree, scale, pairing is None, name) for k, tree, name in trees]

    return by_shape(W, of_stack, "W", "neural_persistence", pairing)


def _kept(pairing: Any, W: Tensor, name: str) -> Indices:
    kept = getattr(pairing, "pairing", pairing)
    if isinstance(pairing, TensorDiagram):  # from the lightest
        kept = kept[::-1]
    places = as_places(kept, name, 2, tuple(W.shape))
    if len(places) != sum(W.shape) - 1:
        raise ToposcopeError(
            f"{name}: {len(places)} entries of a matrix of shape {tuple(W.shape)}, whose tree has {sum(W.shape) - 1}"
        )
    return places


def _from_tree(W: Tensor, places: Indices, scale: Scale, is_exact: bool, name: str) -> TensorNeuralPersistence:
    entries = torch.as_tensor(places[:, 0] * W.shape[1] + places[:, 1], device=W.device)
    weights = widened(W.reshape(-1).index_select(0, entries)).abs()
    largest = weights[0] if is_exact else widened(W).abs().max()  # the heaviest entry is in every tree
    if not is_exact and not math.isfinite(number(largest)):
        raise not_finite(name, int((~W.isfinite()).sum()), W.numel(), W.shape)
    divisor = largest if isinstance(scale, str) and scale == "layer" else _as_scale(scale, number(largest), weights)
    deaths = weights / divisor if number(divisor) else 1 + 0 * weights
    return TensorNeuralPersistence(deaths.to(W.dtype), divisor.to(W.dtype), places)


def _as_scale(scale: Any, largest: float, weights: Tensor) -> Tensor:
    value: Any = scale.item() if isinstance(scale, Tensor) and scale.numel() == 1 else scale
    is_number = isinstance(value, Real)
    if not is_number or not largest <= value <= sys.float_info.max:
        raise ToposcopeError(
            f"scale: expected 'layer' or a number of at least max|W| = {largest:g}, got {shown(scale)}"
        )
    return scale.reshape(()).to(weights) if isinstance(scale, Tensor) else weights.new_tensor(float(value))
