"""Arrays saved by NumPy: ``*.npz``, an archive with an array for each name."""

import io
import warnings
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from toposcope.checkpoints.formats.contents import is_state
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.model_folder import lone_file
from toposcope.checkpoints.formats.pickles import (
    StoredArray,
    StoredDtype,
    array_entry,
    stream_of,
    strided_entry,
)
from toposcope.checkpoints.formats.weight_names import is_other
from toposcope.checkpoints.sources.source import (
    Bytes,
    Files,
    RangeStream,
    StoredFile,
    damaged,
    malformed,
    truncated,
    unsupported,
)
from toposcope.checkpoints.unpickling import Deferred, Unknown

MAX_ARRAYS = 100_000
_LOCAL_HEADER_BYTES = 30
_UNREADABLE = {
    "O": "holds Python objects, which only a pickle can; save each array under its own name with numpy.savez",
    "V": "has no dtype of NumPy (its writer's bfloat16, perhaps); save it as float32",
}
"""What is wrong with arrays by the first letter of their dtype."""
_NOT_NUMBERS = ("U", "S", "M", "m")  # texts and times


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file, or of the only weights in a folder."""
    if len(names) == 1:
        (name,) = names
        return name.endswith(".npz") and not is_other(name)
    return bool(lone_file(names, ".npz"))


def opened(_spec: str, files: Files) -> tuple[StoredFile, "_Arrays"]:
    """List the arrays by their headers."""
    (file,) = files.values() if len(files) == 1 else [files[lone_file(files, ".npz")]]
    return file, _Arrays(file)


class _Deflated(StoredArray):
    """A compressed array: its member of the archive, where that begins, and the bytes before the numbers."""

    __slots__ = ("begin", "header", "info")

    def __init__(self, info: zipfile.ZipInfo, begin: int) -> None:
        super().__init__()
        self.info, self.begin, self.header = info, begin, 0


class _Arrays:
    """The arrays of a file (see `toposcope.checkpoints.formats.pickles.Opened`)."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self.unknown: Unknown = {}
        if file.read(0, min(2, file.size)).tobytes() != b"PK":
            raise malformed(file, "damaged, or not a file of NumPy, by its first bytes; fetch or save it again")
        self.content: Any = _nested(_members(file))

    def entry(self, name: str, tensor: StoredArray) -> Entry:
        """Return one of the arrays; the rows of a compressed one are read with all before them."""
        if not isinstance(tensor, _Deflated) or tensor.tensor is None:
            return array_entry(self._file, name, tensor)
        size = tensor.tensor.storage.count * itemsize(tensor.tensor.dtype)
        data = partial(_inflated, self._file, tensor.info, tensor.begin, tensor.header)
        found = strided_entry(self._file, name, tensor.tensor, size, data, is_big=tensor.is_big)
        return replace(found, sequential_rows=False)


def _members(file: StoredFile) -> dict[str, StoredArray]:
    stream = stream_of(file)
    arrays: dict[str, StoredArray] = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            listed = archive.infolist()
            if len(listed) > MAX_ARRAYS:
                raise unsupported(file, f"an archive of {len(listed)} files, more than {MAX_ARRAYS} arrays")
            for info in listed:
                name = info.filename.removesuffix(".npy")
                if name == info.filename:
                    raise unsupported(file, f"an archive that holds {name[:80]!a}, not arrays alone; unpack it")
                if name in arrays:
                    raise damaged(file, f"it holds {name[:80]!a} twice")
                arrays[name] = _member(file, info, stream, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise truncated(file, f"its list of arrays cannot be read ({str(error)[:80]!a})") from error
    except (NotImplementedError, RuntimeError) as error:
        raise unsupported(file, f"an archive that numpy.savez does not write ({str(error)[:80]!a})") from error
    if not arrays:
        raise unsupported(file, "an empty archive; numpy.savez was called without arrays")
    return arrays


def _member(file: StoredFile, info: zipfile.ZipInfo, stream: IO[bytes], archive: zipfile.ZipFile) -> StoredArray:
    """Return one array of an archive, of which only the header is read."""
    stream.seek(info.header_offset)
    local = stream.read(_LOCAL_HEADER_BYTES)
    begin = info.header_offset + len(local)
    begin += int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    if begin + info.compress_size > file.size:
        raise EOFError("an array ends after the file")
    is_stored = info.compress_type == zipfile.ZIP_STORED
    if is_stored and info.compress_size != info.file_size:
        raise damaged(file, f"{info.filename[:80]!a} has two sizes")
    array = StoredArray() if is_stored else _Deflated(info, begin)
    with archive.open(info) as opened:
        header = _describe(file, repr(info.filename[:80]), array, opened, begin if is_stored else 0, info.file_size)
    if isinstance(array, _Deflated):
        array.header = header
    return array


def _describe(file: StoredFile, name: str, array: StoredArray, stream: IO[bytes], begin: int, size: int) -> int:
    """Set shape and dtype of an array by its header, and return how many bytes this has; `size` counts them too."""
    read = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0, (3, 0): read_array_header_2_0}
    try:
        with warnings.catch_warnings():  # of headers that Python 2 wrote
            warnings.simplefilter("ignore")
            shape, is_fortran, stored = read[read_magic(stream)](stream)
    except (ValueError, SyntaxError, RecursionError, MemoryError, KeyError, TypeError) as error:
        if "max_header_size" not in str(error):  # which only records exceed
            raise damaged(file, f"{name} does not begin as an array does") from error
        stored = None
    if stored is None or stored.names is not None:
        raise unsupported(file, f"{name} holds records, not numbers; save its fields as arrays")
    dtype = StoredDtype(stored.str)
    if not dtype.name and not dtype.code.startswith(_NOT_NUMBERS):
        reason = _UNREADABLE.get(dtype.code[:1], f"has the dtype {dtype.code!a}; save it as float64")
        raise unsupported(file, f"{name} {reason}")
    skipped = stream.tell()
    try:
        array.fill(shape, dtype, is_fortran, Deferred(begin + skipped, begin + size))
    except ValueError as error:
        raise truncated(file, f"{name} has {size - skipped} bytes of numbers, which does not fit its shape") from error
    return skipped


def _inflated(file: StoredFile, info: zipfile.ZipInfo, begin: int, header: int, start: int, stop: int) -> Bytes:
    """Return bytes of the numbers of a compressed array."""
    stream = io.BufferedReader(RangeStream(file, begin, begin + info.compress_size), 1 << 20)
    try:
        with zipfile.ZipExtFile(stream, "r", info) as opened:
            opened.seek(header + start)
            content = opened.read(stop - start)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise damaged(file, f"the compressed bytes of {info.filename[:80]!a} cannot be read") from error
    if len(content) != stop - start:
        raise damaged(file, f"{info.filename[:80]!a} ends too early")
    return np.frombuffer(bytearray(content), np.uint8)


def _nested(arrays: Mapping[str, StoredArray]) -> dict[str, Any]:
    """Return arrays under dotted names, in dictionaries where ``params/w`` and ``opt/m`` stand for a training state."""
    names = {name: name.replace("/", ".") for name in arrays}
    if len(set(names.values())) < len(names):
        return dict(arrays)
    heads = {name.partition("/")[0] for name in arrays if "/" in name}
    if "params" not in heads and not any(is_state(head, None) for head in heads):
        return {names[name]: array for name, array in arrays.items()}
    content: dict[str, Any] = {name: array for name, array in arrays.items() if "/" not in name}
    for head in heads - set(content):
        inside = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{head}/")}
        content[head] = _nested(inside)
    return content
