"""Arrays saved by NumPy: ``*.npz``, an archive with an array for each name."""

import io
import math
import zipfile
import zlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from toposcope.checkpoints.formats.contents import WEIGHT_KEYS, is_state
from toposcope.checkpoints.formats.dtypes import DTYPES
from toposcope.checkpoints.formats.entry import Entry, Listing, Unread, contiguous
from toposcope.checkpoints.formats.model_folder import lone_file
from toposcope.checkpoints.formats.pickles import stream_of
from toposcope.checkpoints.sources.source import (
    Files,
    RangeStream,
    StoredFile,
    damaged,
    malformed,
    truncated,
    unsupported,
)
from toposcope.checkpoints.steps import COUNTERS

_HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0, (3, 0): read_array_header_2_0}
_NUMBERS = {dtype: name for name, dtype in DTYPES.items() if dtype.names is None}


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file, or of the only weights in a folder."""
    return bool(lone_file(names, ".npz"))


def entries(_spec: str, files: Files) -> Listing:
    """List the arrays by their headers, without those of an optimizer."""
    file = files[lone_file(files, ".npz")]
    if file.read(0, min(2, file.size)).tobytes() != b"PK":
        raise malformed(file, "damaged, or not a file of NumPy, by its first bytes; fetch or save it again")
    arrays = _arrays(file)
    found = [array for array in arrays.values() if isinstance(array, Entry)]
    single = [e for e in found if e.name in COUNTERS and math.prod(e.shape) == 1 and "int" in e.dtype]
    stated = {e.name: n for e in single if (n := int(e.whole().item())) >= 0}
    names = _of_model(arrays)
    listed = [replace(array, name=names[array.name]) for array in found if array.name in names]
    return Listing(listed, (), stated, {n: array for n, array in arrays.items() if isinstance(array, Unread)})


def stated(spec: str, files: Files) -> dict[str, int]:
    """Return the counters among the arrays."""
    return dict(entries(spec, files).stated or {})


def _of_model(stored: Iterable[str]) -> dict[str, str]:
    """Return the own names of a model's arrays by those they are stored under, as ``params/w`` next to ``opt/m``."""
    names = {name: name for name in stored}
    while heads := {name.partition("/")[0] for name in names.values() if "/" in name}:
        states = {head for head in heads if is_state(head, None)}
        key = next((key for key in WEIGHT_KEYS if key in heads and (states or key == "params")), "")
        if not (key or states):
            break
        inside = f"{key}/" if key else ""
        names = {n: name.removeprefix(inside) for n, name in names.items() if name.startswith(inside)}
        names = {n: name for n, name in names.items() if "/" not in name or name.partition("/")[0] not in states}
    dotted = {stored: name.replace("/", ".") for stored, name in names.items()}
    return dotted if len({*dotted.values()}) == len(dotted) else names


def _arrays(file: StoredFile) -> dict[str, Entry | Unread]:
    arrays: dict[str, Entry | Unread] = {}
    try:
        stream = stream_of(file)
        with zipfile.ZipFile(stream) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name == info.filename:
                    raise unsupported(file, f"an archive that holds {name[:80]!a}, not arrays alone; unpack it")
                if name in arrays:
                    raise damaged(file, f"it holds {name[:80]!a} twice")
                with archive.open(info) as member:
                    begin = stream.tell()  # after the header of the member
                    if begin + info.compress_size > file.size:
                        raise EOFError("an array ends after the file")
                    arrays[name] = _array(file, name, info, member, begin)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise truncated(file, f"its list of arrays cannot be read ({str(error)[:80]!a})") from error
    except (NotImplementedError, RuntimeError) as error:
        raise unsupported(file, f"an archive that numpy.savez does not write ({str(error)[:80]!a})") from error
    return arrays


def _array(file: StoredFile, name: str, info: zipfile.ZipInfo, member: Any, begin: int) -> Entry | Unread:
    """Return one array of an archive, of which only the header is read; nothing of texts and times."""
    try:
        shape, is_fortran, dtype = _HEADERS[read_magic(member)](member)
    except (ValueError, SyntaxError, RecursionError, MemoryError, KeyError, TypeError) as error:
        raise damaged(file, f"{name[:80]!a} does not begin as an array of numbers does") from error
    if dtype.kind in "USMm":
        return Unread(f"array of dtype {dtype.str}", 0)
    known = _NUMBERS.get(dtype.newbyteorder("="))
    if known is None:
        code = "records" if dtype.names is not None else dtype.str.lstrip("<>=|")[:40]
        raise unsupported(file, f"{name[:80]!a} holds {code!a}, no plain numbers; save arrays of float32")
    if member.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise truncated(file, f"{name[:80]!a} has {info.file_size} bytes, which does not fit its shape")
    if info.compress_type == zipfile.ZIP_STORED and not is_fortran and dtype.isnative:
        if info.compress_size != info.file_size:
            raise damaged(file, f"{name[:80]!a} has two sizes")
        return contiguous(name, shape, known, file, begin + member.tell())
    return Entry(name, shape, known, partial(_whole_read, file, name), sequential_rows=False)


def _whole_read(file: StoredFile, name: str, start: int, stop: int) -> NDArray[Any]:
    """Return rows of an array that is compressed, or lies otherwise than row by row: it is read whole."""
    try:
        with np.load(io.BufferedReader(RangeStream(file), 1 << 20)) as arrays:
            whole: NDArray[Any] = arrays[name]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise damaged(file, f"the bytes of {name[:80]!a} cannot be read") from error
    whole = np.ascontiguousarray(whole.astype(whole.dtype.newbyteorder("="), copy=False)).reshape(whole.shape)
    return whole[start:stop] if whole.ndim else whole
