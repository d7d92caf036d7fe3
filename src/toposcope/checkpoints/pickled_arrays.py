"""NumPy's arrays and numbers as pickles describe them, JAX's among them."""

import math
import struct
from typing import Any

from toposcope.checkpoints.formats.dtypes import DTYPES, itemsize
from toposcope.checkpoints.unpickling import (
    TENSOR_NAMES,
    Deferred,
    Names,
    Placeholder,
    StoredStorage,
    StoredTensor,
    natural_numbers,
)

_CODES = {
    **{"b1": "bool", "c8": "complex64", "c16": "complex128", "f2": "float16", "f4": "float32", "f8": "float64"},
    **{f"{kind}{size}": f"{name}{8 * size}" for kind, name in (("i", "int"), ("u", "uint")) for size in (1, 2, 4, 8)},
}
_NUMBERS = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q"} | {
    **{"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "b1": "?"},
}
"""Formats of `struct`, by NumPy's code."""
_EXTENSIONS = ("ml_dtypes", "jaxlib")
"""Packages that add dtypes to NumPy, such as bfloat16."""
MAX_NUMBER_BYTES = 8


class StoredDtype:
    """A dtype of NumPy: its code, torch's name for it (empty if torch has none), and whether it is big-endian."""

    __slots__ = ("code", "is_big", "name")

    def __init__(self, code: Any = "", *_: Any) -> None:
        if isinstance(code, Placeholder) and code.name.startswith(_EXTENSIONS):
            last = code.name.rpartition(".")[2]
            self.code, self.name = last, last if last in DTYPES else ""
        else:
            self.code = code.lstrip("<>=|")[:40] if isinstance(code, str) else ""
            self.name = _CODES.get(self.code, "")
        self.is_big = isinstance(code, str) and code.startswith(">")

    def __setstate__(self, state: Any) -> None:
        order, fields = state[1], state[4]
        self.is_big = order == ">"
        if fields:
            self.code, self.name = "records", ""


class StoredArray:
    """An array; `data` are its bytes, as text in older protocols, or where they are in the file.

    Attributes
    ----------
    tensor : StoredTensor or None
        How the numbers lie in the data; None if torch has no such dtype.
    """

    __slots__ = ("code", "data", "is_big", "tensor")

    def __init__(self) -> None:
        self.tensor: StoredTensor | None = None
        self.data: bytes | str | Deferred = b""
        self.code, self.is_big = "", False

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, is_fortran, data = state
        self.fill(shape, dtype, bool(is_fortran), data)

    def fill(self, shape: Any, dtype: Any, is_fortran: bool, data: Any) -> None:
        """Set the numbers; ValueError if the data are not as long as the shape says."""
        if not isinstance(dtype, StoredDtype):
            return
        shape = natural_numbers(shape)
        self.code, self.is_big = dtype.code, dtype.is_big
        if not dtype.name or not isinstance(data, bytes | str | Deferred):
            return
        count = math.prod(shape)
        _check_length(data, count * itemsize(dtype.name))
        strides = _strides(shape[::-1])[::-1] if is_fortran else _strides(shape)
        self.data = data
        self.tensor = StoredTensor(StoredStorage("", dtype.name, count), dtype.name, 0, shape, strides)


def _check_length(data: bytes | str | Deferred, needed: int) -> None:
    if not isinstance(data, Deferred):
        shortest = longest = len(data)
    else:
        longest = data.stop - data.start
        # In UTF-8 a byte above 127 takes two.
        shortest = longest // 2 if data.is_text else longest
    if not shortest <= needed <= longest:
        raise ValueError(f"an array of {needed} bytes that has {longest}")


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of numbers that follow each other, the last axis fastest."""
    strides = [1]
    for extent in shape[:0:-1]:
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides))[: len(shape)] if shape else ()


def _array(*_: Any) -> StoredArray:
    return StoredArray()


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> StoredArray:
    made = StoredArray()
    made.fill(shape, dtype, order == "F", buffer)
    return made


def _from_jax(_function: Any, _arguments: Any, state: Any, *_: Any) -> StoredArray:
    made = StoredArray()
    made.__setstate__(state)
    return made


def _scalar(dtype: Any = None, data: Any = b"", *_: Any) -> Any:
    """Return a number of Python."""
    form = _NUMBERS.get(dtype.code) if isinstance(dtype, StoredDtype) else None
    if form is None or not isinstance(data, bytes | str) or len(data) > MAX_NUMBER_BYTES:
        return Placeholder()
    data = data.encode("latin1") if isinstance(data, str) else data
    return struct.unpack((">" if dtype.is_big else "<") + form, data)[0]


def _encode(text: Any = "", encoding: Any = "", *_: Any) -> Any:
    """Return a text that stands for bytes, as older protocols store them; it is encoded when it is read."""
    return text if encoding == "latin1" and isinstance(text, str | Deferred) else Placeholder()


def _bytes(content: Any = b"", *_: Any) -> Any:
    """Return bytes, which older protocols make by a call."""
    return content if isinstance(content, bytes | str | Deferred) else Placeholder()


_CORES = ("numpy.core", "numpy._core")
NAMES: Names = {
    **TENSOR_NAMES,
    ("numpy", "dtype"): StoredDtype,
    ("_codecs", "encode"): _encode,
    **{(module, name): _bytes for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")},
    **{(f"{core}.multiarray", "_reconstruct"): _array for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): _scalar for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): _from_buffer for core in _CORES},
    **{(module, "_reconstruct_array"): _from_jax for module in ("jax._src.array", "jax.array")},
}
"""What stands for each name in a file that may hold tensors and arrays."""
