"""Finds the torch optimizer inside the wrappers of frameworks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

MAX_DEPTH = 8


def innermost(optimizer: Any) -> "Optimizer":
    """Return the torch optimizer whose ``step`` is called once for each update of the weights.

    Accelerate calls the ``step`` of its wrapper for every micro-batch, and also when mixed precision skips the update.
    Hooks registered on a wrapper are never called.
    """
    from torch.optim import Optimizer

    for _ in range(MAX_DEPTH):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    found: Optimizer = optimizer
    return found
