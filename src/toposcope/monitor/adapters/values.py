"""What of a framework's log is a number."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

RESERVED = frozenset({"self", "step"})
"""Parameters of `Monitor.log`."""


def scalar_values(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and the tensors of one element, as they are."""
    return {
        name: value
        for name, value in logs.items()
        if name not in RESERVED and (isinstance(value, Real) or _is_scalar_tensor(value))
    }


def _is_scalar_tensor(value: Any) -> bool:
    from torch import Tensor

    return isinstance(value, Tensor) and value.numel() == 1
