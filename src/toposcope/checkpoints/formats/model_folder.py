"""A folder of weights: of transformers, whole or sharded behind an index, or one in which a single file holds them.

LitGPT, OLMo, PEFT, DeepSpeed, Megatron-LM and Meta write the latter.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePosixPath

import msgspec

from toposcope.checkpoints.formats import distributed, rank_files, safetensors_file, torch_file
from toposcope.checkpoints.formats.contents import Inside, Key, refuse_key
from toposcope.checkpoints.formats.counters import TRAINER_STATE, trainer_counters
from toposcope.checkpoints.formats.entry import Entry, Listing
from toposcope.checkpoints.formats.weight_names import (
    NUMBERED_SHARD,
    PICKLES,
    SECOND_MODEL,
    SHARD,
    TORCH,
    WHOLE_OR_INDEX,
    is_file_name,
    is_transformers_folder,
    of_weights,
    refuse_pointers,
)
from toposcope.checkpoints.sources.source import CheckpointError, Files, StoredFile, incomplete, malformed
from toposcope.untrusted import bytes_of, json_as

_PICKLED_WEIGHTS = re.compile("param|weight|model|state|ckpt|checkpoint", re.IGNORECASE)


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


def claims(names: Collection[str]) -> bool:
    """By the names of transformers, or by one file of whole weights among several, in no other kind of folder."""
    return is_transformers_folder(names) or _lone_weights(names) != ""


def _lone_weights(names: Collection[str]) -> str:
    """Return the one file of weights of a folder; a plain pickle only by its name, and where there is no other."""
    found = [
        name
        for name in names
        if "/" not in name
        and not name.startswith(".")
        and not SHARD.search(PurePosixPath(name).stem)
        and (safetensors_file.claims([name]) or torch_file.claims([name]))
    ]
    usual = [name for name in found if not name.endswith(PICKLES)]
    found = usual or [name for name in found if _PICKLED_WEIGHTS.search(name)]
    if len(names) == 1 or is_transformers_folder(names) or distributed.claims(names) or rank_files.claims(names):
        return ""
    return rank_files.lone_rank(names) or (found[0] if len(found) == 1 else "")


def only_weights(names: Collection[str], ending: str) -> list[str]:
    """Return the files of weights with an ending in a folder that has no others, nor any of a format before it."""
    found = [*of_weights({name: name for name in names if not name.endswith(PICKLES)})]
    if not all(name.endswith(ending) for name in found) or _lone_weights(names):
        return []
    return [name for name in found if "/" not in name]


def lone_file(names: Collection[str], ending: str) -> str:
    """Return the name of the one file of weights in a folder, empty if there are several or others."""
    found = only_weights(names, ending)
    return found[0] if len(found) == 1 else ""


def _main(names: Collection[str]) -> str:
    """Return the name of the index or of the file that is whole, also as the only shard; empty if there is none."""
    only = [n for n in names if (match := NUMBERED_SHARD.fullmatch(n)) and int(match[2]) == int(match[3]) == 1]
    return next((name for name in [*WHOLE_OR_INDEX, *only] if name in names), "") or _lone_weights(names)


def entries(spec: str, files: Files, key: Key = ()) -> list[Entry]:
    """List the tensors of the one file, or of every shard."""
    name = _main(files)
    if not name:
        shards = sorted(n for n in files if NUMBERED_SHARD.fullmatch(n))
        raise incomplete(
            spec, f"{len(shards)} shards ({shards[0]}) and no index of their content; fetch the index file too"
        )
    if name.endswith(".json"):
        refuse_key(spec, key)
        return _sharded(spec, files, name)
    listed = _entries(spec, name, files, key)
    seconds = sorted(n for n in files if SECOND_MODEL.fullmatch(n)) if is_transformers_folder(files) else []
    if seconds:
        listed.notes += (f"also holds other models: {', '.join(seconds[:3])}; name the file to read one",)
    return listed


def _entries(spec: str, name: str, files: Files, key: Key = ()) -> Listing:
    if name.endswith(".safetensors"):
        refuse_key(spec, key)
        return Listing(safetensors_file.entries(spec, {name: files[name]}))
    return torch_file.listing(files[name], torch_file.open_file(files[name]), key)


def _sharded(spec: str, files: Files, name: str) -> Listing:
    """List the tensors of every shard, which must be those of the index."""
    shard_of = _index(files[name], files).weight_map
    listed = Listing()
    found: dict[str, str] = {}
    for shard in sorted(set(shard_of.values())):
        inside = _entries(spec, shard, files)
        found |= dict.fromkeys((*(entry.name for entry in inside), *inside.unread), shard)
        listed.extend(inside)
        listed.notes += inside.notes
        listed.unread |= inside.unread
    wrong = sorted(tensor for tensor in shard_of.keys() | found.keys() if shard_of.get(tensor) != found.get(tensor))
    if wrong:
        places = f"{shard_of.get(wrong[0], 'no shard')}, it is in {found.get(wrong[0], 'none')}"
        raise CheckpointError(
            f"{files[name].location}: by this index {wrong[0]!r} is in {places}; fetch the shards again", "index"
        )
    return listed


def inside(spec: str, files: Files, key: Key = ()) -> Inside:
    """Return what else the one file holds, and the counters stated there or in the folder."""
    name = _main(files)
    if name.endswith((*TORCH, *PICKLES)):
        found = torch_file.within(files[name], torch_file.open_file(files[name]), key)
        return replace(found, stated=trainer_counters(files.get(TRAINER_STATE)) | found.stated)
    refuse_key(spec, key)
    own = safetensors_file.stated(spec, {name: files[name]}) if name.endswith(".safetensors") else {}
    return Inside(stated=trainer_counters(files.get(TRAINER_STATE)) | own)


def _index(index: StoredFile, files: Files) -> _ShardIndex:
    """Read which shard holds each tensor; an index may only name files of its folder."""
    try:
        content = json_as(bytes_of(index), _ShardIndex)
    except ValueError as error:
        refuse_pointers({index.location: index})
        raise malformed(index, "not a shard index (no weight_map of names); fetch it again") from error
    for name in sorted(set(content.weight_map.values())):
        if not is_file_name(name):
            raise CheckpointError(
                f"{index.location}: names a shard outside its folder, or no file: {name[:80]!r}", "unsafe"
            )
        if name not in files:
            folder = index.location.removesuffix(index.location.rpartition("/")[2])
            raise incomplete(f"{folder}{name}", "missing; the index names this shard. Fetch it again")
    return content
