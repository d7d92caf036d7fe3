"""The dtypes of stored tensors, by torch's names, as NumPy reads them.

What NumPy has no type for, bfloat16 and the floats of 8 and 4 bits, is read as opaque bytes: with such an array it can
slice and copy, and refuses to compute.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import ToposcopeError
from toposcope.kernels.magnitudes import BFLOAT16

if TYPE_CHECKING:
    from torch import Tensor

_NATIVE = (
    *("float64", "float32", "float16", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
)
_OPAQUE = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in _NATIVE},
    "bfloat16": BFLOAT16,
    **{name: np.dtype([(name, "V1")]) for name in _OPAQUE},
}
MANTISSA_BITS = {
    **{"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7},
    **{"float8_e4m3fn": 3, "float8_e5m2": 2, "float8_e4m3fnuz": 3, "float8_e5m2fnuz": 2, "float8_e8m0fnu": 0},
}
"""Of the floating-point dtypes; the distance from 1 to the next number is two to minus this power."""


def itemsize(dtype: str) -> int:
    """Return the bytes of one number."""
    known = DTYPES.get(dtype)
    if known is None:
        raise ToposcopeError(f"the dtype {dtype[:40]!a} is not known")
    return known.itemsize


def as_tensor(stored: NDArray[Any], dtype: str) -> "Tensor":
    """Return an array as a tensor of torch that shares its memory."""
    import torch

    if stored.dtype.names is None:
        return torch.from_numpy(stored)
    return torch.from_numpy(stored.view(f"u{stored.itemsize}")).view(getattr(torch, dtype))


def from_tensor(tensor: "Tensor") -> NDArray[Any]:
    """Return a tensor of torch as an array; it shares the memory of a tensor on the CPU."""
    import torch

    tensor = tensor.detach().cpu()
    known = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    if known.names is None:
        return tensor.numpy()
    return tensor.view(torch.int16 if known.itemsize == 2 else torch.uint8).numpy().view(known)


def without_8_bits(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return floats of 8 bits as float32, which is exact, and any other array as it is."""
    return _numbers_of_codes(dtype)[stored.view(np.uint8)] if "float8" in dtype else stored


@cache
def _numbers_of_codes(dtype: str) -> NDArray[np.float32]:
    """Return what each of the 256 codes of an 8-bit float stands for."""
    codes = np.arange(256)
    if dtype == "float8_e8m0fnu":
        numbers = np.ldexp(1.0, codes - 127)
        numbers[255] = np.nan
        return numbers.astype(np.float32)
    width = MANTISSA_BITS[dtype]
    exponents, mantissas = (codes & 127) >> width, (codes & 127) & ((1 << width) - 1)
    bias = (1 << (6 - width)) - (0 if dtype.endswith("fnuz") else 1)
    significands = mantissas + np.where(exponents, 1 << width, 0)
    numbers = np.ldexp(significands.astype(np.float64), np.maximum(exponents, 1) - bias - width)
    if dtype == "float8_e5m2":
        numbers[exponents == 31] = np.nan
        numbers[0x7C::0x80] = np.inf
    elif dtype == "float8_e4m3fn":
        numbers[0x7F::0x80] = np.nan
    else:
        # Both have the code of minus zero for NaN.
        numbers[0x80] = np.nan
    signed: NDArray[np.float64] = np.where(codes >= 128, -numbers, numbers)
    return signed.astype(np.float32)
