"""A model of llama.cpp: one ``*.gguf``, or its parts ``-00001-of-00003.gguf``; quantised weights are dequantised."""

import math
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry, contiguous
from toposcope.checkpoints.formats.model_folder import is_only, lone_file
from toposcope.checkpoints.formats.pickles import stream_of
from toposcope.checkpoints.sources.source import (
    Files,
    StoredFile,
    damaged,
    incomplete,
    truncated,
    unsupported,
)
from toposcope.extras import install, is_installed

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_VERSIONS = (2, 3)
_FLOATS = {0: "float32", 1: "float16", 28: "float64", 30: "bfloat16"}
_PLAIN = _FLOATS | {24: "int8", 25: "int16", 26: "int32", 27: "int64"}  # types of tensors that are numbers of torch
NVFP4 = 40
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of metadata, as formats of `struct`."""
_TEXT, _LIST = 8, 9
MAX_HEADER_BYTES = 1 << 25
MAX_KEPT_TEXT = 1 << 10
MAX_AXES = 4  # of a tensor in GGML
MAX_TENSORS = 1 << 18
_KINDS = {"model", "mmproj", ""}
"""Kinds of file that hold weights; the others are adapters, statistics and vocabularies."""


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file, or of the only weights in a folder, whole or in parts."""
    if len(names) == 1:
        return next(iter(names)).endswith(".gguf")
    return bool(_chosen(names))


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors by the headers of the file or its parts."""
    chosen = _chosen(files)
    headers = [_Header(files[name]) for name in chosen]
    _check_parts(spec, chosen, headers)
    listed = [entry for header in headers for entry in header.entries()]
    names = [entry.name for entry in listed]
    if len(set(names)) < len(names):
        raise damaged(headers[0].file, "two tensors have the same name")
    for name in names:
        if name.endswith(".scale") and f"{name.removesuffix('.scale')}.weight" in names:  # llama.cpp multiplies by it
            reason = f"a weight has a factor of its own in {name[:80]!a}; convert the model to F16 or BF16"
            raise unsupported(headers[0].file, reason)
    return listed


def _chosen(names: Collection[str]) -> list[str]:
    """Return the names of the files to read: the only one, or the parts of one model if there are no other weights."""
    if len(names) == 1:
        return list(names)
    if lone := lone_file(names, ".gguf"):
        return [lone]
    found = sorted(name for name in names if name.endswith(".gguf"))
    matches = [_PART.fullmatch(name) for name in found]
    stems = {(match[1], match[3]) if match and "/" not in match[1] else None for match in matches}
    return found if len(stems) == 1 and None not in stems and is_only(names, ".gguf") else []


def _check_parts(spec: str, names: Sequence[str], headers: Sequence["_Header"]) -> None:
    match = _PART.fullmatch(names[0].rpartition("/")[2])
    count = max(int(match[3]) if match else 1, headers[0].number("split.count", 1))
    if count == len(headers):
        return
    if len(headers) == 1:
        raise incomplete(headers[0].file, f"one of {count} parts of a model; name the folder that holds them all")
    there = {int(match[2]) for name in names if (match := _PART.fullmatch(name))}
    lost = [str(k) for k in range(1, min(count, MAX_TENSORS) + 1) if k not in there][:10]
    raise incomplete(spec, f"{len(headers)} of {count} parts of a model; fetch the others ({', '.join(lost)})")


class _Tensor(NamedTuple):
    """A tensor by its header; `offset` counts from the first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass
class _Header:
    """What a file says of its tensors."""

    file: StoredFile
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[_Tensor] = field(default_factory=list)
    begin: int = 0

    def __post_init__(self) -> None:
        try:
            self._read(stream_of(self.file))
        except EOFError as error:
            raise truncated(self.file, "its header ends too early", "fetch it again") from error
        except (ValueError, struct.error) as error:
            raise damaged(self.file, str(error)) from error
        kind = self.metadata.get("general.type", "")
        if kind not in _KINDS:
            raise unsupported(self.file, f"a GGUF file of type {str(kind)[:40]!a}, not a model; name the model's file")

    def number(self, name: str, default: int) -> int:
        value = self.metadata.get(name)
        return value if type(value) is int else default

    def entries(self) -> list[Entry]:
        """Return the tensors; they must lie one after another in the file."""
        found, end = [], 0
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise damaged(self.file, f"{tensor.name[:80]!a} overlaps with another tensor")
            end = tensor.offset + self._size(tensor)
            if self.begin + end > self.file.size:
                raise truncated(
                    self.file,
                    f"{tensor.name[:80]!a} ends at byte {self.begin + end}, the file has {self.file.size}",
                    "fetch it again",
                )
            found.append(self._entry(tensor))
        return found

    def _size(self, tensor: _Tensor) -> int:
        numbers, size = _block(self.file, tensor)
        if (tensor.shape[-1] if tensor.shape else 1) % numbers:
            raise damaged(self.file, f"{tensor.name[:80]!a} has rows of {tensor.shape[-1]}, not blocks of {numbers}")
        return math.prod(tensor.shape) // numbers * size

    def _entry(self, tensor: _Tensor) -> Entry:
        name, shape, place = tensor.name, tensor.shape, self.begin + tensor.offset
        if tensor.kind in _PLAIN:
            return contiguous(name, shape, _PLAIN[tensor.kind], self.file, place)
        numbers, size = _block(self.file, tensor)
        packed = contiguous(name, (*shape[:-1], shape[-1] // numbers * size), "uint8", self.file, place)
        read = partial(_dequantised, packed, tensor.kind, shape)
        return Entry(name, shape, "float32", read, note=f"GGUF {_quantised()[tensor.kind][0]}")

    def _read(self, stream: BinaryIO) -> None:
        if _bytes(stream, 4) != b"GGUF":
            raise ValueError("it does not begin as a GGUF file does")
        version = _whole(stream, 4)
        if version not in _VERSIONS:
            is_big = version.to_bytes(4, "big") in [known.to_bytes(4, "little") for known in _VERSIONS]
            other = f"GGUF of version {version}; only 2 and 3 are read. Convert the model again"
            big = "a big-endian GGUF file; convert it with gguf_convert_endian.py of llama.cpp"
            raise unsupported(self.file, big if is_big else other)
        n_tensors, n_values = _whole(stream, 8), _whole(stream, 8)
        if max(n_tensors, n_values) > MAX_TENSORS:
            raise ValueError(f"its header lists {max(n_tensors, n_values)} tensors or values")
        for _ in range(n_values):
            name = _text(stream)
            if name in self.metadata:
                raise ValueError(f"{name[:80]!a} comes twice in its header")
            self.metadata[name] = _value(stream, _whole(stream, 4))
        self.tensors = [_tensor(stream) for _ in range(n_tensors)]
        alignment = self.number("general.alignment", 32)
        if not 0 < alignment <= 1 << 20:
            raise ValueError("its alignment is no size")
        self.begin = -(-stream.tell() // alignment) * alignment
        if unaligned := next((tensor for tensor in self.tensors if tensor.offset % alignment), None):
            raise ValueError(f"{unaligned.name[:80]!a} begins between two places of its alignment")


def _bytes(stream: BinaryIO, size: int) -> bytes:
    if stream.tell() + size > MAX_HEADER_BYTES:
        raise ValueError(f"its header would be longer than {MAX_HEADER_BYTES} bytes")
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def _whole(stream: BinaryIO, size: int) -> int:
    return int.from_bytes(_bytes(stream, size), "little")


def _text(stream: BinaryIO) -> str:
    return _bytes(stream, _whole(stream, 8))[:MAX_KEPT_TEXT].decode(errors="backslashreplace")


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(stream)
    if kind == _LIST:
        return _skip_list(stream)
    if kind not in _NUMBERS:
        raise ValueError(f"its header holds a value of the unknown type {kind}")
    return struct.unpack(f"<{_NUMBERS[kind]}", _bytes(stream, struct.calcsize(_NUMBERS[kind])))[0]


def _skip_list(stream: BinaryIO) -> None:
    kind, count = _whole(stream, 4), _whole(stream, 8)
    if kind == _TEXT:
        for _ in range(count):
            _bytes(stream, _whole(stream, 8))
    elif kind in _NUMBERS:
        _bytes(stream, count * struct.calcsize(_NUMBERS[kind]))
    else:
        raise ValueError(f"its header holds a list of the unknown type {kind}")


def _tensor(stream: BinaryIO) -> _Tensor:
    """Read one tensor's description; GGML names the axis of a row's numbers first."""
    name, n_axes = _text(stream), _whole(stream, 4)
    if n_axes > MAX_AXES:
        raise ValueError(f"{name[:80]!a} has {n_axes} axes")
    axes = struct.unpack(f"<{n_axes}Q", _bytes(stream, 8 * n_axes))
    return _Tensor(name, axes[::-1], _whole(stream, 4), _whole(stream, 8))


# Quantised tensors


def _block(file: StoredFile, tensor: _Tensor) -> tuple[int, int]:
    """Return how many numbers a block has, and how many bytes."""
    if tensor.kind in _PLAIN:
        return 1, itemsize(_PLAIN[tensor.kind])
    if not is_installed("gguf"):
        raise unsupported(file, f"its weights are quantised; to read them, {install('gguf')}")
    if tensor.kind not in _quantised() or not tensor.shape:
        raise unsupported(file, f"{tensor.name[:80]!a} is of the unknown type {tensor.kind}; convert it to F16 or BF16")
    name, numbers, size, is_read = _quantised()[tensor.kind]
    if not is_read:
        raise unsupported(
            file, f"{tensor.name[:80]!a} is quantised as {name}, which is not read; convert it to F16 or BF16"
        )
    return numbers, size


@cache
def _quantised() -> Mapping[int, tuple[str, int, int, bool]]:
    """Return each quantised type: its name, numbers and bytes of a block, and whether it can be dequantised."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    found = {}
    for kind, (numbers, size) in GGML_QUANT_SIZES.items():
        try:
            dequantize(np.zeros((1, size), np.uint8), kind)
            # A second factor of NVFP4 lies in a tensor of its own.
            is_read = kind != NVFP4
        except NotImplementedError:
            is_read = False
        found[int(kind)] = kind.name, numbers, size, is_read
    return found


def _dequantised(packed: Entry, kind: int, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = shape if len(shape) == 1 else (stop - start, *shape[1:])
    if 0 in rows:
        return np.empty(rows, np.float32)
    # Of one axis all is read, as blocks lie across the requested numbers.
    read = packed.whole() if len(shape) == 1 else packed.read(start, stop)
    numbers: NDArray[np.float32] = dequantize(read, GGMLQuantizationType(kind))
    return numbers[start:stop] if len(shape) == 1 else numbers.reshape(rows)
