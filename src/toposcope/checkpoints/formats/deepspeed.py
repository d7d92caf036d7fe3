"""A checkpoint of DeepSpeed in several files: ZeRO-3, pipeline layers; alone or inside the folder of a trainer.

Under ZeRO-3 every rank holds a part of the numbers of every parameter; they are put together as DeepSpeed's own
``zero_to_fp32.py`` does it. A checkpoint of ZeRO-1 or -2, whose one module file is whole, is a folder of one file.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeGuard

from toposcope.checkpoints.formats.contents import fields_of, without_attribute
from toposcope.checkpoints.formats.entry import Entry, Listing, Rows, reshaped, stacked
from toposcope.checkpoints.formats.series_inside import stated_along
from toposcope.checkpoints.formats.torch_file import RankFile, listing, open_file
from toposcope.checkpoints.formats.weight_names import is_transformers_folder
from toposcope.checkpoints.sources.source import Files, StoredFile, incomplete, unsupported
from toposcope.checkpoints.unpickling import SEQUENCES, StoredTensor, natural_numbers

MODULE = re.compile(r"mp_rank_(\d{2,})_model_states\.pt")
ZERO3 = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d{2,})_optim_states\.pt")
LAYER = re.compile(r"layer_(\d{2,})-model_(\d{2,})-model_states\.pt")
_EXPERT = re.compile(r"(?:layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt")
_PARTS = (MODULE, ZERO3, LAYER, _EXPERT)
MAX_RANKS = 1 << 20
FIX = "run the zero_to_fp32.py that DeepSpeed saves with the checkpoint"
_UNIVERSAL = "convert it with DeepSpeed's checkpoint/ds_to_universal.py, or save a whole state_dict"


def claims(names: Collection[str]) -> bool:
    """By the files of ranks or layers, here or one folder deeper, next to no whole model."""
    return len(names) > 1 and _folder(names) is not None and not is_transformers_folder(names)


def entries(spec: str, files: Files) -> Listing:
    """List the tensors of the model, put together from its files."""
    inner = _inside(files)
    ranks = {int(match[match.re.groups]) for match in _matches(MODULE, inner) + _matches(ZERO3, inner)}
    if any(ranks):
        _refuse(spec, f"{len(ranks)} model-parallel ranks (mp_rank_{max(ranks):02d})", _UNIVERSAL)
    if _matches(_EXPERT, inner):
        _refuse(spec, "experts in files of their own", _UNIVERSAL)
    if _matches(LAYER, inner):
        return _layers(spec, inner)
    if _matches(ZERO3, inner):
        return _zero3(spec, inner)
    name = _matches(MODULE, inner)[0][0]
    if reason := missing_ranks(RankFile(inner[name]).content):
        raise unsupported(inner[name], reason)
    return listing(inner[name], open_file(inner[name]))


def stated(_spec: str, files: Files) -> dict[str, int]:
    """Return the counters that the first rank states."""
    inner = _inside(files)
    name = min((m[0] for pattern in (MODULE, ZERO3) for m in _matches(pattern, inner)), default="")
    return stated_along(RankFile(inner[name]).content, (), lambda _: None) if name else {}


def missing_ranks(content: Any) -> str:
    """Return why a rank's file is not a whole model by its own counts, or an empty text."""
    ranks = (fields_of(content) or {}).get("mp_world_size")
    if type(ranks) is int and ranks > 1:
        return f"one of {ranks} model-parallel ranks of DeepSpeed; {_UNIVERSAL}"
    return ""


def _folder(names: Collection[str]) -> str | None:
    """Return the prefix of the folder that holds the parts: the one that a trainer puts into its own."""
    prefixes = {
        prefix + slash
        for name in names
        for prefix, slash, last in [name.rpartition("/")]
        if "/" not in prefix and any(pattern.fullmatch(last) for pattern in _PARTS)
    }
    return "" if "" in prefixes else prefixes.pop() if len(prefixes) == 1 else None


def _inside(files: Files) -> dict[str, StoredFile]:
    folder = _folder(files) or ""
    return {name.removeprefix(folder): file for name, file in files.items() if name.startswith(folder)}


def _matches(pattern: re.Pattern[str], names: Collection[str]) -> list[re.Match[str]]:
    return [match for name in sorted(names) if (match := pattern.fullmatch(name))]


def _refuse(spec: str, reason: str, fix: str = FIX) -> NoReturn:
    raise unsupported(spec, f"a checkpoint of DeepSpeed with {reason}; {fix}")


def _layers(spec: str, inner: Files) -> Listing:
    found = _matches(LAYER, inner)
    if any(int(match[2]) for match in found):
        ranks = {match[2] for match in found}
        fix = "merge it with the converter of GPT-NeoX (tools/ckpts/convert_neox_to_hf.py) or Megatron-DeepSpeed"
        _refuse(spec, f"layers over {len(ranks)} tensor-parallel ranks", fix)
    listed = []
    for match in found:
        saved = RankFile(inner[match[0]])
        tensors = saved.tensors(saved.content).items()
        listed += [replace(entry, name=f"{int(match[1])}.{name}") for name, entry in tensors]
    return Listing(listed, [f"put together from {len(found)} pipeline layers, named by their numbers"])


def _zero3(spec: str, inner: Files) -> Listing:
    """List the parameters of ZeRO-3 by their master copies."""
    by_rank = {int(match[1]): RankFile(inner[match[0]]) for match in _matches(ZERO3, inner)}
    optimizers = {int(match[1]): RankFile(inner[match[0]]) for match in _matches(_OPTIMIZER, inner)}
    if not optimizers:
        _refuse(spec, f"{len(by_rank)} ranks of ZeRO-3 and no optim_states files, which hold the weights")
    partitions = _optimizer_state(next(iter(optimizers.values()))).get("partition_count")
    listed = partitions if isinstance(partitions, SEQUENCES) else [partitions]
    stated = max((n for n in listed if type(n) is int and 0 < n < MAX_RANKS), default=None)
    count = max(stated or 0, *by_rank, *(rank + 1 for rank in optimizers), *(rank + 1 for rank in by_rank))
    if missing := [rank for rank in range(count) if rank not in by_rank or rank not in optimizers][:4]:
        lost = f"files of the ranks {', '.join(map(str, missing))} of {count} are missing"
        raise incomplete(spec, f"{lost}, which hold parts of every weight; fetch them")
    ranks = [_Rank(by_rank[k], optimizers[k]) for k in range(count)]
    merge = _Zero3(spec, ranks, stated or count)
    note = f"put together from {count} ranks of ZeRO-3: the optimizer's master copies of the weights"
    return Listing([*merge.trained(), *merge.frozen(), *merge.buffers()], [note])


def _optimizer_state(optimizer: RankFile) -> Mapping[Any, Any]:
    return fields_of(optimizer.fields.get("optimizer_state_dict")) or {}


class _Rank(NamedTuple):
    """What one rank of ZeRO-3 saved."""

    module: RankFile
    optimizer: RankFile


def _is_flat(value: Any) -> TypeGuard[StoredTensor]:
    return isinstance(value, StoredTensor) and len(value.shape) == 1


@dataclass(frozen=True)
class _Zero3:
    """Puts the parameters together from the parts of all ranks."""

    spec: str
    ranks: Sequence[_Rank]
    stated: int

    def trained(self) -> list[Entry]:
        """Return the trained parameters: of each, an equal share of the numbers lies in every rank."""
        if self.stated != len(self.ranks):
            _refuse(self.spec, f"{len(self.ranks)} ranks of ZeRO-3 where {self.stated} are stated")
        shapes = self._shapes("param_shapes")
        flat = [self._flat(rank) for rank in self.ranks]
        needed = sum(self._share(shape) for shape in shapes.values())
        if wrong := [part.shape[0] for part in flat if part.shape[0] != needed]:
            _refuse(self.spec, f"ranks of ZeRO-3 that hold {wrong[0]} numbers each where param_shapes need {needed}")
        listed, at = [], 0
        for name, shape in shapes.items():
            share = self._share(shape)
            listed.append(self._whole(name, shape, [Rows(part, at, at + share) for part in flat]))
            at += share
        own = self.ranks[0].module.fields.get("shared_params")
        by_name = {entry.name: entry for entry in listed}
        for pair in own if isinstance(own, SEQUENCES) else ():
            if isinstance(pair, SEQUENCES) and len(pair) == 2 and all(isinstance(name, str) for name in pair):
                if pair[1] not in by_name or pair[0] in by_name:
                    _refuse(self.spec, f"{pair[0][:80]!r} shared with {pair[1][:80]!r}, which does not exist")
                listed.append(replace(by_name[pair[1]], name=pair[0]))
        return listed

    def _flat(self, rank: _Rank) -> Entry:
        groups = _optimizer_state(rank.optimizer).get("fp32_flat_groups")
        groups = groups if isinstance(groups, SEQUENCES) else [groups]
        flat = [group for group in groups if _is_flat(group)]
        if not flat or len(flat) < len(groups):
            _refuse(self.spec, "ranks of ZeRO-3 without fp32_flat_groups of numbers")
        return stacked("flat", [Rows.all(rank.optimizer.entry("flat", group)) for group in flat])

    def frozen(self) -> list[Entry]:
        """Return the frozen parameters, of which every rank holds a fragment."""
        listed = []
        for name, shape in self._shapes("frozen_param_shapes").items():
            pieces = [Rows.all(self._fragment(rank, name, shape)) for rank in self.ranks]
            listed.append(self._whole(name, shape, pieces))
        return listed

    def _fragment(self, rank: _Rank, name: str, shape: tuple[int, ...]) -> Entry:
        part = (fields_of(rank.module.fields.get("frozen_param_fragments")) or {}).get(name)
        if not _is_flat(part) or part.shape[0] != self._share(shape):
            _refuse(self.spec, f"fragments of the frozen {name[:80]!r} that do not fit its shape {list(shape)}")
        return rank.module.entry(name, part)

    def buffers(self) -> list[Entry]:
        """Return the buffers, which every rank holds whole."""
        saved = self.ranks[0].module
        stated = saved.fields.get("buffer_names")
        tensors = saved.tensors(saved.fields.get("module", {}))
        if "pytorch-lightning_version" in saved.fields:
            tensors = without_attribute(tensors)
        names = stated if isinstance(stated, SEQUENCES) else ()
        return [replace(entry, name=name) for name, entry in tensors.items() if name in names]

    def _share(self, shape: tuple[int, ...]) -> int:
        return -(-math.prod(shape) // len(self.ranks))

    def _whole(self, name: str, shape: tuple[int, ...], pieces: list[Rows]) -> Entry:
        if len({piece.entry.dtype for piece in pieces}) > 1:
            _refuse(self.spec, f"parts of {name[:80]!r} of different dtypes")
        return reshaped(name, shape, stacked(name, pieces))

    def _shapes(self, field: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of parameters by name, which all ranks agree in."""
        first, *others = (rank.module.fields.get(field) for rank in self.ranks)
        found: dict[str, tuple[int, ...]] = {}
        for group in first if isinstance(first, SEQUENCES) else [first]:
            for name, shape in (fields_of(group) or {}).items():
                if not isinstance(name, str) or name in found:
                    _refuse(self.spec, f"{field} that name a parameter twice")
                try:
                    found[name] = natural_numbers(shape)
                except ValueError:
                    _refuse(self.spec, f"no shape of {name[:80]!r}")
        if not found and field == "param_shapes" and not self._shapes("frozen_param_shapes"):
            _refuse(self.spec, "ranks of ZeRO-3 without param_shapes")
        if any(other != first for other in others):
            _refuse(self.spec, f"ranks of different {field}")
        return found
