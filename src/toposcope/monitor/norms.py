"""Norms of tensors on their own device, with a relative error below 1e-6 in every dtype, and cheap counts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK_SIZE = 1024
"""Numbers that are summed in float32 on the CPU; over longer sums, rounding errors reach parts in a thousand."""


def norms(tensors: "Sequence[Tensor]") -> "list[Tensor]":
    """Return the L2 norms of local tensors, each a scalar on the tensor's device, without synchronising a GPU."""
    import torch

    found: dict[int, Tensor] = {}
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        if not tensor.numel():
            found[place] = torch.zeros((), device=tensor.device)
        elif tensor.device.type == "cpu":
            found[place] = _norm_on_cpu(tensor)
        else:
            groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    for (device, _), places in groups.items():
        several = torch._foreach_norm([tensors[k] for k in places], 2, dtype=precision(device))  # noqa: SLF001
        found |= dict(zip(places, several, strict=True))
    return [found[place] for place in range(len(tensors))]


def distances(before: "Sequence[Tensor]", after: "Sequence[Tensor]") -> "list[Tensor]":
    """Return the L2 norms of the differences of local tensors; ``before`` is overwritten."""
    import torch

    half = {torch.float16, torch.bfloat16}
    pairs = list(zip(before, after, strict=True))
    wide = iter(norms([old.sub_(new) for old, new in pairs if old.dtype not in half]))
    # a 16-bit difference would be rounded
    return [norms([new.float().sub_(old)])[0] if old.dtype in half else next(wide) for old, new in pairs]


def nonfinite(tensor: "Tensor") -> "Tensor":
    """Return the number of NaN and infinite values, a scalar on the tensor's device."""
    return tensor.isfinite().logical_not_().sum()


def has_nonzero(matrix: "Tensor", units: int) -> "Tensor":
    """Return whether each row (``units`` = 0) or column (1) of a matrix has a nonzero element."""
    import torch

    if matrix.device.type != "cpu" or not matrix.numel():
        return matrix.any(dim=1 - units)
    # A norm is many times faster than `any`; rows whose squares underflow are checked element by element.
    found: Tensor = torch.linalg.vector_norm(matrix, dim=1 - units) != 0
    zero = (~found).nonzero().flatten()
    if len(zero):
        found[zero] = matrix.index_select(units, zero).any(dim=1 - units)
    return found


def precision(device: "torch.device") -> "torch.dtype":
    """Return the widest floating-point dtype of a device."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def _norm_on_cpu(tensor: "Tensor") -> "Tensor":
    import torch

    flat = tensor.reshape(-1)
    whole = flat.numel() // BLOCK_SIZE * BLOCK_SIZE
    narrow = None if tensor.dtype == torch.float64 else torch.float32
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, BLOCK_SIZE), dim=1, dtype=narrow)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float64)
    norm: Tensor = torch.linalg.vector_norm(torch.cat([blocks.double(), rest[None]]))
    if not 1e-15 < norm < 1e15:  # squares may underflow or overflow in float32
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm
