"""Products of the Hessian of a loss with vectors, without the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from toposcope.models.summed_loss import SummedLoss, flat

# Chosen on small models (benchmarks/curvature.py).
RETAINED_BYTES, GPU_RETAINED_BYTES = 1 << 30, 1 << 34  # of graphs that are kept between products
GRAPH_FACTOR = 4  # size of the graph of a gradient, in activations
FLOAT32_STEP, FLOAT64_STEP = 2e-3, 2e-5  # of finite differences, near where truncation and rounding are equal
DISAGREEMENT = 0.01  # with double backward, beyond the errors, that shows a missing derivative

Graph = tuple[list[Tensor], tuple[Tensor, ...]]
"""Leaves, one for each parameter, and the gradient of a piece by them, with its graph."""


class HessianProduct:
    """The Hessian of a loss at a point, as a function from vectors to vectors.

    A product is a backward pass through the graph of the gradient (double backward, Pearlmutter 1994, "Fast exact
    multiplication by the Hessian"), kept between products where it fits.
    """

    def __init__(self, loss: SummedLoss, point: Tensor) -> None:
        self.loss, self.point = loss, point.detach().to(loss.point)
        self.error, self.products, self._unsure = 0.0, 0, False
        budget = GPU_RETAINED_BYTES if self.point.device.type == "cuda" else RETAINED_BYTES
        self._graphs: list[Callable[[], Graph]] = []
        for piece, size in zip(loss.pieces, loss.piece_bytes, strict=True):
            budget -= GRAPH_FACTOR * size + self.point.nbytes  # the gradient is kept too
            make = partial(self._graph, piece)
            self._graphs.append(_once(make) if budget >= 0 else make)
        self.method: Literal["double backward", "finite differences"] = "double backward"

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector, shape (p,), in the dtype of the loss."""
        return self._product(vector, range(len(self.loss.blocks)))

    def of_block(self, name: str) -> Callable[[Tensor], Tensor]:
        """Return the product with the block of the Hessian that belongs to one parameter, flat."""
        block = self.loss.block(name)
        place = list(self.loss.blocks.values()).index(block)
        return lambda vector: self._product(vector, [place])

    def _product(self, vector: Tensor, places: Sequence[int]) -> Tensor:
        self.products += 1
        vector = vector.to(self.point)
        if self.method == "double backward":
            try:
                product = self._double_backward(vector, places)
                if not self._unsure or self._agrees(product, vector, places):
                    return product
            except RuntimeError as missing:
                if not _is_no_derivative(missing):
                    raise
            self.method, self._graphs = "finite differences", []
        product, error = self._finite_differences(vector, places)
        self.error = max(self.error, error)
        return product

    def _graph(self, piece: Sequence[int]) -> Graph:
        leaves = [leaf.detach().requires_grad_() for leaf in self.loss.parameters(self.point)]
        total = self.loss.total(leaves, piece)
        self._unsure = self._unsure or (self.products == 1 and _has_python_code(total))
        gradient = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        return leaves, gradient

    def _double_backward(self, vector: Tensor, places: Sequence[int]) -> Tensor:
        blocks = list(self.loss.blocks.values())
        sizes = [blocks[place].stop - blocks[place].start for place in places]
        parts = [part.view(blocks[k].shape) for k, part in zip(places, torch.split(vector, sizes), strict=True)]
        product = torch.zeros_like(vector, dtype=torch.float64)
        for graph in self._graphs:
            leaves, gradient = graph()
            # the gradient by a parameter that the loss is linear in has no graph
            curved = [(gradient[k], part) for k, part in zip(places, parts, strict=True) if gradient[k].requires_grad]
            if not curved:
                continue
            outputs, weights = zip(*curved, strict=True)
            chosen = [leaves[place] for place in places]
            product += flat(
                torch.autograd.grad(
                    outputs, chosen, weights, retain_graph=True, allow_unused=True, materialize_grads=True
                )
            )
        return (product / self.loss.n_tokens).to(self.point.dtype)

    def _agrees(self, product: Tensor, vector: Tensor, places: Sequence[int]) -> bool:
        """Return whether a product is that of finite differences, within their error; asked once."""
        self._unsure = False
        difference, error = self._finite_differences(vector, places)
        allowed = DISAGREEMENT * float(difference.norm()) + 10 * error * float(vector.norm())
        return float((product - difference).norm()) <= allowed

    def _finite_differences(self, vector: Tensor, places: Sequence[int]) -> tuple[Tensor, float]:
        """Return a central difference of gradients, extrapolated from two steps, and its error for a unit vector."""
        blocks = list(self.loss.blocks.values())
        length = float(vector.double().norm())
        if not length:
            return torch.zeros_like(vector), 0.0
        direction = torch.zeros_like(self.point)
        sizes = [blocks[place].stop - blocks[place].start for place in places]
        for place, part in zip(places, torch.split(vector / length, sizes), strict=True):
            direction[blocks[place].start : blocks[place].stop] = part
        relative = FLOAT64_STEP if self.point.dtype == torch.float64 else FLOAT32_STEP
        step = relative * (1 + float(self.point.double().norm()))
        wide, narrow = (self._central_difference(direction, width) for width in (2 * step, step))
        product = length * (narrow + (narrow - wide) / 3).to(self.point.dtype)
        chosen = torch.cat([product[blocks[k].start : blocks[k].stop] for k in places])
        return chosen, float((wide - narrow).norm())

    def _central_difference(self, direction: Tensor, step: float) -> Tensor:
        after, before = (self.loss.gradient(self.point + sign * step * direction)[1].double() for sign in (1, -1))
        return (after - before) / (2 * step)


def _once(make: Callable[[], Graph]) -> Callable[[], Graph]:
    """Return a function that makes a graph at its first call, and returns the same one later."""
    made: list[Graph] = []

    def graph() -> Graph:
        if not made:
            made.append(make())
        return made[0]

    return graph


def _has_python_code(total: Tensor) -> bool:
    """Return whether the graph of a loss holds an operation whose backward pass is Python code."""
    stack: list[Any] = [total.grad_fn]
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
    return False


def _is_no_derivative(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or any(
        words in text for words in ("derivative for", "differentiate twice", "not implemented", "not differentiable")
    )
