"""A function of a flat point in place of a model's loss."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from toposcope.models.summed_loss import Block, SummedLoss


def as_loss(
    function: Callable[[Tensor], Tensor],
    point: Tensor,
    blocks: Mapping[str, Block] | None = None,
    sequences: int = 1,
) -> SummedLoss:
    """Return a differentiable function of a flat point, shape (p,), as the loss on each of some sequences."""

    def total(parameters: Sequence[Tensor], places: Sequence[int]) -> Tensor:
        return len(places) * function(torch.cat([parameter.flatten() for parameter in parameters]))

    blocks = blocks or {"point": Block(0, len(point), (len(point),))}
    every = tuple(range(sequences))
    return SummedLoss(point.detach(), blocks, (1,) * sequences, total, (every,), (8 * len(point),), {}, "function")
