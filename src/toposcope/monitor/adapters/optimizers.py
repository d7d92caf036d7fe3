"""The optimizer that changes the weights, inside those that frameworks wrap around it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

MAX_DEPTH = 8


def innermost(optimizer: Any) -> "Optimizer":
    """Return the optimizer of torch whose ``step`` is called once an update.

    The ``step`` of a wrapper is called for every micro-batch in Accelerate, and also where mixed precision skips the
    update; the hooks of a wrapper are never called.
    """
    from torch.optim import Optimizer

    for _ in range(MAX_DEPTH):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    found: Optimizer = optimizer
    return found
