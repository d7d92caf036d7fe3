"""Files of pickles: of ``torch.save`` before torch 1.6, and of ``pickle.dump``."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import numpy as np

from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.strided import not_weights, strided_entry
from toposcope.checkpoints.pickled_arrays import NAMES, StoredArray
from toposcope.checkpoints.sources import Bytes, CheckpointError, StoredFile
from toposcope.checkpoints.sources.range_stream import RangeStream
from toposcope.checkpoints.unpickling import (
    Deferred,
    Names,
    Placeholder,
    StoredStorage,
    StoredTensor,
    load,
    placeholder,
)

MAGIC = 0x1950A86A20F9469CFC6C
"""Pickled first in files from before torch 1.6."""
Unknown = dict[str, None]
"""Names of other classes, as `toposcope.checkpoints.unpickling.load` records them."""


def stream_of(file: StoredFile) -> BinaryIO:
    """Return a file as a stream that reads ahead."""
    return cast(BinaryIO, io.BufferedReader(RangeStream(file), 1 << 16))


def storage_of(reference: Any) -> StoredStorage | Placeholder:
    """Return the storage that a pickle of torch refers to; a placeholder for one of another kind."""
    kind, typed, record, _device, count, *view = reference
    if kind == "storage" and isinstance(typed, Placeholder):
        return placeholder(typed.name)
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
    data = partial(_bytes, file, array.data, size)
    return strided_entry(file, name, array.tensor, size, data, is_big=array.is_big)


def _bytes(file: StoredFile, data: bytes | str | Deferred, size: int, start: int, stop: int) -> Bytes:
    if isinstance(data, Deferred) and not data.is_text:
        return file.read(data.start + start, data.start + stop)
    content = data if isinstance(data, bytes) else _latin(file, data)
    if len(content) != size:
        raise not_weights(file, f"an array of {size} bytes has {len(content)}")
    # A copy may be written to, as other arrays may.
    return np.frombuffer(content, np.uint8, stop - start, start).copy()


def _latin(file: StoredFile, data: str | Deferred) -> bytes:
    """Return the bytes that older protocols store as a text."""
    try:
        text = data if isinstance(data, str) else file.read(data.start, data.stop).tobytes().decode()
        return text.encode("latin1")
    except UnicodeError as error:
        raise not_weights(file, "a text that should hold bytes does not") from error


@dataclass(frozen=True)
class _Section:
    """A part of a file, or bytes made of it (see `StoredFile`)."""

    file: StoredFile
    start: int
    size: int
    content: bytes | None = None
    version: str = ""
    sha256: str = ""

    @property
    def location(self) -> str:
        return self.file.location

    def read(self, start: int, stop: int) -> Bytes:
        if not 0 <= start <= stop <= self.size:
            raise not_weights(self.file, "a tensor ends too early")
        if self.content is not None:
            return np.frombuffer(self.content, np.uint8, stop - start, start).copy()
        return self.file.read(self.start + start, self.start + stop)


class Legacy:
    """A file from before torch 1.6: a sequence of pickles, then the numbers.

    Parameters
    ----------
    file : StoredFile
    stream : binary file
        The file, after the first pickle.
    names : mapping
        What names stand for.

    Attributes
    ----------
    content : object
        The saved object with a `StoredTensor` for each tensor.
    unknown : dict
        Names of other classes in it.
    """

    def __init__(self, file: StoredFile, stream: BinaryIO, names: Names = NAMES) -> None:
        self._file, self._names = file, names
        self._storages: dict[str, StoredStorage] = {}
        self.unknown: Unknown = {}
        _version, system, self.content, keys = (self._load(stream) for _ in range(4))
        if not isinstance(system, Mapping) or not isinstance(keys, list):
            raise CheckpointError(f"{file.location}: damaged, or not a torch file; fetch or save it again", "damaged")
        if system.get("little_endian") is not True:
            raise CheckpointError(
                f"{file.location}: its numbers are big-endian; save it again on another machine", "unsupported"
            )
        self._begins = self._places(keys, stream.tell())

    def _load(self, stream: BinaryIO) -> Any:
        return load(stream, self._file.location, self._names, self._stored, self.unknown)

    def _stored(self, reference: Any) -> StoredStorage | Placeholder:
        # The class of a module that was saved whole, with its source.
        if reference[0] == "module" and isinstance(reference[1], Placeholder):
            return reference[1]
        storage = storage_of(reference)
        if not isinstance(storage, StoredStorage):
            raise ValueError(f"a storage of another kind, {storage.name[:40]}")
        return self._storages.setdefault(storage.record, storage)

    def _places(self, keys: list[Any], at: int) -> dict[str, int]:
        """Return where the numbers of each storage begin; the storages follow each other, each after its count."""
        begins = {}
        for key in keys:
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None or key in begins:
                raise not_weights(self._file, "it lists a storage that belongs to no tensor")
            begins[key] = at + 8
            at += 8 + storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        if at > self._file.size:
            raise CheckpointError(
                f"{self._file.location}: truncated or damaged: {at} bytes are needed, there are {self._file.size}; "
                "fetch or save it again",
                "truncated",
            )
        return begins

    def entry(self, name: str, tensor: StoredTensor | StoredArray) -> Entry:
        """Return one of its tensors."""
        if isinstance(tensor, StoredArray):
            return array_entry(self._file, name, tensor)
        storage = tensor.storage
        begin = self._begins.get(storage.record)
        if begin is None:
            raise not_weights(self._file, f"{name[:80]!r} has no data")
        size = storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        return strided_entry(self._file, name, tensor, size, partial(_counted, self._file, begin, storage.count))


def _counted(file: StoredFile, begin: int, count: int, start: int, stop: int) -> Bytes:
    if int.from_bytes(file.read(begin - 8, begin).tobytes(), "little") != count:
        raise not_weights(file, "the count of its numbers is wrong")
    return file.read(begin + start, begin + stop)


class Plain:
    """A file of ``pickle.dump``: arrays, or tensors, each of which torch pickles as a file of its own.

    Parameters
    ----------
    file : StoredFile
    stream : binary file
        The whole file.

    Attributes
    ----------
    content : object
        The saved object.
    unknown : dict
        Names of other classes in it.
    """

    def __init__(self, file: StoredFile, stream: BinaryIO) -> None:
        self._file = file
        self._inner: dict[str, tuple[Legacy, StoredStorage]] = {}
        # A pickle can refer to the same bytes many times.
        self._nested_of: dict[bytes | str | Deferred, StoredStorage] = {}
        self.unknown: Unknown = {}
        names = {**NAMES, ("torch.storage", "_load_from_bytes"): self._nested}
        self.content = load(stream, file.location, names, None, self.unknown, deferring=True)

    def _nested(self, data: Any) -> StoredStorage:
        """Return the storage in the bytes of a tensor's own file."""
        if not isinstance(data, bytes | str | Deferred):
            raise ValueError("a tensor without bytes")
        if data not in self._nested_of:
            self._nested_of[data] = self._opened(data)
        return self._nested_of[data]

    def _opened(self, data: bytes | str | Deferred) -> StoredStorage:
        if isinstance(data, Deferred) and not data.is_text:
            content = None
        else:
            content = data if isinstance(data, bytes) else _latin(self._file, data)
        start, stop = (data.start, data.stop) if isinstance(data, Deferred) else (0, len(data))
        section = _Section(self._file, start, stop - start if content is None else len(content), content)
        stream = stream_of(section)
        if load(stream, self._file.location, {}) != MAGIC:
            raise ValueError("a tensor that torch did not pickle")
        inner = Legacy(section, stream)
        if not isinstance(inner.content, StoredStorage):
            raise ValueError("a tensor without numbers")
        own = StoredStorage(str(len(self._inner)), inner.content.dtype, inner.content.count)
        self._inner[own.record] = inner, inner.content
        return own

    def entry(self, name: str, tensor: StoredTensor | StoredArray) -> Entry:
        """Return one of its tensors or arrays."""
        if isinstance(tensor, StoredArray):
            return array_entry(self._file, name, tensor)
        if tensor.storage.record not in self._inner:
            raise not_weights(self._file, f"{name[:80]!r} has no data")
        inner, storage = self._inner[tensor.storage.record]
        return inner.entry(name, StoredTensor(storage, tensor.dtype, tensor.offset, tensor.shape, tensor.strides))


def opened(file: StoredFile) -> Legacy | Plain:
    """Return a file that begins with a pickle, as what it is."""
    stream = stream_of(file)
    plain = Plain(file, stream)
    return Legacy(file, stream) if plain.content == MAGIC else plain
