"""A Hugging Face model folder: ``model.safetensors`` or ``pytorch_model.bin``, whole or sharded behind an index."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from toposcope.checkpoints.formats import safetensors_file, torch_file
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.sources import CheckpointError, Files, StoredFile
from toposcope.checkpoints.sources.fetching import is_relative_name

NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
LONGEST_NAME = 255
LARGEST_INDEX = 100_000_000


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: Any = None


def claims(names: Collection[str]) -> bool:
    """By the file names in it; shards without their index are a checkpoint too, if not a whole one."""
    return any(name in names for name in NAMES) or any(SHARD.fullmatch(name) for name in names)


def is_file_name(name: str) -> bool:
    """Tell whether a name that comes from outside can only mean a file in one folder."""
    return "/" not in name and is_relative_name(name) and len(name) <= LONGEST_NAME


def entries(spec: str, files: Files) -> list[Entry]:
    """List the tensors of every shard."""
    name = next((name for name in NAMES if name in files), None)
    if name is None:
        shards = sorted(n for n in files if SHARD.fullmatch(n))
        raise CheckpointError(
            f"{spec}: {len(shards)} shards ({shards[0]}) and no index that tells what they hold; fetch the "
            "index file too",
            "missing shard",
        )
    read = safetensors_file.entries_of if "safetensors" in name else torch_file.entries_of
    if not name.endswith(".json"):
        return read(files[name])
    index = _index(files[name], files)
    shard_of = index.weight_map
    found = []
    for shard in sorted(set(shard_of.values())):
        inside = read(files[shard])
        strays = sorted(entry.name for entry in inside if shard_of.get(entry.name) != shard)
        if strays:
            where = shard_of.get(strays[0])
            told = f"which the index puts into {where}" if where else "which the index does not name"
            raise CheckpointError(
                f"{files[shard].location}: holds {strays[0]!r}, {told}; fetch the shards again", "index"
            )
        found += inside
    missing = sorted(set(shard_of) - {entry.name for entry in found})
    if missing:
        raise CheckpointError(
            f"{files[name].location}: no shard holds {missing[0]!r}, which the index names; fetch the shards again",
            "index",
        )
    return found


def disagreement(files: Files, found: Sequence[Entry]) -> str:
    """Return how the bytes of all shards differ from what their index says of them; empty if they do not.

    Nothing that is read depends on it, so it keeps no checkpoint from being opened. Writers differ in what they count:
    a tied weight that a pickle holds under two names once or twice, a logical number as a byte or as a bit. Each of
    these passes.
    """
    name = next((name for name in NAMES if name in files), "")
    if not name.endswith(".json"):
        return ""
    file = files[name]
    metadata = _index(file, files).metadata
    told = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(told, int | float):
        return ""
    sizes = [entry.n_bytes for entry in found]
    logical = sum(size for size, entry in zip(sizes, found, strict=True) if entry.dtype == "bool")
    twice = [0] if file.location.endswith(".safetensors.index.json") else [0, *sizes]
    if any(sum(sizes) - tied - logical * 7 / 8 - 1 < told <= sum(sizes) - tied for tied in twice):
        return ""
    return f"{file.location}: the index tells of {told:.15g} bytes of weights, the shards hold {sum(sizes)}"


def _index(index: StoredFile, files: Files) -> _Index:
    """Read which shard holds each tensor; an index is data from outside, and may only name files beside it."""
    try:
        if index.size > LARGEST_INDEX:
            raise ValueError("too long")
        content = msgspec.json.decode(index.read(0, index.size).tobytes(), type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CheckpointError(
            f"{index.location}: not a shard index (no weight_map of names); fetch it again", "damaged"
        ) from error
    for name in sorted(set(content.weight_map.values())):
        if not is_file_name(name):
            raise CheckpointError(
                f"{index.location}: names a shard outside its folder, or no file: {name[:80]!r}", "unsafe"
            )
        if name not in files:
            folder = index.location.removesuffix(index.location.rpartition("/")[2])
            raise CheckpointError(
                f"{folder}{name}: missing; the index names this shard. Fetch it again", "missing shard"
            )
    return content
