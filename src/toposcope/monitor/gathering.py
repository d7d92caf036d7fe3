"""Copies of single parameters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def gather(parameter: "Tensor") -> "Tensor":
    """Return a copy of a parameter."""
    return parameter.detach().clone()
