"""Checks of the user's arguments, once, before any mathematics."""

import math
import reprlib
import sys
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.errors import ToposcopeError, message_of, warn_caller
from toposcope.kernels.magnitudes import BFLOAT16, EXPONENT_BITS, Magnitudes, widened
from toposcope.typing import Indices, Matrix

COMPUTED_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
MAX_WHOLE = 1 << 53  # up to which float64 holds every whole number
MAX_NORMAL_EXPONENT = 1000  # two to a power nearer to zero than this is a normal number of float64


def warn_without_gradient(values: Any) -> None:
    """Warn, once in a process, that what is computed from a tensor that requires gradients has none."""
    if getattr(values, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        _warn_once()


@cache
def _warn_once() -> None:
    warn_caller(
        "the result has no gradient, though the tensor requires one: toposcope.torch has rips and neural_persistence "
        "with gradients; pass tensor.detach() where none is needed"
    )


def as_float_matrix(
    values: ArrayLike | Any, name: str, *, infinite: bool = False
) -> NDArray[np.float32] | NDArray[np.float64]:
    """Return a finite 2-D float32 or float64 array; 16-bit floats and whole numbers are widened, which is exact.

    Parameters
    ----------
    values : array-like or torch.Tensor, shape (m, n)
        A tensor may require gradients or lie on another device.
    name : str
        How messages call the argument.
    infinite : bool
        Allow infinities.

    Raises
    ------
    ToposcopeError
        If it is no matrix of real numbers, is empty, or holds NaN, infinities or whole numbers beyond 2^53.
    """
    matrix = _as_computed(values, name)
    if not (~np.isnan(matrix) if infinite else np.isfinite(matrix)).all():
        raise _not_finite_in(matrix, name)
    return matrix


def as_scaled_matrix(values: ArrayLike | Any, name: str) -> tuple[Matrix, int]:
    """Return the same in float64, in units of a power of two in which no entry is above one, and that power."""
    matrix = _as_computed(values, name)
    largest = float(np.abs(matrix).max())  # NaN if one entry is
    if not math.isfinite(largest):
        raise _not_finite_in(matrix, name)
    exponent = math.frexp(largest)[1]
    return scaled(matrix, -exponent), exponent


def scaled(values: NDArray[Any], exponent: int, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return values times two to a power, in float64; infinite where they are beyond its range.

    They are written to `out`, which may be `values` itself; a new array, unless one is given.
    """
    if abs(exponent) < MAX_NORMAL_EXPONENT:
        product: NDArray[np.float64] = np.multiply(values, 2.0**exponent, out=out, dtype=np.float64, order="C")
        return product
    product = np.ldexp(values.astype(np.float64, order="C", copy=False), exponent, out=out)
    return product


def as_magnitudes(values: ArrayLike | Any, name: str, rows: ArrayLike | None = None) -> Magnitudes:
    """Return the magnitudes of a floating-point matrix, read where they lie, in any of four formats."""
    matrix, format = _as_floats(values, name)
    if format not in EXPONENT_BITS:  # wider than float64
        with np.errstate(over="ignore"):  # infinite in float64
            matrix, format = matrix.astype(np.float64), "float64"
    native = matrix if matrix.dtype.isnative else matrix.astype(matrix.dtype.newbyteorder("="))
    if not native.flags.aligned or 0 in native.strides:  # a broadcast entry is many entries
        native = native.copy()
    chosen = None if rows is None else as_indices(rows, "rows", len(native))
    if chosen is not None and (np.diff(chosen) == 1).all():
        native, chosen = native[chosen[0] : chosen[-1] + 1], None
    return Magnitudes.of(native, format, chosen)


def as_device_matrix(values: Any, name: str, rows: ArrayLike | None = None) -> Any:
    """Return a floating-point matrix on a GPU as it is, or a copy of some rows there; a torch.Tensor, shape (m, n)."""
    dtype = str(values.dtype).removeprefix("torch.")
    if "int" in dtype and values.numel():
        _check_whole(name, int(values.min()), int(values.max()))
        values, dtype = values.double(), "float64"
    _check_matrix(name, tuple(values.shape), dtype, dtype in EXPONENT_BITS)
    return values if rows is None else values[as_indices(rows, "rows", len(values))]


def _as_computed(values: Any, name: str) -> NDArray[np.float32] | NDArray[np.float64]:
    """Return a floating-point matrix in the precision it is computed in; its entries are not looked at."""
    matrix, format = _as_floats(values, name)
    if format == "bfloat16":
        matrix = widened(matrix.view(BFLOAT16))
    if matrix.dtype not in COMPUTED_DTYPES:
        with np.errstate(over="ignore"):  # wider than float64, and infinite in it
            matrix = matrix.astype(np.float32 if matrix.dtype.itemsize <= 4 else np.float64, copy=False)
    return matrix


def _not_finite_in(matrix: NDArray[Any], name: str) -> ToposcopeError:
    return not_finite(name, int(np.count_nonzero(~np.isfinite(matrix))), matrix.size, matrix.shape)


def not_finite(name: str, count: int, size: int, shape: tuple[int, ...]) -> ToposcopeError:
    """Return the error for a matrix with NaN or infinities."""
    return ToposcopeError(
        f"{name}: {count} of {size} entries are NaN or infinite, shape {tuple(shape)}; what is measured is "
        "defined for finite entries only"
    )


def _as_floats(values: Any, name: str) -> tuple[NDArray[Any], str]:
    """Return a matrix of real numbers and its format; bfloat16, which NumPy does not know, as its bits."""
    matrix, format = _as_stored(values, name)
    if matrix.dtype.kind in "iu" and format != "bfloat16" and 0 not in matrix.shape:
        _check_whole(name, int(matrix.min()), int(matrix.max()))
        matrix, format = matrix.astype(np.float64), "float64"
    _check_matrix(name, matrix.shape, matrix.dtype, matrix.dtype.kind == "f" or format == "bfloat16")
    return matrix, format


def _check_whole(name: str, lowest: int, highest: int) -> None:
    if max(-lowest, highest) > MAX_WHOLE:
        raise ToposcopeError(f"{name}: whole numbers beyond 2^53 are rounded in float64; convert with .astype(float)")


def _check_matrix(name: str, shape: tuple[int, ...], dtype: object, is_float: bool) -> None:
    if len(shape) != 2:
        hint = "unroll a convolution with weight.reshape(len(weight), -1)" if len(shape) > 2 else "reshape it"
        raise ToposcopeError(f"{name}: expected a 2-D matrix (rows, columns), got shape {shape}; {hint}")
    if 0 in shape:
        raise ToposcopeError(f"{name}: the matrix is empty, shape {shape}; it needs at least one entry")
    if not is_float:
        fix = "take .real or abs of it" if "complex" in str(dtype) else "convert with .astype(float)"
        raise ToposcopeError(f"{name}: expected real numbers, got {dtype} of shape {shape}; {fix}")


def as_array(values: ArrayLike | Any, name: str) -> NDArray[Any]:
    """View arrays, nested lists and torch tensors with NumPy; bfloat16 is widened, which is exact."""
    array, format = _as_stored(values, name)
    return widened(array.view(BFLOAT16)) if format == "bfloat16" else array


def _as_stored(values: Any, name: str) -> tuple[NDArray[Any], str]:
    """View values with NumPy, and name their format; bfloat16, which NumPy does not know, as its bits."""
    try:
        # A tensor is known by its methods: torch is not imported.
        if hasattr(values, "detach") and hasattr(values, "cpu"):
            values = values.detach().cpu()
            if str(values.dtype) == "torch.bfloat16":
                return np.asarray(values.view(sys.modules["torch"].int16)).view(np.uint16), "bfloat16"
            values = values.numpy()
        if type(values) is not np.ndarray and np.ma.is_masked(values):
            raise ValueError("some entries are masked; fill or drop them")
        array = np.asarray(values)
        format = _format(array.dtype)
        return (array.view(np.uint16) if format == "bfloat16" else array), format
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError and NotImplementedError
        reason = message_of(error)
        shape = f" of shape {tuple(values.shape)}" if hasattr(values, "shape") else ""
        raise ToposcopeError(
            f"{name}: expected an array of numbers, got {type(values).__name__}{shape}: {reason}"
        ) from error


@cache
def _format(dtype: np.dtype[Any]) -> str:
    # NumPy composes the name anew each time, in longer than a small matrix takes.
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def as_indices(values: ArrayLike | Any, name: str, count: int) -> Indices:
    """Return distinct indices below a count, at least one."""
    chosen, format = _as_stored(values, name)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or format == "bfloat16" or not len(chosen):
        raise ToposcopeError(f"{name}: expected whole numbers, got an array of {format} of shape {chosen.shape}")
    if chosen.min() < 0 or chosen.max() >= count or len(np.unique(chosen)) < len(chosen):
        raise ToposcopeError(
            f"{name}: expected distinct numbers from 0 to {count - 1}, got {len(chosen)} from {chosen.min()} to "
            f"{chosen.max()}"
        )
    indices: Indices = chosen.astype(np.int64)
    return indices


def as_number(value: Any, name: str, minimum: float) -> float:
    """Return an option that must be a real number of at least some value, infinity allowed."""
    if type(value) is float and value >= minimum:
        return value
    try:
        number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else float("nan")
    except OverflowError:  # a whole number beyond float64
        number = float("nan")
    if not number >= minimum:
        raise ToposcopeError(f"{name}: expected a number of at least {minimum:g}, got {shown(value)}")
    return number


def as_positive(value: Any, name: str) -> float:
    """Return an option that must be a finite number above 0."""
    number = as_number(value, name, 0)
    if not 0 < number < math.inf:
        raise ToposcopeError(f"{name}: expected a finite number above 0, got {shown(value)}")
    return number


def as_count(value: Any, name: str, minimum: int) -> int:
    """Return an option that must be a whole number of at least some value."""
    if type(value) is int and value >= minimum:
        return value
    count = int(value) if isinstance(value, Integral) and value is not True and value is not False else minimum - 1
    if count < minimum:
        raise ToposcopeError(f"{name}: expected a whole number of at least {minimum}, got {shown(value)}")
    return count


def shown(value: Any) -> str:
    """Return a value as messages show it: in one line, shortened."""
    return " ".join(reprlib.repr(value).split())
