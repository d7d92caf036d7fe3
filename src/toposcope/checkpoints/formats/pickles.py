"""Files of pickles, and the tensors of torch that they describe, by offset and strides."""

import io
import math
from collections.abc import Callable, Mapping
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
    Names,
    OtherTensor,
    Placeholder,
    StoredStorage,
    StoredTensor,
    Unknown,
    load,
    natural_numbers,
)

MAX_EXPANDED_BYTES = 1 << 24
"""Of a tensor that repeats fewer stored numbers by its strides: a causal mask of 2,048 tokens in float32."""
Data = Callable[[int, int], Bytes]  # reads a range of the bytes of a storage
BIG_ENDIAN = "its numbers are big-endian; save it again on another machine"
MAGIC = 0x1950A86A20F9469CFC6C  # pickled first in files from before torch 1.6
_NUMBERS = ("b1", "f2", "f4", "f8", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)))  # codes of dtypes
_CORES = ("numpy.core", "numpy._core")


class StoredDtype:
    """A dtype of NumPy, by its code."""

    __slots__ = ("code",)

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code[:8] if isinstance(code, str) else ""

    def __setstate__(self, state: Any) -> None:
        self.code = f"{'>' if state[1] == '>' else ''}{self.code.lstrip('<>=|')}"


class ArrayOfNumPy(OtherTensor):
    """Stands for an array, which is named and not read."""

    __slots__ = ()
    name = "array of NumPy"

    def __setstate__(self, state: Any) -> None:
        self.arguments = (natural_numbers(state[1]),)


def _scalar(dtype: Any = None, data: Any = b"", *_: Any) -> Any:
    data = _bytes(data)
    if not isinstance(dtype, StoredDtype) or dtype.code.lstrip(">") not in _NUMBERS or not isinstance(data, bytes):
        return Placeholder()
    (number,) = np.frombuffer(data, np.dtype(dtype.code))
    return number.item()


def _bytes(content: Any = b"", *_: Any) -> Any:
    """Return bytes, which older protocols make by a call, or encode from a text, as Python 2 stores them."""
    found = content.encode("latin1") if isinstance(content, str) else content
    return found if isinstance(found, bytes) else Placeholder()


NAMES: Names = {
    **TENSOR_NAMES,
    ("numpy", "dtype"): lambda *arguments: StoredDtype(*arguments),
    ("_codecs", "encode"): _bytes,
    **{(module, name): _bytes for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")},
    **{(f"{core}.multiarray", "_reconstruct"): lambda *_: ArrayOfNumPy() for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): _scalar for core in _CORES},
}
"""What stands for each name in a file that may hold tensors and arrays."""


def not_weights(file: StoredFile, reason: str) -> CheckpointError:
    """Return the error of a file that torch would not write."""
    return CheckpointError(f"{file.location}: not weights saved by torch, or damaged: {reason}", "damaged")


def strided_entry(file: StoredFile, name: str, tensor: StoredTensor, size: int, data: Data) -> Entry:
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
    return Entry(name, shape, tensor.dtype, partial(_read, tensor, data), are_separate)


def _read(tensor: StoredTensor, data: Data, start: int, stop: int) -> NDArray[Any]:
    size = itemsize(tensor.dtype)
    shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
    span = _extent(shape, tensor.strides)
    if not span:
        return np.empty(shape, DTYPES[tensor.dtype])
    first = (tensor.offset + start * (tensor.strides[0] if tensor.shape else 0)) * size
    numbers = as_array(data(first, first + span * size), tensor.dtype, (span,))
    rows: NDArray[Any] = as_strided(numbers, shape, [stride * size for stride in tensor.strides])
    return rows


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


class Opened:
    """A file that was opened: the object in it, names of classes that were not made, and its tensors."""

    content: Any = None  # with a `StoredTensor` for each tensor

    def __init__(self, file: StoredFile) -> None:
        self.file = file
        self.unknown: Unknown = {}

    def place(self, storage: StoredStorage) -> tuple[int, Data]:
        """Return how many bytes a storage has, and what reads them; KeyError of one that the file does not hold."""
        raise NotImplementedError

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors; its storage must exist and be long enough."""
        try:
            size, data = self.place(tensor.storage)
        except KeyError:
            raise not_weights(self.file, f"{name[:80]!r} has no data") from None
        return strided_entry(self.file, name, tensor, size, data)


class Legacy(Opened):
    """A file from before torch 1.6: a sequence of pickles, then the numbers."""

    def __init__(self, file: StoredFile) -> None:
        super().__init__(file)
        stream = stream_of(file)
        self._storages: dict[str, StoredStorage] = {}
        parts = (load(stream, file.location, NAMES, self._stored, self.unknown) for _ in range(5))
        _magic, _version, system, self.content, keys = parts
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
