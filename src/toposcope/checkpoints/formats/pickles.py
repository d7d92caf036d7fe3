"""Files of pickles, and what they describe: tensors of torch and arrays of NumPy and JAX, by offset and strides."""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import DTYPES, itemsize
from toposcope.checkpoints.formats.entry import Entry, as_array
from toposcope.checkpoints.sources.source import (
    Bytes,
    CheckpointError,
    RangeStream,
    StoredFile,
    damaged,
    truncated,
    unsupported,
)
from toposcope.checkpoints.unpickling import (
    TENSOR_NAMES,
    Deferred,
    Names,
    Placeholder,
    StoredStorage,
    StoredTensor,
    Unknown,
    load,
    name_of,
    natural_numbers,
)

_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
_CODES = {np.dtype(name).str[1:]: name for name in _NUMBERS}
_EXTENSIONS = ("ml_dtypes", "jaxlib")  # packages that add dtypes to NumPy, such as bfloat16
_CORES = ("numpy.core", "numpy._core")
MAX_EXPANDED_BYTES = 1 << 24
"""Of a tensor that repeats fewer stored numbers by its strides: a causal mask of 2,048 tokens in float32."""
Data = Callable[[int, int], Bytes]  # reads a range of the bytes of a storage
BIG_ENDIAN = "its numbers are big-endian; save it again on another machine"
MAGIC = 0x1950A86A20F9469CFC6C  # pickled first in files from before torch 1.6


class StoredDtype:
    """A dtype of NumPy: its code, torch's name for it (empty if torch has none), and whether it is big-endian."""

    __slots__ = ("code", "is_big", "name")

    def __init__(self, code: Any = "", *_: Any) -> None:
        name = name_of(code)
        is_extension = name.startswith(_EXTENSIONS)
        code = name.rpartition(".")[2] if is_extension else code if isinstance(code, str) else ""
        self.code, self.is_big = code.lstrip("<>=|")[:40], code.startswith(">")
        self.name = self.code if is_extension and self.code in DTYPES else _CODES.get(self.code, "")

    def __setstate__(self, state: Any) -> None:
        order, fields = state[1], state[4]
        self.is_big = order == ">"
        if fields:
            self.code, self.name = "records", ""


class StoredArray:
    """An array; `data` are its bytes, or where they are in the file; `tensor` is None of anything but numbers."""

    __slots__ = ("code", "data", "is_big", "tensor")

    def __init__(self) -> None:
        self.tensor: StoredTensor | None = None
        self.data: bytes | Deferred = b""
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
        data = bytes(data) if isinstance(data, bytearray) else _bytes_of(data)
        if not dtype.name or data is None:
            return
        count, length = math.prod(shape), data.stop - data.start if isinstance(data, Deferred) else len(data)
        if length != count * itemsize(dtype.name):
            raise ValueError(f"an array of {count} numbers that has {length} bytes")
        strides = _strides(shape[::-1])[::-1] if is_fortran else _strides(shape)
        self.data = data
        self.tensor = StoredTensor(StoredStorage("", dtype.name, count), dtype.name, 0, shape, strides)


def _bytes_of(data: Any) -> bytes | Deferred | None:
    """Return bytes, which Python 2 stores as text; None of anything else."""
    return data.encode("latin1") if isinstance(data, str) else data if isinstance(data, bytes | Deferred) else None


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of numbers that follow each other, the last axis fastest."""
    return tuple(math.prod(max(extent, 1) for extent in shape[axis:]) for axis in range(1, len(shape) + 1))


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C", *_: Any) -> StoredArray:
    made = StoredArray()
    made.fill(shape, dtype, order == "F", buffer)
    return made


def _from_jax(_function: Any, _arguments: Any, state: Any, *_: Any) -> StoredArray:
    made = StoredArray()
    made.__setstate__(state)
    return made


def _scalar(dtype: Any = None, data: Any = b"", *_: Any) -> Any:
    data = _bytes_of(data)
    is_real = isinstance(dtype, StoredDtype) and dtype.code in _CODES and not dtype.code.startswith("c")
    if not is_real or not isinstance(data, bytes):
        return Placeholder()
    (number,) = np.frombuffer(data, np.dtype(dtype.code).newbyteorder(">" if dtype.is_big else "<"))
    return number.item()


def _bytes(content: Any = b"", *_: Any) -> Any:
    """Return bytes, which older protocols make by a call, or encode from a text."""
    found = _bytes_of(content)
    return Placeholder() if found is None else found


NAMES: Names = {
    **TENSOR_NAMES,
    ("numpy", "dtype"): lambda *arguments: StoredDtype(*arguments),
    ("_codecs", "encode"): _bytes,
    **{(module, name): _bytes for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")},
    **{(f"{core}.multiarray", "_reconstruct"): lambda *_: StoredArray() for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): _scalar for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): _from_buffer for core in _CORES},
    **{(module, "_reconstruct_array"): _from_jax for module in ("jax._src.array", "jax.array")},
}
"""What stands for each name in a file that may hold tensors and arrays."""


def not_weights(file: StoredFile, reason: str) -> CheckpointError:
    """Return the error of a file that torch would not write."""
    return CheckpointError(f"{file.location}: not weights saved by torch, or damaged: {reason}", "damaged")


def strided_entry(
    file: StoredFile, name: str, tensor: StoredTensor, size: int, data: Data, *, is_big: bool = False
) -> Entry:
    """Return a tensor of a storage of `size` bytes."""
    needed = (tensor.offset + _extent(tensor.shape, tensor.strides)) * itemsize(tensor.dtype)
    if needed > size:
        raise not_weights(file, f"{name[:80]!r} needs more than the {size} bytes of its storage")
    expanded = math.prod(tensor.shape) * itemsize(tensor.dtype)
    if expanded > max(size, MAX_EXPANDED_BYTES):
        raise not_weights(file, f"{name[:80]!r} expands {size} stored bytes to {expanded:.3g} by repeating them")
    shape, strides = tensor.shape, tensor.strides
    # Rows follow each other in the storage, or are all the same.
    are_separate = not shape or _extent(shape[1:], strides[1:]) <= max(strides[0], 1) or strides[0] == 0
    return Entry(name, shape, tensor.dtype, partial(_read, tensor, data, is_big), are_separate)


def _read(tensor: StoredTensor, data: Data, is_big: bool, start: int, stop: int) -> NDArray[Any]:
    size = itemsize(tensor.dtype)
    shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
    span = _extent(shape, tensor.strides)
    if not span:
        return np.empty(shape, DTYPES[tensor.dtype])
    first = (tensor.offset + start * (tensor.strides[0] if tensor.shape else 0)) * size
    numbers = as_array(data(first, first + span * size), tensor.dtype, (span,))
    rows: NDArray[Any] = as_strided(numbers, shape, [stride * size for stride in tensor.strides])
    return rows.byteswap() if is_big else rows


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many numbers of the storage a tensor covers."""
    return all(shape) and 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def stream_of(file: StoredFile) -> BinaryIO:
    """Return a file as a stream that reads ahead."""
    return cast(BinaryIO, io.BufferedReader(RangeStream(file), 1 << 16))


def storage_of(reference: Any) -> StoredStorage | Placeholder:
    """Return the storage that a pickle of torch refers to; a placeholder for one of another kind."""
    kind, typed, record, _device, count, *view = reference
    if kind == "storage" and isinstance(typed, type):
        return typed(count) if issubclass(typed, Placeholder) else Placeholder(count)
    if kind != "storage" or not isinstance(typed, StoredStorage) or view.count(None) < len(view):
        raise ValueError("an unknown kind of stored object")
    if not isinstance(record, str) or type(count) is not int or count < 0:
        raise ValueError("a storage without name or count")
    return StoredStorage(record, typed.dtype, count)


def array_entry(file: StoredFile, name: str, array: StoredArray) -> Entry:
    """Return an array of NumPy."""
    if array.tensor is None:
        raise not_weights(file, f"{name[:80]!r} is not an array of numbers")
    size = array.tensor.storage.count * itemsize(array.tensor.dtype)
    data = partial(_array_bytes, file, array.data)
    return strided_entry(file, name, array.tensor, size, data, is_big=array.is_big)


def _array_bytes(file: StoredFile, data: bytes | Deferred, start: int, stop: int) -> Bytes:
    if isinstance(data, Deferred):
        return file.read(data.start + start, data.start + stop)
    # A copy may be written to, as other arrays may.
    return np.frombuffer(data, np.uint8, stop - start, start).copy()


@dataclass(frozen=True)
class _Section:
    """Bytes of a pickle that are a file of their own (see `StoredFile`)."""

    file: StoredFile
    data: bytes | Deferred
    size: int
    version: str = ""
    sha256: str = ""

    @property
    def location(self) -> str:
        return self.file.location

    def read(self, start: int, stop: int) -> Bytes:
        if not 0 <= start <= stop <= self.size:
            raise not_weights(self.file, "a tensor ends too early")
        return _array_bytes(self.file, self.data, start, stop)


class Opened:
    """A file that was opened: the object in it, names of classes that were not made, and its tensors."""

    content: Any = None  # with a `StoredTensor` or `StoredArray` for each tensor

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        self.unknown: Unknown = {}

    def place(self, storage: StoredStorage) -> tuple[int, Data]:
        """Return how many bytes a storage has, and what reads them; KeyError of one that the file does not hold."""
        raise NotImplementedError

    def entry(self, name: str, tensor: Any) -> Entry:
        """Return one of its tensors or arrays; its storage must exist and be long enough."""
        if isinstance(tensor, StoredArray):
            return array_entry(self.file, name, tensor)
        try:
            size, data = self.place(tensor.storage)
        except KeyError:
            raise not_weights(self.file, f"{name[:80]!r} has no data") from None
        return strided_entry(self.file, name, tensor, size, data)


class Legacy(Opened):
    """A file from before torch 1.6: a sequence of pickles, then the numbers."""

    def __init__(self, file: StoredFile, stream: BinaryIO) -> None:
        super().__init__(file)
        self._storages: dict[str, StoredStorage] = {}
        parts = (load(stream, file.location, NAMES, self._stored, self.unknown) for _ in range(4))
        _version, system, self.content, keys = parts
        if not isinstance(system, Mapping) or not isinstance(keys, list):
            raise damaged(file, "not a sequence of pickles as torch wrote before 1.6")
        if system.get("little_endian") is not True:
            raise unsupported(file, BIG_ENDIAN)
        self._begins: dict[str, int] = {}
        at = stream.tell()
        for key in keys:  # the storages follow each other, each after its count
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None or key in self._begins:
                raise not_weights(file, "it lists a storage that belongs to no tensor")
            self._begins[key] = at + 8
            at += 8 + _n_bytes(storage)
        if at > file.size:
            raise truncated(file, f"{at} bytes are needed, there are {file.size}")

    def _stored(self, reference: Any) -> StoredStorage | type:
        # The class of a module that was saved whole, with its source.
        if reference[0] == "module" and isinstance(reference[1], type):
            return reference[1]
        storage = storage_of(reference)
        if not isinstance(storage, StoredStorage):
            raise ValueError(f"a storage of another kind, {storage.name[:40]}")
        return self._storages.setdefault(storage.record, storage)

    def place(self, storage: StoredStorage) -> tuple[int, Data]:  # noqa: D102
        begin = self._begins[storage.record]
        return _n_bytes(storage), partial(_counted, self.file, begin, storage.count)


def _n_bytes(storage: StoredStorage) -> int:
    return storage.count * (itemsize(storage.dtype) if storage.dtype else 1)


def _counted(file: StoredFile, begin: int, count: int, start: int, stop: int) -> Bytes:
    if int.from_bytes(file.read(begin - 8, begin).tobytes(), "little") != count:
        raise not_weights(file, "the count of its numbers is wrong")
    return file.read(begin + start, begin + stop)


class Plain(Opened):
    """A file of ``pickle.dump``: arrays, or tensors, each of which torch pickles as a file of its own."""

    def __init__(self, file: StoredFile, stream: BinaryIO) -> None:
        super().__init__(file)
        self._inner: dict[str, tuple[Legacy, StoredStorage]] = {}
        # A pickle can refer to the same bytes many times.
        self._nested_of: dict[bytes | Deferred, StoredStorage] = {}
        names = {**NAMES, ("torch.storage", "_load_from_bytes"): self._nested}
        self.content = load(stream, file.location, names, None, self.unknown, deferring=True)

    def _nested(self, data: Any) -> StoredStorage:
        if not isinstance(data, bytes | Deferred):
            raise ValueError("a tensor without bytes")
        if data in self._nested_of:
            return self._nested_of[data]
        size = data.stop - data.start if isinstance(data, Deferred) else len(data)
        section = _Section(self.file, data, size)
        stream = stream_of(section)
        if load(stream, self.file.location, {}) != MAGIC:
            raise ValueError("a tensor that torch did not pickle")
        inner = Legacy(section, stream)
        if not isinstance(inner.content, StoredStorage):
            raise ValueError("a tensor without numbers")
        own = StoredStorage(str(len(self._inner)), inner.content.dtype, inner.content.count)
        self._inner[own.record] = inner, inner.content
        self._nested_of[data] = own
        return own

    def place(self, storage: StoredStorage) -> tuple[int, Data]:  # noqa: D102
        inner, stored = self._inner[storage.record]
        return inner.place(stored)


def opened_pickle(file: StoredFile) -> Opened:
    """Return a file that begins with a pickle, as what it is."""
    stream = stream_of(file)
    plain = Plain(file, stream)
    return Legacy(file, stream) if plain.content == MAGIC else plain
