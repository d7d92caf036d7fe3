"""Files that hold a part of a model each: the ranks of a parallel run, flat parameters, which cannot be merged.

What is here is never read as a model, but refused in words.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

from toposcope.checkpoints.formats import deepspeed, megatron, meta_llama
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.torch_file import RankFile
from toposcope.checkpoints.formats.weight_names import TORCH, is_other, is_transformers_folder
from toposcope.checkpoints.sources.source import Files, unsupported

_PART = re.compile(r"(.*?(?:^|[^a-z])(?:mp_?rank|rank|shard|part|hf_model)[._-]?)(\d+)(.*)", re.IGNORECASE)
_FLAT = re.compile(r"(?:^|\.)_?flat_param(_\d+)?$")
_MEGATRON = re.compile(r"(?:model_optim_rng|model_rng)\.pt")


def claims(names: Collection[str]) -> bool:
    """By files of weights that differ only in the number of a rank, in no kind of folder that can be merged."""
    is_merged = is_transformers_folder(names) or any(f.claims(names) for f in (deepspeed, megatron, meta_llama))
    return bool(parts_of(names)) and not is_merged


def entries(spec: str, files: Files) -> list[Entry]:
    """Refuse the ranks."""
    refuse_ranks(spec, parts_of(files))


def parts_of(names: Iterable[str]) -> list[str]:
    """Return the names of files of weights that are parts of one model, by the numbers of their ranks."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(names):
        match = _PART.fullmatch(name)
        if match and "/" not in name and name.endswith((*TORCH, ".safetensors")) and not is_other(name):
            groups[match[1], match[3]].append(name)
    return next((found for found in groups.values() if len(found) > 1), [])


def refuse_ranks(spec: str, names: Sequence[str]) -> NoReturn:
    """Refuse files that are parts of one model."""
    shown = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
    raise unsupported(
        spec,
        f"{len(names)} files of ranks or parts of one model ({shown}), which do not say how they fit; save "
        "the whole state_dict (FULL_STATE_DICT), or with torch.distributed.checkpoint",
    )


def refuse_part(spec: str, files: Files, listed: Sequence[Entry]) -> None:
    """Refuse a file that holds only a part of a model."""
    if flat := [match for entry in listed if len(entry.shape) < 2 and (match := _FLAT.search(entry.name))]:
        fix = "with FULL_STATE_DICT or torch.distributed.checkpoint"
        if flat[0][1]:
            fix += "; of fairscale and metaseq, merge the ranks with consolidate_fsdp_shards"
        raise unsupported(
            spec, f"{len(flat)} flat parameters of FSDP, which do not state the shapes of the weights; save {fix}"
        )
    names = [name.rpartition("/")[2] for name in files]
    if len(names) == 1 and deepspeed.ZERO3.fullmatch(names[0]):
        raise unsupported(spec, f"one rank of ZeRO-3; name its folder, or {deepspeed.FIX}")
    if len(names) == 1 and deepspeed.LAYER.fullmatch(names[0]):
        raise unsupported(spec, "one pipeline layer of a model of DeepSpeed; name its folder")
    if any(entry.name.endswith("weight") for entry in listed) and all(0 in entry.shape for entry in listed):
        raise unsupported(spec, f"every tensor in it is empty, as ZeRO-3 leaves them; {deepspeed.FIX}")
    for name, file in files.items():
        for pattern, module in ((_MEGATRON, megatron), (deepspeed.MODULE, deepspeed)):
            if pattern.fullmatch(name) and (reason := module.missing_ranks(RankFile(file).content)):
                raise unsupported(file, reason)
