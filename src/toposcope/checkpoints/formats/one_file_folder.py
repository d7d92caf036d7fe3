"""A folder in which one file holds the weights, as LitGPT, OLMo, DeepSpeed and PEFT write it.

Beside it lie a configuration, the optimizer and so on.
"""

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
from toposcope.checkpoints.formats.contents import Inside, Key, refuse_key
from toposcope.checkpoints.formats.entry import Listing
from toposcope.checkpoints.formats.trainer_state import trainer_counters
from toposcope.checkpoints.formats.weight_names import PICKLES, SHARD
from toposcope.checkpoints.sources import Files

_PICKLED_WEIGHTS = re.compile("param|weight|model|state|ckpt|checkpoint", re.IGNORECASE)


def claims(names: Collection[str]) -> bool:
    """By one file of whole weights among several, in no other kind of folder."""
    others = (deepspeed, distributed, megatron, meta_llama, model_folder)
    return len(names) > 1 and len(_weights(names)) == 1 and not any(format.claims(names) for format in others)


def entries(spec: str, files: Files, key: Key = ()) -> Listing:
    """List the tensors of the one file."""
    (name,) = _weights(files)
    if not safetensors_file.claims([name]):
        return torch_file.entries_of(files[name], key)
    refuse_key(spec, key)
    return Listing(safetensors_file.entries_of(files[name]))


def inside(spec: str, files: Files, key: Key = ()) -> Inside:
    """Return what else the one file holds, and the counters stated there or in the folder."""
    (name,) = _weights(files)
    read = safetensors_file.inside if safetensors_file.claims([name]) else torch_file.inside
    found = read(spec, {name: files[name]}, key)
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
