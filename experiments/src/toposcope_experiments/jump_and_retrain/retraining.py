"""Jump away from a checkpoint and train back by gradient descent (Horoi et al. 2021, arXiv:2102.00485)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from toposcope.extend import SummedLoss


@dataclass(frozen=True, eq=False)
class Retraining:
    """Where gradient descent leads after a jump."""

    # loss (nats per token) at the checkpoint, after the jump and after retraining. Not finite where it diverges
    loss: float
    jumped: float
    retrained: float
    # share of the rise of the loss that retraining undoes: 1 if all, more if it ends below the checkpoint, 0 if none.
    # NaN if the jump did not raise the loss
    loss_return: float
    distance: float  # from the checkpoint after retraining, over the length of the jump: 0 if the weights return
    # distance to where the same descent leads without the jump, over the length of the jump. The descent of the
    # checkpoint itself does not count as a failure to return
    separation: float
    offset: Tensor  # shape (p,); the weights after retraining less those of the checkpoint


def jump_and_retrain(loss: SummedLoss, jumps: Sequence[Tensor], rate: float, steps: int) -> list[Retraining]:
    """Jump from the point of a loss, and descend for some steps."""
    point = loss.point
    before, unjumped, _ = _descend(loss, point, rate, steps)
    found = []
    for jump in jumps:
        jumped, end, retrained = _descend(loss, point + jump, rate, steps)
        length, rise = _norm(jump), jumped - before
        found.append(
            Retraining(
                loss=before,
                jumped=jumped,
                retrained=retrained,
                loss_return=(jumped - retrained) / rise if rise > 0 else math.nan,
                distance=_norm(end - point) / length,
                separation=_norm(end - unjumped) / length,
                offset=end - point,
            )
        )
    return found


def _descend(loss: SummedLoss, start: Tensor, rate: float, steps: int) -> tuple[float, Tensor, float]:
    """Return the loss at the start, where gradient descent ends, and the loss there."""
    first, place = math.nan, start
    for k in range(steps):
        value, gradient = loss.gradient(place)
        first = value if k == 0 else first
        place = place - rate * gradient
    return first, place, loss.value(place)


def _norm(vector: Tensor) -> float:
    return float(vector.double().norm())
