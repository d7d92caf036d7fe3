"""One file written by ``torch.save``: a pickle, read as data, and the numbers of its tensors."""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import DTYPES, itemsize
from toposcope.checkpoints.formats.entry import Entry, as_array
from toposcope.checkpoints.formats.weight_names import TORCH, is_other
from toposcope.checkpoints.sources import Bytes, CheckpointError, Files, StoredFile
from toposcope.checkpoints.sources.range_stream import RangeStream
from toposcope.checkpoints.unpickling import MAX_PICKLE_BYTES, TENSOR_NAMES, StoredStorage, StoredTensor, load

WEIGHT_KEYS = ("model_state_dict", "state_dict", "model", "module", "model_state", "state", "app")
"""Keys under which trainers save the weights: ours and many others, Lightning, nanoGPT, DeepSpeed, Composer (state,
then model), the recipes of torch.distributed.checkpoint (app, then model)."""
MAX_NESTING = 4
"""Keys within keys; a pickled dictionary can hold itself."""
LOCAL_HEADER_BYTES = 30
MAX_EXPANDED_BYTES = 1 << 24
"""Of a tensor that repeats fewer stored numbers by its strides: a causal mask of 2,048 tokens in float32."""
MAX_PADDING = 128
"""Bytes that torch may put between a record's header and its numbers."""
CHECKED_BYTES = 1 << 24
"""Bytes of a record in memory at a time while its checksum is computed."""
MAX_READ_AHEAD = 1 << 15
"""Bytes of a record that are read together with its header."""
SIGNATURES = {"zip": b"PK\x03\x04", "legacy": b"\x80"}
NAMES = (str, int)
Data = Callable[[int, int], Bytes]
"""Reads a range of the bytes of a storage."""
MAGIC = 0x1950A86A20F9469CFC6C
"""Pickled first in files from before torch 1.6."""


def claims(names: Collection[str]) -> bool:
    """By the suffix of a single file that does not belong to the optimizer."""
    return len(names) == 1 and (name := next(iter(names))).endswith(TORCH) and not is_other(name)


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors without reading their data."""
    (file,) = files.values()
    return entries_of(file)


def entries_of(file: StoredFile) -> list[Entry]:
    """List the tensors of one file."""
    begin = file.read(0, min(4, file.size)).tobytes()
    if not begin.startswith(tuple(SIGNATURES.values())):
        raise CheckpointError(f"{file.location}: damaged, or not a torch file; fetch or save it again", "damaged")
    archive = Archive(file) if begin == SIGNATURES["zip"] else Legacy(file)
    return [archive.entry(name, tensor) for name, tensor in _model(file, archive.content).items()]


def check(file: StoredFile, *, only_weights: bool) -> None:
    """Compare what a file holds with its checksums; a file from before torch 1.6 has none.

    Parameters
    ----------
    file : StoredFile
    only_weights : bool
        Only the model's tensors; otherwise also the state of an optimizer, say.

    Raises
    ------
    CheckpointError
        If bytes differ.
    """
    if file.read(0, min(4, file.size)).tobytes() == SIGNATURES["zip"]:
        Archive(file).check(only_weights=only_weights)


def _model(file: StoredFile, content: object) -> dict[str, StoredTensor]:
    """Find the tensors of the model, also under a single key of the user's own."""
    weights = weights_of(content)
    keys: Mapping[Any, Any] = content if isinstance(content, Mapping) else {}
    is_usual = any(key in WEIGHT_KEYS for key in keys)
    if weights and (is_usual or any(len(tensor.shape) > 1 for tensor in weights.values())):
        return weights
    own = [key for key in keys if _tensors(keys[key]) and not is_other(str(key))]
    if len(own) == 1 and not is_usual:
        return _tensors(keys[own[0]])
    if weights and not own:
        return weights
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
        Its place in a file of several archives.

    Attributes
    ----------
    pickle : bytes
        Describes the tensors; not parsed yet.
    """

    def __init__(self, file: StoredFile, start: int = 0, stop: int | None = None) -> None:
        self._file, self._start = file, start
        # The directory at the end lists as many records as there are tensors.
        ahead = 1 << 16 if stop is None else 1 << 12
        try:
            with zipfile.ZipFile(io.BufferedReader(RangeStream(file, start, stop), ahead)) as archive:
                listed = archive.infolist()
                self._records = {info.filename.partition("/")[2]: info for info in listed}
                self._check(len(listed))
                # With torch.serialization.set_crc32_options(False) all of them are 0.
                self._has_checksums = any(info.CRC for info in listed)
            if "byteorder" in self._records and self._content("byteorder") != b"little":
                raise self._damaged("its numbers are big-endian; save it again on another machine")
            self.pickle = self._content("data.pkl")
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{file.location}: truncated or damaged: the directory at its end cannot be read; fetch or save it "
                "again",
                "truncated",
            ) from error

    @property
    def content(self) -> Any:
        """The saved object, `StoredTensor` for each tensor; parsed anew each time rather than kept in memory."""
        return load(io.BytesIO(self.pickle), self._file.location, TENSOR_NAMES, _storage)

    def _check(self, count: int) -> None:
        if "data.pkl" not in self._records:
            raise self._damaged("it has no data.pkl")
        if "constants.pkl" in self._records:
            raise self._damaged("it is a TorchScript program; save its state_dict() instead")
        if len(self._records) != count:
            raise self._damaged("it holds two records of the same name")
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._records.values()):
            raise self._damaged("its records are compressed, which torch never does")

    def _content(self, record: str) -> bytes:
        info = self._records[record]
        if info.file_size > MAX_PICKLE_BYTES:
            raise self._damaged(f"its {record} would be {info.file_size} bytes long")
        content = self._data(info, 0, info.file_size).tobytes()
        if self._has_checksums and zlib.crc32(content) != info.CRC:
            raise zipfile.BadZipFile
        return content

    def check(self, *, only_weights: bool) -> None:
        """Compare records with their CRC-32.

        Parameters
        ----------
        only_weights : bool
            Only those of the model's tensors.

        Raises
        ------
        CheckpointError
            If one differs.
        """
        names = list(self._records) if self._has_checksums else []
        if only_weights:
            needed = {f"data/{tensor.storage.record}" for tensor in _model(self._file, self.content).values()}
            names = [name for name in names if name in needed]
        for name in names:
            info, crc = self._records[name], 0
            for start in range(0, info.file_size, CHECKED_BYTES):
                crc = zlib.crc32(self._data(info, start, min(start + CHECKED_BYTES, info.file_size)).data, crc)
            if crc != info.CRC:
                raise CheckpointError(
                    f"{self._file.location}: damaged: the bytes of its record {name[:80]!r} do not match their CRC-32; "
                    "fetch or save it again",
                    "damaged",
                )

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors; its record must exist and be long enough."""
        info = self._records.get(f"data/{tensor.storage.record}")
        if info is None:
            raise self._damaged(f"{name[:80]!r} has no data")
        return _entry(self._file, name, tensor, info.file_size, partial(self._data, info))

    def _data(self, info: zipfile.ZipInfo, start: int, stop: int) -> Bytes:
        """Read bytes of a record's numbers, which begin after a header of variable length."""
        at = self._start + info.header_offset
        ahead = len(info.filename) + MAX_PADDING + stop if stop <= MAX_READ_AHEAD else 0
        read = self._file.read(at, min(at + LOCAL_HEADER_BYTES + ahead, self._file.size))
        header = read[:LOCAL_HEADER_BYTES].tobytes()
        if not header.startswith(SIGNATURES["zip"]):
            raise self._damaged(f"its record {info.filename[:80]!r} is not where its end says")
        begin = LOCAL_HEADER_BYTES + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if begin + stop <= len(read):
            return read[begin + start : begin + stop]
        return self._file.read(at + begin + start, at + begin + stop)

    def _damaged(self, reason: str) -> CheckpointError:
        return _not_weights(self._file, reason)


class Legacy:
    """A file from before torch 1.6: a sequence of pickles, then the numbers.

    Attributes
    ----------
    content : object
        The saved object with a `StoredTensor` for each tensor.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._storages: dict[str, StoredStorage] = {}
        stream = cast(BinaryIO, io.BufferedReader(RangeStream(file), 1 << 16))
        magic, _version, system, self.content, keys = (self._load(stream) for _ in range(5))
        if magic != MAGIC or not isinstance(system, Mapping) or not isinstance(keys, list):
            raise CheckpointError(f"{file.location}: damaged, or not a torch file; fetch or save it again", "damaged")
        if system.get("little_endian") is not True:
            raise _not_weights(file, "its numbers are big-endian; save it again on another machine")
        self._begins = self._places(keys, stream.tell())

    def _load(self, stream: BinaryIO) -> Any:
        return load(stream, self._file.location, TENSOR_NAMES, self._stored)

    def _stored(self, reference: Any) -> StoredStorage:
        storage = _storage(reference)
        return self._storages.setdefault(storage.record, storage)

    def _places(self, keys: list[Any], at: int) -> dict[str, int]:
        """Return where the numbers of each storage begin; the storages follow each other, each after its count."""
        begins = {}
        for key in keys:
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None or key in begins:
                raise _not_weights(self._file, "it lists a storage that belongs to no tensor")
            begins[key] = at + 8
            at += 8 + storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        if at > self._file.size:
            raise CheckpointError(
                f"{self._file.location}: truncated or damaged: {at} bytes are needed, there are {self._file.size}; "
                "fetch or save it again",
                "truncated",
            )
        return begins

    def entry(self, name: str, tensor: StoredTensor) -> Entry:
        """Return one of its tensors."""
        storage = tensor.storage
        if storage.record not in self._begins:
            raise _not_weights(self._file, f"{name[:80]!r} has no data")
        size = storage.count * (itemsize(storage.dtype) if storage.dtype else 1)
        return _entry(self._file, name, tensor, size, partial(self._data, storage))

    def _data(self, storage: StoredStorage, start: int, stop: int) -> Bytes:
        begin = self._begins[storage.record]
        if int.from_bytes(self._file.read(begin - 8, begin).tobytes(), "little") != storage.count:
            raise _not_weights(self._file, "the count of its numbers is wrong")
        return self._file.read(begin + start, begin + stop)


def _not_weights(file: StoredFile, reason: str) -> CheckpointError:
    return CheckpointError(f"{file.location}: not weights saved by torch, or damaged: {reason}", "damaged")


def _storage(reference: Any) -> StoredStorage:
    kind, typed, record, _device, count, *view = reference
    if kind != "storage" or not isinstance(typed, StoredStorage) or view.count(None) < len(view):
        raise ValueError("an unknown kind of stored object")
    if not isinstance(record, str) or type(count) is not int or count < 0:
        raise ValueError("a storage without name or count")
    return StoredStorage(record, typed.dtype, count)


def _entry(file: StoredFile, name: str, tensor: StoredTensor, size: int, data: Data) -> Entry:
    """Return a tensor of a storage of `size` bytes."""
    needed = (tensor.offset + _extent(tensor.shape, tensor.strides)) * itemsize(tensor.dtype)
    if needed > size:
        raise _not_weights(file, f"{name[:80]!r} needs more than the {size} bytes of its storage")
    expanded = math.prod(tensor.shape) * itemsize(tensor.dtype)
    if expanded > max(size, MAX_EXPANDED_BYTES):
        raise _not_weights(file, f"{name[:80]!r} expands {size} stored bytes to {expanded:.3g} by repeating them")
    read = partial(_read, tensor, data)
    return Entry(name, tensor.shape, tensor.dtype, read, _rows_are_separate(tensor.shape, tensor.strides))


def _read(tensor: StoredTensor, data: Data, start: int, stop: int) -> NDArray[Any]:
    size = itemsize(tensor.dtype)
    shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
    span = _extent(shape, tensor.strides)
    if not span:
        return np.empty(shape, DTYPES[tensor.dtype])
    first = (tensor.offset + start * (tensor.strides[0] if tensor.shape else 0)) * size
    numbers = as_array(data(first, first + span * size), tensor.dtype, (span,))
    return as_strided(numbers, shape, [stride * size for stride in tensor.strides])


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many numbers of the storage a tensor covers."""
    span = 1
    for extent, stride in zip(shape, strides, strict=True):
        if not extent:
            return 0
        span += (extent - 1) * stride
    return span


def _rows_are_separate(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the rows of a tensor follow each other in the storage, or are all the same."""
    return not shape or _extent(shape[1:], strides[1:]) <= max(strides[0], 1) or strides[0] == 0


def weights_of(content: object, depth: int = MAX_NESTING) -> dict[str, StoredTensor]:
    """Find the tensors of a model in what was saved, by name."""
    if not isinstance(content, Mapping):
        return {}
    for key in WEIGHT_KEYS if depth else ():
        inner = content.get(key)
        if isinstance(inner, Mapping) and (weights := weights_of(inner, depth - 1)):
            return without_attribute(weights) if "pytorch-lightning_version" in content else weights
    return _tensors(content)


def _tensors(content: object) -> dict[str, StoredTensor]:
    items = content.items() if isinstance(content, Mapping) else ()
    return {str(name): v for name, v in items if isinstance(v, StoredTensor) and isinstance(name, NAMES)}


def without_attribute(weights: dict[str, Any]) -> dict[str, Any]:
    """Remove the name of the attribute under which a LightningModule keeps its model."""
    outer = {name.partition(".")[0] for name in weights}
    if len(outer) != 1 or not all("." in name for name in weights):
        return weights
    return {name.partition(".")[2]: tensor for name, tensor in weights.items()}
