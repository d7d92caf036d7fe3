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
_UNIVERSAL = "convert it with DeepSpeed's checkpoint/ds_to_universal.py"
_NEOX = f"{_UNIVERSAL}, or of GPT-NeoX with tools/ckpts/convert_neox_to_hf.py"
CONVERT_MEGATRON = "convert it with Megatron-LM's tools/checkpoint/convert.py, or save with --ckpt-format torch_dist"
_LLAMA = "convert it with transformers' convert_llama_weights_to_hf.py"


class _Kind(NamedTuple):
    """Files of one kind: their names with the numbers of ranks, what they are, and what makes a model of them."""

    pattern: re.Pattern[str]
    what: str
    fix: str
    may_be_whole: bool = False  # whether the file of rank 0 is the model where it is the only one


_KINDS = (
    _Kind(
        re.compile(r"(?P<folder>[^/]+/)?(?:bf16_)?zero_pp_rank_\d+_mp_rank_\d{2,}_model_states\.pt"),
        "a rank of DeepSpeed's ZeRO-3 each, with a part of every weight",
        _ZERO3,
    ),
    _Kind(
        re.compile(r"(?P<folder>[^/]+/)?layer_\d{2,}-model_\d{2,}-model_states\.pt"),
        "a pipeline layer of DeepSpeed each",
        _NEOX,
    ),
    _Kind(
        re.compile(r"(?P<folder>[^/]+/)?(?:layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt"),
        "some experts of a model of DeepSpeed each",
        _UNIVERSAL,
    ),
    _Kind(
        re.compile(r"(?P<folder>[^/]+/)?mp_rank_(\d{2,})_model_states\.pt"),
        "a model-parallel rank of DeepSpeed each",
        _UNIVERSAL,
        may_be_whole=True,
    ),
    _Kind(MEGATRON_RANK, "a parallel rank of Megatron-LM each", CONVERT_MEGATRON, may_be_whole=True),
    _Kind(
        re.compile(r"consolidated\.(\d\d)\.pth"),
        "a model-parallel rank of a Llama as Meta saves it each",
        _LLAMA,
        may_be_whole=True,
    ),
)
"""What is here first decides: next to the layers of a pipeline lies a file of rank 0 without a model."""
_NUMBERED = re.compile(
    r"(.*?(?:^|[^a-z])(?:mp_?rank|rank|shard|part|hf_model|consolidated)[._-]?)(\d+)(.*)", re.IGNORECASE
)
_FLAT = re.compile(r"(?:^|\.)_?flat_param(_\d+)?$")
_SIZES = (
    *("mp_world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "model_parallel_size"),
)
"""How many ranks share a model, as they state it themselves."""


def claims(names: Collection[str]) -> bool:
    """By files of which each holds a part of a model, next to no whole one."""
    return not is_transformers_folder(names) and bool(_parts(names) or parts_of(names))


def entries(spec: str, files: Files) -> list[Entry]:
    """Refuse the parts."""
    refuse_ranks(spec, files)


def lone_rank(names: Collection[str]) -> str:
    """Return the file of the only rank, here or one folder deeper, which may hold the whole model; empty if none."""
    kind, found = _found(names) or (None, [])
    return found[0] if kind is not None and _may_be_whole(kind, found) else ""


def _found(names: Collection[str]) -> tuple[_Kind, list[str]] | None:
    """Return the files of the first kind that are in one folder: this one, or the one that a trainer puts in it."""
    for kind in _KINDS:
        matches = [match for name in sorted(names) if (match := kind.pattern.fullmatch(name))]
        folders = {match.groupdict().get("folder") for match in matches}
        if None in folders or len(folders) == 1:
            here = None if None in folders else folders.pop()
            return kind, [match[0] for match in matches if match.groupdict().get("folder") == here]
    return None


def _may_be_whole(kind: _Kind, names: Sequence[str]) -> bool:
    match = kind.pattern.fullmatch(names[0]) if kind.may_be_whole and len(names) == 1 else None
    return match is not None and not any(int(number) for number in match.groups() if number and number.isdigit())


def _parts(names: Collection[str]) -> tuple[_Kind, list[str]] | None:
    found = _found(names)
    return None if found is None or _may_be_whole(*found) else found


def parts_of(names: Iterable[str]) -> list[str]:
    """Return the names of files of weights that are parts of one model, by the numbers of their ranks."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(names):
        match = _NUMBERED.fullmatch(name)
        if match and "/" not in name and name.endswith((*TORCH, ".safetensors")) and not is_other(name):
            groups[match[1], match[3]].append(name)
    return next((found for found in groups.values() if len(found) > 1), [])


def refuse_ranks(spec: str, names: Collection[str]) -> NoReturn:
    """Refuse files that are parts of one model."""
    kind, parts = _parts(names) or (None, parts_of(names))
    what, fix = (kind.what, kind.fix) if kind else ("ranks or parts of one model, which are not merged", _SAVE_WHOLE)
    more = f" and {len(parts) - 2} more" if len(parts) > 2 else ""
    raise unsupported(spec, f"{', '.join(parts[:2])}{more}: {what}; {fix}")


def refuse_one_of_several(place: Source, files: Files) -> None:
    """Refuse a file that was named alone, if that of another rank lies next to it."""
    match = _NUMBERED.fullmatch(next(iter(files))) if len(files) == 1 else None
    if match is None:
        return
    rank = int(match[2])
    for other in {rank + 1, abs(rank - 1)}:
        name = f"{match[1]}{other:0{len(match[2])}}{match[3]}"
        if place.beside(name) is not None:
            refuse_ranks(place.spec, sorted([match[0], name]))


def refuse_rank(file: StoredFile, content: Any) -> None:
    """Refuse what one of several ranks saved, by its own counts."""
    fields = fields_of(content) or {}
    stated = (fields, fields_of(fields.get("args")) or {})
    several = [name for name in _SIZES if any(part.get(name) not in (None, 1) for part in stated)]
    if several:
        fix = f"{_UNIVERSAL}, or save a whole state_dict" if several[0] == "mp_world_size" else CONVERT_MEGATRON
        raise unsupported(file, f"one rank of several of one model, as its own {', '.join(several)} says; {fix}")


def refuse_part(spec: str, files: Files, listed: Sequence[Entry]) -> None:
    """Refuse a file that holds only a part of a model, by its name or its tensors."""
    if flat := [match for entry in listed if len(entry.shape) < 2 and (match := _FLAT.search(entry.name))]:
        fix = "; of fairscale and metaseq, merge the ranks with consolidate_fsdp_shards" if flat[0][1] else ""
        what = f"{len(flat)} flat parameters of FSDP, which do not state the shapes of the weights"
        raise unsupported(spec, f"{what}; {_SAVE_WHOLE}{fix}")
    if any(entry.name.endswith("weight") for entry in listed) and all(0 in entry.shape for entry in listed):
        raise unsupported(spec, f"every tensor in it is empty, as ZeRO-3 leaves them; {_ZERO3}")
    if len(files) == 1 and SHARD.search(PurePosixPath(next(iter(files))).stem):
        raise unsupported(spec, "one shard of a model; name the folder of all")
