"""A checkpoint of Flax, in msgpack: ``*.msgpack``, ``checkpoint_1000``."""

import re
from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np

from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.formats.model_folder import only_weights
from toposcope.checkpoints.formats.pickles import Opened, StoredArray, StoredDtype
from toposcope.checkpoints.sources.local import LocalFile
from toposcope.checkpoints.sources.source import Files, StoredFile, damaged, truncated, unsupported
from toposcope.checkpoints.unpickling import Deferred

DEFAULT_NAME = "flax_model.msgpack"
_LEGACY = re.compile(r"(?:.*/)?checkpoint_\d{1,18}")  # as flax.training.checkpoints names its files
_STATE = re.compile(r"(?:.*/)?opt_?state[^/]*")
MAX_VALUES = 1 << 20
MAX_DEPTH = 64
MAX_REMOTE_BYTES = 1 << 30  # of a file that is not on this machine: all of it is in memory while it is listed
_ARRAY, _SCALAR = 1, 3  # the extension types of Flax with numbers
_MAP = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])
_DESCRIBED = msgspec.msgpack.Decoder(tuple[list[int], str, memoryview])
_SIZES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the count of a long list (the first two) or map, by its first byte."""


def claims(names: Collection[str]) -> bool:
    """By the name of a single file, or of the only weights in a folder."""
    return bool(_named(names))


def opened(_spec: str, files: Files) -> tuple[StoredFile, "_Saved"]:
    """List the arrays by where they lie; their numbers are skipped."""
    file = files[_named(files)]
    return file, _Saved(file)


def _named(names: Collection[str]) -> str:
    """Return the file of weights, nothing if they are of another format."""
    if len(names) == 1 and _LEGACY.fullmatch(name := next(iter(names))):
        return name
    found = only_weights([name for name in names if not _STATE.fullmatch(name)], ".msgpack")
    return DEFAULT_NAME if DEFAULT_NAME in found else found[0] if len(found) == 1 else ""


class _Saved(Opened):
    """What a file holds."""

    def __init__(self, file: StoredFile) -> None:
        super().__init__(file)
        self._count = 0
        if file.size > MAX_REMOTE_BYTES and not isinstance(file, LocalFile):
            raise unsupported(
                file, f"a file of Flax of {file.size:,} bytes on a server; fetch it first, it is read whole"
            )
        stored = file.read(0, file.size)  # a map of a file of this machine
        self._begin = stored.ctypes.data
        try:
            self.content = self._value(stored.data, MAX_DEPTH)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            wrong = truncated if "truncated" in str(error) else damaged
            raise wrong(file, f"not msgpack of Flax: {error}") from error
        if not isinstance(self.content, dict):
            raise unsupported(file, "msgpack, but not of Flax: no dictionary; save with flax.serialization.to_bytes")

    def _value(self, stored: memoryview, depth: int) -> Any:
        """Return a value, arrays as `StoredArray`; what is in a map or a list is bounded before it is made."""
        code = stored[0] if stored else 0xC1
        width = _SIZES.get(code, 0)
        if not width and not 0x80 <= code < 0xA0:
            return msgspec.msgpack.decode(stored, ext_hook=self._extension)
        count = int.from_bytes(stored[1 : 1 + width], "big") if width else code & 15
        self._count += count
        if not depth or self._count > MAX_VALUES:
            raise ValueError("too many values in it, or too deep")
        if code in (0xDC, 0xDD) or 0x90 <= code < 0xA0:
            return [self._value(memoryview(part), depth - 1) for part in _LIST.decode(stored)]
        parts = _MAP.decode(stored)
        if len(parts) < count:
            raise ValueError("a key that comes twice")
        if "__msgpack_chunked_array__" in parts:
            raise unsupported(self.file, "an array of more than 1 GiB, which Flax splits; save it with safetensors")
        return {name: self._value(memoryview(part), depth - 1) for name, part in parts.items()}

    def _extension(self, kind: int, stored: memoryview) -> Any:
        """Return an array, or nothing of another extension type."""
        if kind not in (_ARRAY, _SCALAR):
            return None
        shape, name, numbers = _DESCRIBED.decode(stored)
        dtype = StoredDtype()
        dtype.code = name[:40]
        dtype.name = dtype.code if dtype.code in DTYPES else ""
        start = np.frombuffer(numbers, np.uint8).ctypes.data - self._begin if len(numbers) else 0
        array = StoredArray()
        array.fill(shape, dtype, False, Deferred(start, start + len(numbers)))
        return array
