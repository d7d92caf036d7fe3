"""AdamW and gradient clipping of many runs at once, each with options of its own.

The formulas are those of `torch.optim.AdamW` and `torch.nn.utils.clip_grad_norm_`, whose options are numbers, not
tensors with a value for each run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toposcope.family.run import TrainingOptions

FIRST_DECAY, SECOND_DECAY = 0.9, 0.999
"""Of the moving averages of the gradient and its square: torch's defaults, as for a run trained alone."""
EPSILON = 1e-8
CLIP_EPSILON = 1e-6
"""Added to the norm by `clip_grad_norm_`."""


@dataclass(frozen=True)
class Factors:
    """What the updates of some steps multiply by, one row a step.

    Attributes
    ----------
    decay : Tensor, shape (steps, runs, 1)
        Of the weights: rate * decay.
    step_size : Tensor, shape (steps, runs, 1)
        The rate over the first bias correction.
    spread : Tensor, shape (steps, 1, 1)
        The root of the second bias correction.
    """

    decay: Tensor
    step_size: Tensor
    spread: Tensor

    @classmethod
    def of(cls, options: Sequence[TrainingOptions], begin: int, stop: int) -> "Factors":
        """Return the factors of the steps after `begin` up to `stop`."""
        steps = range(begin + 1, stop + 1)
        rates = torch.tensor([[each.rate(step) for each in options] for step in steps], dtype=torch.float64)
        decays = torch.tensor([each.weight_decay for each in options], dtype=torch.float64)
        counts = torch.tensor(list(steps), dtype=torch.float64)[:, None]
        dtype = torch.get_default_dtype()
        return cls(
            (rates * decays).to(dtype)[..., None],
            (rates / (1 - FIRST_DECAY**counts)).to(dtype)[..., None],
            (1 - SECOND_DECAY**counts).sqrt().to(dtype)[..., None],
        )


def clip(gradients: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Scale down the gradients of each run whose norm is above its limit; return the norms before, shape (runs,).

    Parameters
    ----------
    gradients : Tensor, shape (runs, parameters)
    limits : Tensor, shape (runs,)
    """
    norms = torch.linalg.vector_norm(gradients, dim=1)
    return gradients * (limits / (norms + CLIP_EPSILON)).clamp(max=1.0)[:, None], norms


def update(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    decay: Tensor,
    step_size: Tensor,
    spread: Tensor,
) -> None:
    """Make one update of AdamW in place.

    Parameters
    ----------
    weights, first, second, gradients : Tensor, shape (runs, parameters)
        The weights, the moving averages of the gradient and of its square, and the clipped gradient.
    decay, step_size, spread : Tensor, shape (runs, 1) or (1, 1)
        A row of `Factors`.
    """
    weights.addcmul_(weights, decay, value=-1)
    first.lerp_(gradients, 1 - FIRST_DECAY)
    second.mul_(SECOND_DECAY).addcmul_(gradients, gradients, value=1 - SECOND_DECAY)
    weights.addcdiv_(first * step_size, (second.sqrt() / spread).add_(EPSILON), value=-1)
