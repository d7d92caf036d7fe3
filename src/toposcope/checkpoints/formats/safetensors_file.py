"""One ``.safetensors`` file: a header of JSON, then the tensors one after another."""

import math
from collections.abc import Collection
from typing import Annotated

import msgspec
import torch

from toposcope.checkpoints.formats.entry import Entry, contiguous, itemsize
from toposcope.checkpoints.sources import CheckpointError, Files, StoredFile
from toposcope.checkpoints.unpickling import MOST_DIMENSIONS

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
LONGEST_HEADER = 100_000_000
"""Bytes, as the safetensors library has it."""
FIRST_READ = 1 << 16
"""Bytes read at first: most headers fit, and one request is enough."""


_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Described(msgspec.Struct):
    dtype: str
    shape: list[_Whole]
    data_offsets: tuple[_Whole, _Whole]


def claims(names: Collection[str]) -> bool:
    """By the ending of a single file."""
    return len(names) == 1 and next(iter(names)).endswith(".safetensors")


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors from the header alone."""
    (file,) = files.values()
    return entries_of(file)


def entries_of(file: StoredFile) -> list[Entry]:
    """List the tensors of one file."""
    begin, header = _header(file)
    found = []
    for name, described in header.items():
        first, last = described.data_offsets
        shape, dtype = _shape(file, name, described)
        length = math.prod(shape) * itemsize(dtype)
        if first > last or last - first != length:
            raise _damaged(file, f"the header gives {name[:80]!r} {last - first} bytes, which its shape does not need")
        found.append(contiguous(name, shape, dtype, file, begin + first))
    _check_places(file, begin, sorted(described.data_offsets for described in header.values()))
    return found


def _shape(file: StoredFile, name: str, described: _Described) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype as torch has them; two numbers of 4 bits are one element there."""
    shape, dtype = described.shape, DTYPES.get(described.dtype, "")
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise CheckpointError(
            f"{file.location}: damaged, or not for this version of torch: {name[:80]!r} holds numbers of the format "
            f"{described.dtype[:40]!a}",
            "damaged",
        )
    if len(shape) > MOST_DIMENSIONS:
        raise _damaged(file, f"the header gives {name[:80]!r} {len(shape)} dimensions")
    if described.dtype != "F4":
        return tuple(shape), dtype
    if not shape or shape[-1] % 2:
        raise _damaged(file, f"the header gives {name[:80]!r} an odd count of 4-bit numbers")
    return (*shape[:-1], shape[-1] // 2), dtype


def _check_places(file: StoredFile, begin: int, places: list[tuple[int, int]]) -> None:
    """Refuse a file in which tensors share bytes, or bytes belong to none."""
    end = 0
    for first, last in places:
        if first != end:
            raise _damaged(file, f"the header leaves bytes {end} to {first} to no tensor, or to two")
        end = last
    if begin + end > file.size:
        raise CheckpointError(
            f"{file.location}: truncated or damaged: the header promises {begin + end} bytes, there are {file.size}; "
            "fetch or save it again",
            "truncated",
        )
    if begin + end < file.size:
        raise _damaged(file, f"{file.size - begin - end} bytes more than the header promises")


def _header(file: StoredFile) -> tuple[int, dict[str, _Described]]:
    """Return where the data begins, and what is said of each tensor."""
    first = file.read(0, min(FIRST_READ, file.size)).tobytes()
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or length > file.size - 8:
        told = f"a header of {length} bytes in a file of {file.size}" if len(first) >= 8 else f"{file.size} bytes"
        raise CheckpointError(f"{file.location}: truncated or damaged: {told}; fetch or save it again", "truncated")
    if length > LONGEST_HEADER:
        raise _damaged(file, f"its header would be {length} bytes long")
    rest = file.read(len(first), 8 + length).tobytes() if 8 + length > len(first) else b""
    try:
        raw = msgspec.json.decode((first + rest)[8 : 8 + length], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return 8 + length, {name: msgspec.json.decode(text, type=_Described) for name, text in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(file, f"its header is no header ({str(error)[:120]!a})") from error


def _damaged(file: StoredFile, reason: str) -> CheckpointError:
    return CheckpointError(f"{file.location}: damaged safetensors file: {reason}; fetch or save it again", "damaged")
