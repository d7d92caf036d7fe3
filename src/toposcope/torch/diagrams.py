"""Diagrams whose births and deaths are tensors with gradients, and what their values are gathered with."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.homology.arrays import as_array
from toposcope.typing import Indices

compiler: Any = torch.compiler  # has no types


@dataclass(frozen=True, eq=False)
class TensorDiagram:
    """The finite points of a persistence diagram in one dimension, with gradients.

    Attributes
    ----------
    births, deaths : torch.Tensor, shape (k,)
        In the order of `pairing`, in the dtype and on the device of what they were made from.
    pairing : ndarray, int64
        Where the values were gathered. H0: shape (k, 2), the ends of the edge that ends each bar, which begins at 0.
        H1: shape (k, 4), the ends of the edge that begins each bar, then of the one that ends it. Neural persistence:
        shape (k, 2), row and column of the entry that ends each bar, which begins at 1.
    dimension : int
        Homology dimension.
    n_essential : int
        Classes that never die.
    descending : bool
        Whether bars die below their birth, as in neural persistence.
    source : torch.Tensor or None
        The points or distances, which the diagram grows with; None where scaling them changes no bar.
    """

    births: Tensor
    deaths: Tensor
    pairing: Indices
    dimension: int
    n_essential: int = 0
    descending: bool = False
    source: Tensor | None = None

    def __repr__(self) -> str:
        return f"TensorDiagram(H{self.dimension}: {len(self.deaths)} finite bars, {self.n_essential} essential)"

    @cached_property
    def pairs(self) -> Tensor:
        """Births and deaths, shape (k, 2)."""
        return torch.stack([self.births, self.deaths], 1)

    @cached_property
    def lifetimes(self) -> Tensor:
        """Length of every bar, shape (k,); with a pairing that was kept too long, one of H1 may be negative."""
        return self.births - self.deaths if self.descending else self.deaths - self.births

    @cached_property
    def norm(self) -> Tensor:
        """Frobenius norm of the points or distances, in 32 bits at least; 1 where scaling them changes no bar."""
        if self.source is None:
            return widened(self.deaths.new_ones(()))
        return norms(widened(self.source).reshape(-1))


def norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norms along the last axis; where it is 0, so are its first and second derivatives."""
    squares = rows.square().sum(-1)
    limits = torch.finfo(squares.dtype)
    # Second derivatives of the root take its fourth power.
    if not squares.numel() or _all_between(squares.detach(), math.sqrt(limits.tiny), math.sqrt(limits.max)):
        return squares.sqrt()
    # Divided by a power of two, rows have no power beyond the range of the dtype.
    largest = rows.detach().abs().amax(-1, keepdim=True)
    is_zero = largest == 0
    unit = torch.where(is_zero, 1.0, largest / (2 * torch.frexp(largest).mantissa))
    relative = torch.where(is_zero, 1.0, rows / unit)  # never 0, where the root has no derivative
    return torch.where(is_zero, 0.0, unit * relative.square().sum(-1, keepdim=True).sqrt()).squeeze(-1)


def _all_between(values: Tensor, low: float, high: float) -> bool:
    least, most = values.aminmax()
    return low < number(least) and number(most) <= high


def number(value: Tensor) -> float:
    """Return what a tensor of one entry holds."""
    try:
        return float(value.item())
    except RuntimeError as fault:
        if "vmap" not in str(fault):
            raise
        raise ToposcopeError(
            "numbers are out of reach within torch.func.vmap; pass the batch in its place, with a list of pairings if "
            "they are kept"
        ) from fault


def widened(values: Tensor) -> Tensor:
    """Return 16-bit floats as 32-bit ones, in which sums are made; others as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_tensor(values: Any, name: str, function: str) -> None:
    """Refuse what is no tensor of floating-point numbers."""
    if not isinstance(values, Tensor):
        raise ToposcopeError(
            f"{name}: expected a torch.Tensor, got {type(values).__name__}; toposcope.{function} takes arrays"
        )
    if values.is_nested or values.layout != torch.strided or values.is_meta:
        kind = "a nested" if values.is_nested else "a meta" if values.is_meta else f"a {values.layout}"
        raise ToposcopeError(f"{name}: expected a dense tensor, got {kind} one; pass one with all its entries")
    if not values.dtype.is_floating_point:
        raise ToposcopeError(f"{name}: expected floating-point entries, got {values.dtype}; convert with .float()")


def on_host(values: Tensor, name: str) -> Tensor:
    """Return what is paired, without gradients."""
    host = values.detach().cpu()
    try:
        host.data_ptr()
    except RuntimeError as fault:
        raise ToposcopeError(
            f"{name}: its numbers are out of reach within transforms of torch.func and torch.export; pass the batch in "
            "place of vmap, else use torch.autograd or give a pairing found outside"
        ) from fault
    return host


def check_count(pairing: Any, n: int) -> None:
    """Refuse pairings that are not one of each of n clouds or matrices."""
    got = len(pairing) if isinstance(pairing, (list, tuple)) else type(pairing).__name__
    if pairing is not None and got != n:
        raise ToposcopeError(f"pairing: expected a list, one of each of the {n} matrices, got {got}")


def as_places(values: Any, name: str, width: int, bounds: tuple[int, ...]) -> Indices:
    """Return rows of indices that a user kept, each column below its bound; shape (k, width)."""
    places = as_array(values, name)
    if places.ndim != 2 or places.shape[1] != width or places.dtype.kind not in "iu":
        raise ToposcopeError(
            f"{name}: expected whole numbers of shape (k, {width}), got {places.dtype} of shape {places.shape}; pass "
            "what an earlier call returned"
        )
    if places.size and (places.min() < 0 or (places >= np.array(bounds)).any()):
        raise ToposcopeError(
            f"{name}: its numbers go from {places.min()} to {places.max()}, beyond the shape of the tensor; pass what "
            "an earlier call returned for a tensor of this shape"
        )
    return places.astype(np.int64, copy=False)
