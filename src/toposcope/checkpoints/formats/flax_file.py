"""A checkpoint of Flax, in msgpack: ``*.msgpack``, ``checkpoint_1000``, or the shards of ``flax_model.msgpack``."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, BinaryIO

import msgspec

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.formats.entry import Entry, Rows, reshaped, stacked
from toposcope.checkpoints.formats.model_folder import is_only, lone_file
from toposcope.checkpoints.formats.pickles import StoredArray, StoredDtype, array_entry, stream_of
from toposcope.checkpoints.formats.weight_names import is_other
from toposcope.checkpoints.sources.source import (
    Files,
    StoredFile,
    damaged,
    incomplete,
    truncated,
    unsupported,
)
from toposcope.checkpoints.unpickling import Deferred, StoredStorage, StoredTensor, Unknown, natural_numbers

DEFAULT_NAME = "flax_model.msgpack"
_SHARD = re.compile(r"flax_model-(\d{5})-of-(\d{5})\.msgpack")
_LEGACY = re.compile(r"(?:.*/)?checkpoint_\d{1,18}")  # as flax.training.checkpoints names its files
_STATE = re.compile(r"(?:.*/)?opt_?state[^/]*")
MAX_VALUES = 1 << 20
MAX_TEXT_BYTES = 1 << 16
MAX_DEPTH = 64
_CHUNKED = "__msgpack_chunked_array__"
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # the extension types of Flax


def claims(names: Collection[str]) -> bool:
    """By the name of a single file, or of the only weights in a folder."""
    if len(names) == 1 and not _shards(names):
        (name,) = names
        return bool(_LEGACY.fullmatch(name)) or (name.endswith(".msgpack") and not _is_other(name))
    return bool(_named(names))


def opened(spec: str, files: Files) -> tuple[StoredFile, "_Saved"]:
    """List the arrays by where they lie; their numbers are skipped, and every shard must be there."""
    names = list(files) if len(files) == 1 else _named(files)
    if (match := _SHARD.fullmatch(names[0])) and (missing := int(match[2]) - len(names)):
        raise incomplete(spec, f"{missing} of {int(match[2])} shards of {DEFAULT_NAME} are missing; fetch them again")
    found = [files[name] for name in names]
    return found[0], _Saved(found)


def _is_other(name: str) -> bool:
    return is_other(name) or _STATE.fullmatch(name) is not None


def _shards(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _SHARD.fullmatch(name))


def _named(names: Collection[str]) -> list[str]:
    """Return the files of weights of a folder, none if it is of another format."""
    if DEFAULT_NAME in names:
        return [DEFAULT_NAME] if is_only(names, ".msgpack") else []
    if shards := _shards(names):
        return shards if is_only(names, ".msgpack") else []
    lone = lone_file([name for name in names if not _is_other(name)], ".msgpack")
    return [lone] if lone else []


class _Array(StoredArray):
    """An array: the file that holds it, and its chunks, if Flax split it."""

    __slots__ = ("chunks", "file")

    def __init__(self, file: StoredFile) -> None:
        super().__init__()
        self.file = file
        self.chunks: list[_Array] = []


class _Saved:
    """What files hold together (see `toposcope.checkpoints.formats.pickles.Opened`)."""

    def __init__(self, files: Iterable[StoredFile]) -> None:
        self.unknown: Unknown = {}
        self.content: dict[Any, Any] = {}
        for file in files:
            content = _Reader(file).read()
            if not isinstance(content, dict):
                raise unsupported(
                    file, "msgpack, but not of Flax: no dictionary; save with flax.serialization.to_bytes"
                )
            _merge(file, self.content, content)

    def entry(self, name: str, tensor: _Array) -> Entry:
        if not tensor.chunks or tensor.tensor is None:
            return array_entry(tensor.file, name, tensor)
        whole = stacked(name, [Rows.all(array_entry(chunk.file, name, chunk)) for chunk in tensor.chunks])
        return reshaped(name, tensor.tensor.shape, whole)


def _merge(file: StoredFile, into: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    for name, value in content.items():
        if name not in into:
            into[name] = value
        elif isinstance(value, dict) and isinstance(into[name], dict):
            _merge(file, into[name], value)
        else:
            raise damaged(file, f"it holds {str(name)[:80]!a} again, as another shard does")


class _Reader:
    """Reads msgpack without the numbers of arrays, of which it notes the place."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._stream: BinaryIO = stream_of(file)
        self._count = 0

    def read(self) -> Any:
        try:
            value = self._value(MAX_DEPTH)
        except EOFError as error:
            raise truncated(self._file, "it ends within a value") from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise damaged(self._file, f"not msgpack of Flax: {error}") from error
        if self._stream.tell() != self._file.size:
            raise damaged(self._file, "bytes follow its content")
        return value

    def _value(self, depth: int) -> Any:
        """Return a value: bytes as a `Deferred`, arrays as `_Array`."""
        self._count += 1
        if not depth or self._count > MAX_VALUES:
            raise ValueError("too many values in it, or too deep")
        code = self._bytes(1)[0]
        if code >= 0xE0 or code < 0x80:
            return code - 256 if code >= 0xE0 else code
        if code < 0x90 or code in (0xDE, 0xDF):
            return self._map(code & 15 if code < 0x90 else self._size(code, 0xDE, 2), depth - 1)
        if code < 0xA0 or code in (0xDC, 0xDD):
            count = code & 15 if code < 0xA0 else self._size(code, 0xDC, 2)
            return [self._value(depth - 1) for _ in range(self._bounded(count))]
        if code < 0xC0 or 0xD9 <= code <= 0xDB:
            return self._text(code & 31 if code < 0xC0 else self._size(code, 0xD9, 1))
        if 0xC4 <= code <= 0xC6:
            return self._skip(self._size(code, 0xC4, 1))
        if 0xC7 <= code <= 0xC9 or 0xD4 <= code <= 0xD8:
            size = 1 << (code - 0xD4) if code >= 0xD4 else self._size(code, 0xC7, 1)
            return self._extension(self._bytes(1)[0], size, depth - 1)
        return self._plain(code)

    def _plain(self, code: int) -> Any:
        if code in (0xC0, 0xC2, 0xC3):
            return None if code == 0xC0 else code == 0xC3
        if code == 0xC1:
            raise ValueError("a byte that msgpack does not use")
        width = (4, 8)[code - 0xCA] if code < 0xCC else 1 << ((code - 0xCC) % 4)
        return msgspec.msgpack.decode(bytes([code]) + self._bytes(width))

    def _size(self, code: int, first: int, width: int) -> int:
        """Return a size of as many bytes as its code says."""
        return int.from_bytes(self._bytes(width << (code - first)), "big")

    def _bounded(self, count: int) -> int:
        if count > MAX_VALUES:
            raise ValueError("too many values in it")
        return count

    def _map(self, count: int, depth: int) -> Any:
        found: dict[Any, Any] = {}
        for _ in range(self._bounded(count)):
            name = self._value(depth)
            if not isinstance(name, str | int):
                raise ValueError("a key that is no text")
            if name in found:
                raise ValueError("a key that comes twice")
            found[name] = self._value(depth)
        return self._joined(found) if _CHUNKED in found else found

    def _text(self, size: int) -> str:
        if size > MAX_TEXT_BYTES:
            self._skip(size)
            return ""
        return self._bytes(size).decode(errors="backslashreplace")

    def _skip(self, size: int) -> Deferred:
        start = self._stream.tell()
        if start + size > self._file.size:
            raise EOFError
        self._stream.seek(start + size)
        return Deferred(start, start + size)

    def _bytes(self, size: int) -> bytes:
        content = self._stream.read(size)
        if len(content) < size:
            raise EOFError
        return content

    def _extension(self, kind: int, size: int, depth: int) -> Any:
        """Return an array, or nothing of another extension type."""
        begin = self._stream.tell()
        if kind not in (_ARRAY, _SCALAR):
            self._skip(size)
            return None
        described = self._value(depth)
        if self._stream.tell() != begin + size or not isinstance(described, list) or len(described) != 3:
            raise ValueError("an array that is not described as one")
        shape, name, data = described
        if isinstance(name, Deferred) and name.stop - name.start < MAX_TEXT_BYTES:
            name = self._file.read(name.start, name.stop).tobytes().decode(errors="backslashreplace")
        dtype = StoredDtype()
        dtype.code = str(name)[:40]
        dtype.name = dtype.code if dtype.code in DTYPES else ""
        array = _Array(self._file)
        array.fill(shape, dtype, False, data)
        return array

    def _joined(self, fields: Mapping[Any, Any]) -> _Array:
        """Return an array that Flax split because it is large."""
        shape, chunks = (_list_of(fields.get(name)) for name in ("shape", "chunks"))
        sizes = natural_numbers(shape)
        parts = [chunk.tensor for chunk in chunks if isinstance(chunk, _Array) and chunk.tensor is not None]
        dtypes = {part.dtype for part in parts}
        if not parts or len(parts) < len(chunks) or len(dtypes) > 1 or any(len(part.shape) != 1 for part in parts):
            raise ValueError("an array in chunks that do not fit")
        if (count := sum(part.shape[0] for part in parts)) != math.prod(sizes):
            raise ValueError("an array in chunks that are not as long as its shape says")
        (dtype,) = dtypes
        array = _Array(self._file)
        array.chunks = chunks
        array.tensor = StoredTensor(StoredStorage("", dtype, count), dtype, 0, sizes, ())
        return array


def _list_of(fields: Any) -> list[Any]:
    """Return a list that Flax saves as a dictionary of its places."""
    if not isinstance(fields, dict) or list(fields) != [str(k) for k in range(len(fields))]:
        raise ValueError("an array in chunks without order")
    return list(fields.values())
