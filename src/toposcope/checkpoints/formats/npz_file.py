"""Arrays saved by NumPy: ``*.npz``, an archive with an array for each name."""

import io
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from toposcope.checkpoints.formats.contents import is_state
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.model_folder import lone_file
from toposcope.checkpoints.formats.pickles import Opened, StoredArray, StoredDtype, stream_of
from toposcope.checkpoints.sources.source import (
    Files,
    RangeStream,
    StoredFile,
    damaged,
    malformed,
    truncated,
    unsupported,
)
from toposcope.checkpoints.unpickling import Deferred

_NOT_NUMBERS = ("U", "S", "M", "m")  # codes of texts and times, which are left unread
_HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0, (3, 0): read_array_header_2_0}


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file, or of the only weights in a folder."""
    return bool(lone_file(names, ".npz"))


def opened(_spec: str, files: Files) -> tuple[StoredFile, "_Arrays"]:
    """List the arrays by their headers."""
    file = files[lone_file(files, ".npz")]
    return file, _Arrays(file)


class _Deflated(StoredArray):
    """A compressed array, by its name in the archive."""

    __slots__ = ("name",)
    name: str


class _Arrays(Opened):
    """The arrays of a file."""

    def __init__(self, file: StoredFile) -> None:
        super().__init__(file)
        if file.read(0, min(2, file.size)).tobytes() != b"PK":
            raise malformed(file, "damaged, or not a file of NumPy, by its first bytes; fetch or save it again")
        self.content = _nested(_members(file))

    def entry(self, name: str, tensor: Any) -> Entry:
        found = super().entry(name, tensor)
        if not isinstance(tensor, _Deflated):
            return found
        return replace(found, read=partial(_inflated, self.file, tensor.name), sequential_rows=False)


def _inflated(file: StoredFile, name: str, start: int, stop: int) -> NDArray[Any]:
    """Return rows of a compressed array, which is read whole."""
    try:
        with np.load(io.BufferedReader(RangeStream(file), 1 << 20)) as arrays:
            whole: NDArray[Any] = arrays[name]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise damaged(file, f"the compressed bytes of {name[:80]!a} cannot be read") from error
    whole = whole.astype(whole.dtype.newbyteorder("="), copy=False)
    return whole[start:stop] if whole.ndim else whole


def _members(file: StoredFile) -> dict[str, StoredArray]:
    stream = stream_of(file)
    arrays: dict[str, StoredArray] = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            for info in archive.infolist():
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
    return arrays


def _member(file: StoredFile, info: zipfile.ZipInfo, stream: BinaryIO, archive: zipfile.ZipFile) -> StoredArray:
    """Return one array of an archive, of which only the header is read."""
    name, is_stored = repr(info.filename[:80]), info.compress_type == zipfile.ZIP_STORED
    with archive.open(info) as opened:
        begin = stream.tell()  # after the header of the member
        if begin + info.compress_size > file.size:
            raise EOFError("an array ends after the file")
        if is_stored and info.compress_size != info.file_size:
            raise damaged(file, f"{name} has two sizes")
        shape, is_fortran, dtype = _header(file, name, opened)
        numbers = Deferred(begin + opened.tell(), begin + info.file_size)
    array = StoredArray()
    if not is_stored:
        array = _Deflated()
        array.name = info.filename
    try:
        array.fill(shape, dtype, is_fortran, numbers)
    except ValueError as error:
        length = numbers.stop - numbers.start
        raise truncated(file, f"{name} has {length} bytes of numbers, which does not fit its shape") from error
    return array


def _header(file: StoredFile, name: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, StoredDtype]:
    try:
        shape, is_fortran, stored = _HEADERS[read_magic(stream)](stream)
    except (ValueError, SyntaxError, RecursionError, MemoryError, KeyError, TypeError) as error:
        raise damaged(file, f"{name} does not begin as an array of numbers does") from error
    dtype = StoredDtype(stored.str)
    if stored.names is not None or not (dtype.name or dtype.code.startswith(_NOT_NUMBERS)):
        code = "records" if stored.names is not None else dtype.code
        raise unsupported(file, f"{name} holds {code!a}, no plain numbers; save arrays of float32 under their names")
    return shape, is_fortran, dtype


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
