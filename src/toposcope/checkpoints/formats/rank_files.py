"""Files that hold a part of a model each: the ranks of a parallel run, pipeline layers, shards, flat parameters.

Nothing is merged: what holds only a part is refused in one line that names the converter. The one file of a rank that
holds a whole model is read as any other file of torch.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, NoReturn

from toposcope.checkpoints.formats.contents import fields_of
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.weight_names import MEGATRON_RANK, SHARD, TORCH, is_other, is_transformers_folder
from toposcope.checkpoints.sources.source import Files, Source, StoredFile, unsupported

_SAVE_WHOLE = "save the whole state_dict (FULL_STATE_DICT), or with torch.distributed.checkpoint"
_ZERO3 = "run the zero_to_fp32.py that DeepSpeed saves with the checkpoint"
_UNIVERSAL = "convert it with DeepSpeed's checkpoint/ds_to_universal.py, or save a whole state_dict"
_NEOX = "convert it with GPT-NeoX's tools/ckpts/convert_neox_to_hf.py or DeepSpeed's checkpoint/ds_to_universal.py"
CONVERT_MEGATRON = "convert it with Megatron-LM's tools/checkpoint/convert.py, or save with --ckpt-format torch_dist"
_LLAMA = "convert it with transformers' convert_llama_weights_to_hf.py"


_KINDS = (
    (r"(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d\d+_model_states\.pt", "ranks of DeepSpeed's ZeRO-3", _ZERO3),
    (r"layer_\d\d+-model_\d\d+-model_states\.pt", "pipeline layers of DeepSpeed", _NEOX),
    (r"(?:layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt", "experts of DeepSpeed", _UNIVERSAL),
    (r"mp_rank_(\d\d+)_model_states\.pt", "model-parallel ranks of DeepSpeed", _UNIVERSAL),
    (MEGATRON_RANK.pattern, "parallel ranks of Megatron-LM", CONVERT_MEGATRON),
    (r"consolidated\.(\d\d)\.pth", "ranks of a Llama as Meta saves it", _LLAMA),
)
"""Names of files, what they are, and what makes a model of them. Next to the layers of a pipeline lies a file of rank 0
without a model, so the first that are here count. Those with groups, the numbers of ranks, may be whole."""
_RANK = re.compile(
    r"(?<![a-z])(?:(?:mp_?rank|rank|shard|part|hf_model|consolidated)[._-]?|[tp]p(?=\d{1,3}(?!\d)))(\d+)", re.IGNORECASE
)
_FLAT = re.compile(r"(?:^|\.)_?flat_param(?:_\d+)?$")
_SIZES = (
    *("mp_world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "model_parallel_size"),
)
"""How many ranks share a model, as they state it themselves."""


class _Parts(NamedTuple):
    """Files of one kind."""

    names: list[str]
    what: str
    fix: str
    is_whole: bool  # whether it is one file, of rank 0


def claims(names: Collection[str]) -> bool:
    """By files of which each holds a part of a model, next to no whole one."""
    found = _found(names)
    return found is not None and not found.is_whole and not is_transformers_folder(names)


def entries(spec: str, files: Files) -> list[Entry]:
    """Refuse the parts."""
    refuse_ranks(spec, files)


def lone_rank(names: Collection[str]) -> str:
    """Return the file of the only rank, here or one folder deeper, which may hold the whole model; empty if none."""
    found = _found(names)
    return found.names[0] if found is not None and found.is_whole else ""


def _found(names: Collection[str]) -> _Parts | None:
    """Return the parts of the first kind that is here, or in the one folder in which DeepSpeed's Trainer puts it."""
    folders = {name.rpartition("/")[0] for name in names if name.endswith("model_states.pt")}
    folder = f"{min(folders)}/" if len(folders) == 1 and not any("/" in name for name in folders) else "/"
    inside = {name.removeprefix(folder): name for name in sorted(names)}
    found = None
    for pattern, what, fix in _KINDS:
        if here := [match for name in inside if (match := re.fullmatch(pattern, name))]:
            numbers = [number for number in here[0].groups() if number]
            is_whole = len(here) == 1 and bool(numbers) and not any(map(int, numbers))
            found = _Parts([inside[match.string] for match in here], what, fix, is_whole)
            break
    numbered = parts_of(names) if found is None or found.is_whole else []
    return _Parts(numbered, "ranks or parts of one model", _SAVE_WHOLE, False) if numbered else found


def parts_of(names: Iterable[str]) -> list[str]:
    """Return the names of files of weights that are parts of one model, by the numbers of their ranks."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(names):
        if "/" not in name and name.endswith((*TORCH, ".safetensors")) and not is_other(name):
            for match in _RANK.finditer(name):
                groups[name[: match.start(1)], name[match.end(1) :]].append(name)
    return next((found for found in groups.values() if len(found) > 1), [])


def refuse_ranks(spec: str, names: Collection[str]) -> NoReturn:
    """Refuse files that are parts of one model."""
    found = _found(names) or _Parts([*names], "ranks or parts of one model", _SAVE_WHOLE, False)
    more = f" and {len(found.names) - 2} more" if len(found.names) > 2 else ""
    raise unsupported(spec, f"{', '.join(found.names[:2])}{more}: {found.what}, which are not merged; {found.fix}")


def refuse_one_of_several(place: Source, files: Files) -> None:
    """Refuse a file that was named alone, if that of another rank lies next to it."""
    name = next(iter(files)) if len(files) == 1 else ""
    for match in _RANK.finditer(name):
        rank, width = int(match[1]), len(match[1])
        for other in {rank + 1, abs(rank - 1)}:
            sibling = f"{name[: match.start(1)]}{other:0{width}}{name[match.end(1) :]}"
            if place.beside(sibling) is not None:
                refuse_ranks(place.spec, sorted([name, sibling]))


def refuse_rank(file: StoredFile, content: Any) -> None:
    """Refuse what one of several ranks saved, by its own counts."""
    fields = fields_of(content) or {}
    stated = (fields, fields_of(fields.get("args")) or {})
    several = [name for name in _SIZES if any(part.get(name) not in (None, 1) for part in stated)]
    if several:
        fix = _UNIVERSAL if several[0] == "mp_world_size" else CONVERT_MEGATRON
        raise unsupported(file, f"one rank of several of one model, as its own {', '.join(several)} says; {fix}")


def refuse_part(spec: str, files: Files, listed: Sequence[Entry]) -> None:
    """Refuse a file that holds only a part of a model, by its name or its tensors."""
    if flat := sum(len(entry.shape) < 2 and _FLAT.search(entry.name) is not None for entry in listed):
        what = f"{flat} flat parameters of FSDP, which do not state the shapes of the weights"
        raise unsupported(spec, f"{what}; {_SAVE_WHOLE}, or merge the ranks of fairscale with consolidate_fsdp_shards")
    if empty := sum(entry.name.endswith("weight") and entry.shape == (0,) for entry in listed):
        raise unsupported(spec, f"{empty} weights in it are empty, as ZeRO-3 leaves them; {_ZERO3}")
    if len(files) == 1 and SHARD.search(PurePosixPath(next(iter(files))).stem):
        raise unsupported(spec, "one shard of a model; name the folder of all")
