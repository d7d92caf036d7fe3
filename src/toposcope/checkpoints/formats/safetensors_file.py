"""One ``.safetensors`` file: a header of JSON, then the tensors one after another."""

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry, contiguous, slice_of
from toposcope.checkpoints.sources.local import LocalFile
from toposcope.checkpoints.sources.source import Files, StoredFile, damaged, malformed, truncated
from toposcope.checkpoints.steps import COUNTERS
from toposcope.checkpoints.unpickling import MAX_DIMENSIONS
from toposcope.errors import message_of
from toposcope.untrusted import MAX_BYTES, json_as, refuse_values

READ_AHEAD = 1 << 16  # bytes of the first read: most headers are shorter, and cached once parsed
DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool"},
    **{f"I{bits}": f"int{bits}" for bits in (64, 32, 16, 8)},
    **{f"U{bits}": f"uint{bits}" for bits in (64, 32, 16, 8)},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Described(msgspec.Struct):
    dtype: str
    shape: list[_Whole]
    data_offsets: tuple[_Whole, _Whole]


_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_METADATA = msgspec.json.Decoder(dict[str, Any] | None)
_DESCRIBED = msgspec.json.Decoder(_Described)
_Tensor = tuple[str, tuple[int, ...], str, int]  # name, shape, dtype, and offset of the data after the header


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file."""
    return len(names) == 1 and next(iter(names)).endswith(".safetensors")


def entries(_spec: str, files: Files) -> list[Entry]:
    """List the tensors from the header alone."""
    (file,) = files.values()
    begin, data_size, tensors, metadata = _content(file)
    if begin + data_size != file.size:
        wrong = truncated if begin + data_size > file.size else damaged
        raise wrong(file, f"the header promises {begin + data_size} bytes, there are {file.size}")
    listed = [contiguous(name, shape, dtype, file, begin + first) for name, shape, dtype, first in tensors]
    return _of_run(file, file.run, metadata, listed) if isinstance(file, LocalFile) and file.run else listed


def _of_run(file: LocalFile, run: str, metadata: Mapping[str, Any], listed: list[Entry]) -> list[Entry]:
    """Return the tensors of one run in a pack: a row of each for each of its runs."""
    try:
        runs = json_as(str(metadata.get("runs", "")).encode(), list[str])
    except ValueError as error:
        raise damaged(file.path, "no pack of runs: it names none", "restore it") from error
    if run not in runs:
        raise malformed(file.path, f"holds no run {run!r}; restore the pack's folder")
    if wrong := next((entry.name for entry in listed if entry.shape[:1] != (len(runs),)), ""):
        raise damaged(file.path, f"{wrong[:80]!a} has no row for each of {len(runs)} runs", "restore it")
    return [slice_of(entry, runs.index(run), entry.name) for entry in listed]


def stated(_spec: str, files: Files) -> dict[str, int]:
    """Return the counters in the metadata of the header, which are texts."""
    (file,) = files.values()
    texts = {name: text for name, text in _content(file)[3].items() if name in COUNTERS and isinstance(text, str)}
    return {name: int(n) for name, n in texts.items() if n.isascii() and n.isdigit() and len(n) < 19}


def _content(file: StoredFile) -> tuple[int, int, list[_Tensor], dict[str, Any]]:
    """Return where the data begin, how long they are, the tensors and the metadata."""
    header = _header(file)
    try:
        described = (_described if len(header) <= READ_AHEAD else _described.__wrapped__)(header)
    except ValueError as error:
        raise damaged(file, str(error)) from error
    return 8 + len(header), *described


def _header(file: StoredFile) -> bytes:
    first = file.read(0, min(READ_AHEAD, file.size)).data
    length = int.from_bytes(first[:8], "little")
    if length > MAX_BYTES:
        raise damaged(file, f"it does not begin as a safetensors file does, its header would be {length} bytes long")
    if len(first) < 8 or length > file.size - 8:
        raise truncated(file, f"its header does not fit into its {file.size} bytes")
    rest = file.read(len(first), 8 + length).tobytes() if 8 + length > len(first) else b""
    return bytes(first[8 : 8 + length]) + rest


@lru_cache(maxsize=64)
def _described(header: bytes) -> tuple[int, list[_Tensor], dict[str, Any]]:
    """Return how many bytes of data a header declares, its tensors and metadata; a series has few headers."""
    try:
        refuse_values(header)
        raw = _RAW.decode(header)
        metadata = _METADATA.decode(raw.pop("__metadata__", b"{}")) or {}
        described = {name: _DESCRIBED.decode(text) for name, text in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"its header is not valid ({message_of(error)[:120]!a})") from error
    tensors = []
    for name, tensor in described.items():
        (first, last), shape, dtype = tensor.data_offsets, tuple(tensor.shape), DTYPES.get(tensor.dtype, "")
        if not dtype:
            raise ValueError(f"{name[:80]!r} has the dtype {tensor.dtype[:40]!a}, which is not known")
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"the header gives {name[:80]!r} {len(shape)} dimensions")
        if tensor.dtype == "F4":  # for torch, two numbers of 4 bits are one element
            shape = (*shape[:-1], *(extent // 2 for extent in shape[-1:]))
        if last - first != math.prod(shape) * itemsize(dtype):
            raise ValueError(f"the header gives {name[:80]!r} {last - first} bytes, which does not fit its shape")
        tensors.append((name, shape, dtype, first))
    end = 0
    for first, last in sorted(tensor.data_offsets for tensor in described.values()):
        if first != end:
            raise ValueError(f"the header leaves a gap or an overlap between bytes {end} and {first}")
        end = last
    return end, tensors, metadata
