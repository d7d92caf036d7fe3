"""One file written by ``torch.save``: a pickle, read as data, and the numbers it speaks of."""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from toposcope.checkpoints.formats.entry import Entry, as_tensor, itemsize
from toposcope.checkpoints.formats.weight_names import TORCH, is_other
from toposcope.checkpoints.sources import Bytes, CheckpointError, Files, StoredFile
from toposcope.checkpoints.unpickling import LARGEST_PICKLE, TENSORS, StoredStorage, StoredTensor, Stream, load

WEIGHT_KEYS = ("model_state_dict", "state_dict", "model", "module", "model_state", "state", "app")
"""Where trainers keep the weights: ours and many, Lightning, nanoGPT, DeepSpeed; Composer has state, then model; the
recipes of torch.distributed.checkpoint app, then model."""
DEEPEST = 4
"""Keys one in the other; a pickle can hold a dictionary that holds itself."""
LOCAL_HEADER = 30
MOST_STRETCHED = 1 << 30
"""Bytes that a tensor may have where its numbers, used over and over, are fewer."""
ALIGNMENT = 128
"""Bytes that torch puts at most between a record's header and its numbers."""
FEW = 1 << 15
SIGNATURES = {"zip": b"PK\x03\x04", "legacy": b"\x80"}
NAMES = (str, int)
Data = Callable[[int, int], Bytes]
"""From a range of the bytes of a storage to these."""
MAGIC = 0x1950A86A20F9469CFC6C
"""What files from before torch 1.6 begin with, pickled."""


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file, not of what belongs to the optimizer."""
    return len(names) == 1 and (name := next(iter(names))).endswith(TORCH) and not is_other(name)


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors; their data stays where it is until it is read."""
    (file,) = files.values()
    return entries_of(file)


def entries_of(file: StoredFile) -> list[Entry]:
    """List the tensors of one file."""
    begin = file.read(0, min(4, file.size)).tobytes()
    if not begin.startswith(tuple(SIGNATURES.values())):
        raise CheckpointError(f"{file.location}: damaged, or not a torch file; fetch or save it again", "damaged")
    archive = Archive(file) if begin == SIGNATURES["zip"] else Legacy(file)
    return [archive.entry(name, tensor) for name, tensor in _model(file, archive.content).items()]


def _model(file: StoredFile, content: object) -> dict[str, StoredTensor]:
    """Find the tensors of the model, if need be under a key of the user's own."""
    found = weights_of(content)
    keys: Mapping[Any, Any] = content if isinstance(content, Mapping) else {}
    is_usual = any(key in WEIGHT_KEYS for key in keys)
    if found and (is_usual or any(len(tensor.shape) > 1 for tensor in found.values())):
        return found
    own = [key for key in keys if _tensors(keys[key]) and not is_other(str(key))]
    if len(own) == 1 and not is_usual:
        return _tensors(keys[own[0]])
    if found and not own:
        return found
    there = ", ".join(ascii(str(key)[:40]) for key in (own or [*keys])[:6]) or "no dictionary of tensors"
    raise CheckpointError(
        f"{file.location}: no tensors at the top level or under {', '.join(WEIGHT_KEYS)}; there is {there}. Save the "
        "model's state_dict under one of these names",
        "damaged",
    )


class Archive:
    """The zip archive of one ``torch.save``.

    Parameters
    ----------
    file : StoredFile
    start, stop : int
        Where in the file it lies, for archives one behind another.

    Attributes
    ----------
    pickle : bytes
        What speaks of the tensors, not looked at yet.
    """

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        self._file, self._start = file, start
        # The end of an archive of one tensor is short; that of a model lists as many records as it has tensors.
        ahead = 1 << 16 if stop is None else 1 << 12
        try:
            with zipfile.ZipFile(io.BufferedReader(Stream(file, start, stop), ahead)) as archive:
                listed = archive.infolist()
                self._records = {info.filename.partition("/")[2]: info for info in listed}
                self._check(len(listed))
            if "byteorder" in self._records and self._content("byteorder") != b"little":
                raise self._damaged("its numbers are big-endian; save it again on another machine")
            self.pickle = self._content("data.pkl")
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{file.location}: truncated or damaged: its end, where an archive lists what it holds, cannot be "
                "read; fetch or save it again",
                "truncated",
            ) from error

    @property
    def content(self) -> Any:
        """What was saved, `StoredTensor` for each tensor; made anew each time, and not kept beside the entries."""
        return load(io.BytesIO(self.pickle), self._file.location, TENSORS, _storage)

    def _check(self, count: int) -> None:
        if "data.pkl" not in self._records:
            raise self._damaged("it has no data.pkl")
        if "constants.pkl" in self._records:
            raise self._damaged("it is a TorchScript program; save its state_dict() instead")
        if len(self._records) != count:
            raise self._damaged("it holds two records of one name")
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._records.values()):
            raise self._damaged("its records are compressed, as torch does not write them")

    def _content(self, record: str) -> bytes:
        info = self._records[record]
        if info.file_size > LARGEST_PICKLE:
            raise self._damaged(f"its {record} would be {info.file_size} bytes long")
        content = self._data(info, 0, info.file_size).tobytes()
        if zlib.crc32(content) != info.CRC:
            raise zipfile.BadZipFile
        return content

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors, whose record is there and long enough."""
        info = self._records.get(f"data/{tensor.storage.record}")
        if info is None:
            raise self._damaged(f"{name[:80]!r} has no data")
        return _entry(self._file, name, tensor, info.file_size, partial(self._data, info))

    def _data(self, info: zipfile.ZipInfo, start: int, stop: int) -> Bytes:
        """Return bytes of a record's numbers: behind its own header, whose length only that header tells.

        Few are read together with the header.
        """
        at = self._start + info.header_offset
        ahead = len(info.filename) + ALIGNMENT + stop if stop <= FEW else 0
        read = self._file.read(at, min(at + LOCAL_HEADER + ahead, self._file.size))
        header = read[:LOCAL_HEADER].tobytes()
        if not header.startswith(SIGNATURES["zip"]):
            raise self._damaged(f"its record {info.filename[:80]!r} is not where its end says")
        begin = LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if begin + stop <= len(read):
            return read[begin + start : begin + stop]
        return self._file.read(at + begin + start, at + begin + stop)

    def _damaged(self, reason: str) -> CheckpointError:
        return _not_weights(self._file, reason)


class Legacy:
    """A file from before torch 1.6: pickles one behind another, then the numbers.

    Attributes
    ----------
    content : object
        What was saved, `StoredTensor` for each tensor.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._storages: dict[str, StoredStorage] = {}
        stream = cast(BinaryIO, io.BufferedReader(Stream(file), 1 << 16))
        magic, _version, system, self.content, keys = (self._load(stream) for _ in range(5))
        if magic != MAGIC or not isinstance(system, Mapping) or not isinstance(keys, list):
            raise CheckpointError(f"{file.location}: damaged, or not a torch file; fetch or save it again", "damaged")
        if system.get("little_endian") is not True:
            raise _not_weights(file, "its numbers are big-endian; save it again on another machine")
        self._begins = self._places(keys, stream.tell())

    def _load(self, stream: BinaryIO) -> Any:
        return load(stream, self._file.location, TENSORS, self._stored)

    def _stored(self, told: Any) -> StoredStorage:
        storage = _storage(told)
        return self._storages.setdefault(storage.record, storage)

    def _places(self, keys: list[Any], at: int) -> dict[str, int]:
        """Return where the numbers of each storage begin: behind their count, one storage after another."""
        begins = {}
        for key in keys:
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None or key in begins:
                raise _not_weights(self._file, "it lists numbers that belong to no tensor")
            begins[key] = at + 8
            at += 8 + storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        if at > self._file.size:
            told = f"{at} bytes are needed, there are {self._file.size}"
            raise CheckpointError(
                f"{self._file.location}: truncated or damaged: {told}; fetch or save it again", "truncated"
            )
        return begins

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors, whose numbers are there."""
        storage = tensor.storage
        if storage.record not in self._begins:
            raise _not_weights(self._file, f"{name[:80]!r} has no data")
        size = storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        return _entry(self._file, name, tensor, size, partial(self._data, storage))

    def _data(self, storage: StoredStorage, start: int, stop: int) -> Bytes:
        begin = self._begins[storage.record]
        if int.from_bytes(self._file.read(begin - 8, begin).tobytes(), "little") != storage.count:
            raise _not_weights(self._file, "its numbers are not as many as it says")
        return self._file.read(begin + start, begin + stop)


def _not_weights(file: StoredFile, reason: str) -> CheckpointError:
    return CheckpointError(f"{file.location}: not weights saved by torch, or damaged: {reason}", "damaged")


def _storage(told: Any) -> StoredStorage:
    kind, typed, record, _device, count, *view = told
    if kind != "storage" or not isinstance(typed, StoredStorage) or view.count(None) < len(view):
        raise ValueError("an unknown kind of stored object")
    if not isinstance(record, str) or type(count) is not int or count < 0:
        raise ValueError("a storage without a name or a count")
    return StoredStorage(record, typed.dtype, count)


def _entry(file: StoredFile, name: str, tensor: StoredTensor, size: int, data: Data) -> Entry:
    """Return a tensor of a storage of `size` bytes."""
    needed = (tensor.offset + _span(tensor.shape, tensor.strides)) * itemsize(tensor.dtype)
    if needed > size:
        raise _not_weights(file, f"{name[:80]!r} needs more data than the {size} bytes that are there")
    stretched = math.prod(tensor.shape) * itemsize(tensor.dtype)
    if stretched > max(size, MOST_STRETCHED):
        raise _not_weights(
            file, f"{name[:80]!r} makes {stretched:.3g} bytes of {size}, by the same numbers over and over"
        )
    read = partial(_read, tensor, data)
    return Entry(name, tensor.shape, tensor.dtype, read, _rows_in_turn(tensor.shape, tensor.strides))


def _read(tensor: StoredTensor, data: Data, start: int, stop: int) -> Tensor:
    size = itemsize(tensor.dtype)
    shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
    span = _span(shape, tensor.strides)
    if not span:
        return torch.empty(shape, dtype=getattr(torch, tensor.dtype))
    first = (tensor.offset + start * (tensor.strides[0] if tensor.shape else 0)) * size
    return as_tensor(data(first, first + span * size), tensor.dtype, (span,)).as_strided(shape, tensor.strides)


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many numbers of the storage a tensor stretches over."""
    span = 1
    for extent, stride in zip(shape, strides, strict=True):
        if not extent:
            return 0
        span += (extent - 1) * stride
    return span


def _rows_in_turn(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether some rows of a tensor lie apart from the others."""
    return not shape or _span(shape[1:], strides[1:]) <= max(strides[0], 1) or strides[0] == 0


def weights_of(content: object, depth: int = DEEPEST) -> dict[str, StoredTensor]:
    """Find the tensors of a model in what was saved, by name."""
    if not isinstance(content, Mapping):
        return {}
    for key in WEIGHT_KEYS if depth else ():
        inner = content.get(key)
        if isinstance(inner, Mapping) and (found := weights_of(inner, depth - 1)):
            return without_attribute(found) if "pytorch-lightning_version" in content else found
    return _tensors(content)


def _tensors(content: object) -> dict[str, StoredTensor]:
    items = content.items() if isinstance(content, Mapping) else ()
    return {str(name): v for name, v in items if isinstance(v, StoredTensor) and isinstance(name, NAMES)}


def without_attribute(weights: dict[str, Any]) -> dict[str, Any]:
    """Take off the name of the attribute under which a LightningModule keeps its one model."""
    outer = {name.partition(".")[0] for name in weights}
    if len(outer) != 1 or not all("." in name for name in weights):
        return weights
    return {name.partition(".")[2]: tensor for name, tensor in weights.items()}
