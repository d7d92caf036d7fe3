"""A Hugging Face model folder: ``model.safetensors`` or ``pytorch_model.bin``, whole or sharded behind an index."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from toposcope.checkpoints.formats import safetensors_file, torch_file
from toposcope.checkpoints.formats.contents import Inside, Key, refuse_key
from toposcope.checkpoints.formats.entry import Entry, Listing
from toposcope.checkpoints.formats.series_inside import trainer_counters
from toposcope.checkpoints.formats.weight_names import SECOND_MODEL, refuse_pointers
from toposcope.checkpoints.sources import CheckpointError, Files, StoredFile
from toposcope.checkpoints.sources.source import is_relative_name

NAMES = tuple("model.safetensors.index.json model.safetensors pytorch_model.bin.index.json pytorch_model.bin".split())
SHARD = re.compile(r"(model|pytorch_model)-(\d+)-of-(\d+)\.(safetensors|bin)")
MAX_NAME_LENGTH = 255
MAX_INDEX_BYTES = 100_000_000


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: Any = None


def claims(names: Collection[str]) -> bool:
    """By the file names; shards without an index are a checkpoint too, an incomplete one."""
    return any(name in names for name in NAMES) or any(SHARD.fullmatch(name) for name in names)


def is_file_name(name: str) -> bool:
    """Return whether a name that an index gives can only be a file of its folder."""
    return "/" not in name and is_relative_name(name) and len(name) <= MAX_NAME_LENGTH


def reader(name: str) -> Any:
    """Return the format that reads a file of weights."""
    return safetensors_file if name.endswith(".safetensors") else torch_file


def entries(spec: str, files: Files, key: Key = ()) -> list[Entry]:
    """List the tensors of every shard."""
    name = _main(files)
    if not name:
        shards = sorted(n for n in files if SHARD.fullmatch(n))
        raise CheckpointError(
            f"{spec}: {len(shards)} shards ({shards[0]}) and no index of their content; fetch the index file too",
            "missing shard",
        )
    if not name.endswith(".json"):
        listed = reader(name).entries(spec, {name: files[name]}, key)
        seconds = sorted(n for n in files if SECOND_MODEL.fullmatch(n))
        notes = [f"also holds other models: {', '.join(seconds[:3])}; name the file to read one"] if seconds else []
        return Listing(listed, [*getattr(listed, "notes", ()), *notes], getattr(listed, "stated", None))
    refuse_key(spec, key)
    read = reader(name.removesuffix(".index.json")).entries
    shard_of = _index(files[name], files).weight_map
    listed = Listing()
    for shard in sorted(set(shard_of.values())):
        inside = read(spec, {shard: files[shard]})
        strays = sorted(entry.name for entry in inside if shard_of.get(entry.name) != shard)
        if strays:
            where = shard_of.get(strays[0])
            placed = f"which the index puts into {where}" if where else "which the index does not name"
            raise CheckpointError(
                f"{files[shard].location}: holds {strays[0]!r}, {placed}; fetch the shards again", "index"
            )
        listed = Listing([*listed, *inside], [*listed.notes, *getattr(inside, "notes", ())])
    missing = sorted(set(shard_of) - {entry.name for entry in listed})
    if missing:
        raise CheckpointError(
            f"{files[name].location}: no shard holds {missing[0]!r}, which the index names; fetch the shards again",
            "index",
        )
    return listed


def inside(spec: str, files: Files, key: Key = ()) -> Inside:
    """Return what else the one file holds, and the counters stated there or in the folder."""
    name = _main(files)
    if name and not name.endswith(".json"):
        found: Inside = reader(name).inside(spec, {name: files[name]}, key)
        return replace(found, stated=trainer_counters(files) | found.stated)
    refuse_key(spec, key)
    return Inside(stated=trainer_counters(files))


def _main(names: Collection[str]) -> str:
    """Return the name of the index or of the file that is whole, also as the only shard; empty if there is none."""
    only = [name for name in names if (match := SHARD.fullmatch(name)) and int(match[2]) == int(match[3]) == 1]
    return next((name for name in [*NAMES, *only] if name in names), "")


def disagreement(files: Files, stored: Sequence[Entry]) -> str:
    """Return how the size of all shards differs from the size that their index gives, or an empty text.

    Nothing that is read depends on it, so the checkpoint opens all the same. Writers count a tied weight of a pickle
    once or twice, and a logical value as a byte or as a bit; each of these counts as equal.
    """
    name = next((name for name in NAMES if name in files), "")
    if not name.endswith(".json"):
        return ""
    file = files[name]
    metadata = _index(file, files).metadata
    expected = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(expected, int | float):
        return ""
    sizes = [entry.n_bytes for entry in stored]
    logical = sum(size for size, entry in zip(sizes, stored, strict=True) if entry.dtype == "bool")
    twice = [0] if file.location.endswith(".safetensors.index.json") else [0, *sizes]
    if any(sum(sizes) - tied - logical * 7 / 8 - 1 < expected <= sum(sizes) - tied for tied in twice):
        return ""
    return f"{file.location}: the index gives {expected:.15g} bytes of weights, the shards hold {sum(sizes)}"


def _index(index: StoredFile, files: Files) -> _ShardIndex:
    """Read which shard holds each tensor; an index may only name files of its folder."""
    try:
        if index.size > MAX_INDEX_BYTES:
            raise ValueError("too long")
        content = msgspec.json.decode(index.read(0, index.size).tobytes(), type=_ShardIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        refuse_pointers({index.location: index})
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
