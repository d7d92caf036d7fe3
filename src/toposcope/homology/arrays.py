"""Checking what the user hands in, once, before any mathematics."""

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError


def as_float_matrix(values: ArrayLike | Any, name: str) -> NDArray[np.float32] | NDArray[np.float64]:
    """Return a finite 2-D float32 or float64 array; 16-bit floats are widened, which is exact.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (m, n)
        A tensor may require gradients or lie on another device.
    name : str
        How messages call the argument.

    Raises
    ------
    ToposcopeError
        If it is not a floating-point matrix, is empty, or holds NaN or infinities.
    """
    matrix = _as_array(values, name)
    if matrix.ndim != 2:
        raise ToposcopeError(f"{name}: expected a 2-D matrix, got shape {matrix.shape}; reshape it to (rows, columns)")
    if 0 in matrix.shape:
        raise ToposcopeError(f"{name}: the matrix is empty, shape {matrix.shape}; it needs at least one entry")
    if matrix.dtype.kind != "f":
        raise ToposcopeError(
            f"{name}: expected floating-point entries, got {matrix.dtype} of shape {matrix.shape}; "
            "convert with .astype(float)"
        )
    matrix = matrix.astype(np.float32 if matrix.dtype.itemsize <= 4 else np.float64, copy=False)
    finite = np.isfinite(matrix)
    if not finite.all():
        raise ToposcopeError(
            f"{name}: {int(matrix.size - finite.sum())} of {matrix.size} entries are NaN or infinite, shape "
            f"{matrix.shape}; persistence is defined for finite entries only"
        )
    return matrix


def _as_array(values: Any, name: str) -> NDArray[Any]:
    """Return a NumPy view of arrays, nested lists and torch tensors (known by their methods: torch is not imported)."""
    try:
        if hasattr(values, "detach") and hasattr(values, "cpu"):
            values = values.detach().cpu()
            if str(values.dtype) in ("torch.bfloat16", "torch.float16"):
                values = values.float()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError and NotImplementedError
        reason = " ".join(str(error).split())
        raise ToposcopeError(f"{name}: expected a matrix of numbers, got {type(values).__name__}: {reason}") from error


def as_number(value: Any, name: str, least: float) -> float:
    """Return an option that must be a real number of at least some value, infinity allowed.

    Raises
    ------
    ToposcopeError
        Naming the option and what was expected.
    """
    number = float(value) if isinstance(value, Real) else float("nan")
    if not number >= least:
        raise ToposcopeError(f"{name}: expected a number of at least {least:g}, got {value!r}")
    return number


def as_count(value: Any, name: str, least: int) -> int:
    """Return an option that must be a whole number of at least some value."""
    count = int(value) if isinstance(value, Integral) else least - 1
    if count < least:
        raise ToposcopeError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return count
