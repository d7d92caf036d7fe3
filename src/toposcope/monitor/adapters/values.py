"""Picks the numbers from a framework's log."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

RESERVED = frozenset({"self", "step"})
"""Names that `Monitor.log` uses for its own parameters."""


def scalar_values(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are numbers or tensors with one element, unchanged."""
    return {
        name: value
        for name, value in logs.items()
        if name not in RESERVED and (isinstance(value, Real) or _is_scalar_tensor(value))
    }


def _is_scalar_tensor(value: Any) -> bool:
    from torch import Tensor

    return isinstance(value, Tensor) and value.numel() == 1
