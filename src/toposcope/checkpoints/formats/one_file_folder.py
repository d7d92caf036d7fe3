"""A folder in which one file holds the weights, as LitGPT, OLMo, DeepSpeed and PEFT write it."""

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePosixPath

from toposcope.checkpoints.formats import (
    deepspeed,
    distributed,
    megatron,
    meta_llama,
    model_folder,
    safetensors_file,
    torch_file,
)
from toposcope.checkpoints.formats.contents import Inside, Key
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.series_inside import trainer_counters
from toposcope.checkpoints.formats.weight_names import PICKLES, SHARD, TORCH, is_other
from toposcope.checkpoints.sources import Files

_PICKLED_WEIGHTS = re.compile("param|weight|model|state|ckpt|checkpoint", re.IGNORECASE)
_BEFORE = (".safetensors", ".distcp", ".metadata", *TORCH)
"""Endings of weights that are read rather than those of these formats."""
_ENDINGS = (".gguf", ".msgpack", ".npz")  # the formats, the one that is read first in front


def claims(names: Collection[str]) -> bool:
    """By one file of whole weights among several, in no other kind of folder."""
    others = (deepspeed, distributed, megatron, meta_llama, model_folder)
    return len(names) > 1 and len(_weights(names)) == 1 and not any(format.claims(names) for format in others)


def entries(spec: str, files: Files, key: Key = ()) -> list[Entry]:
    """List the tensors of the one file."""
    (name,) = _weights(files)
    listed: list[Entry] = model_folder.reader(name).entries(spec, {name: files[name]}, key)
    return listed


def inside(spec: str, files: Files, key: Key = ()) -> Inside:
    """Return what else the one file holds, and the counters stated there or in the folder."""
    (name,) = _weights(files)
    found: Inside = model_folder.reader(name).inside(spec, {name: files[name]}, key)
    return replace(found, stated=trainer_counters(files) | found.stated)


def _weights(names: Collection[str]) -> list[str]:
    """Return the names of files of weights; a plain pickle only by its name, and where there is no other."""
    found = _readable(names)
    usual = [name for name in found if not name.endswith(PICKLES)]
    return usual or [name for name in found if _PICKLED_WEIGHTS.search(name)]


def _readable(names: Collection[str]) -> list[str]:
    return [
        name
        for name in names
        if "/" not in name
        and not name.startswith(".")
        and not SHARD.search(PurePosixPath(name).stem)
        and (safetensors_file.claims([name]) or torch_file.claims([name]))
    ]


def is_only(names: Collection[str], ending: str) -> bool:
    """Return whether a folder has no weights besides those with an ending."""
    before = (*_BEFORE, *_ENDINGS[: _ENDINGS.index(ending)])
    others = (name for name in names if name.endswith(before) and not is_other(name))
    return not any(others) and not claims(names)


def lone_file(names: Collection[str], ending: str) -> str:
    """Return the name of the one file of weights in a folder, empty if there are several or others."""
    found = [name for name in names if name.endswith(ending) and "/" not in name and not is_other(name)]
    return found[0] if len(found) == 1 and is_only(names, ending) else ""
