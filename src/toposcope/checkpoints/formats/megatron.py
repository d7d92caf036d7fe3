"""A checkpoint of Megatron-LM: a folder ``mp_rank_00`` for each tensor-parallel rank, ``mp_rank_00_001`` with stages.

Ranks are merged as Megatron's own converter does it. Every rule is checked against the shapes that the saved arguments
imply; where they do not say how the ranks fit, the checkpoint is refused.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from toposcope.checkpoints.formats.contents import fields_of
from toposcope.checkpoints.formats.entry import Entry, Listing, Rows, side_by_side, stacked
from toposcope.checkpoints.formats.torch_file import RankFile
from toposcope.checkpoints.formats.weight_names import MEGATRON_RANK
from toposcope.checkpoints.sources.source import Files, incomplete, unsupported
from toposcope.checkpoints.steps import MAX_STEP

_Place = tuple[int, int]  # the rank among tensor-parallel ones, and the pipeline stage
MAX_RANKS = 1 << 10
FIX = "merge them with Megatron-LM's tools/checkpoint/convert.py, or save with --ckpt-format torch_dist"
_LAYER = re.compile(r"(^|.*\.)layers\.(\d+)\.(.*)")
_QKV = "query_key_value|linear_qkv"
_IN = "dense_h_to_4h|linear_fc1"
_TABLES = "word_embeddings|word_embeddings_for_head|output_layer"
_COLUMN = re.compile(rf"(?:^|\.)({_QKV}|{_IN}|{_TABLES})\.(?:weight|bias)$")
_ROW = re.compile(r"(?:^|\.)(attention\.dense|self_attention\.(?:dense|linear_proj)|dense_4h_to_h|linear_fc2)\.weight$")
_REPLICATED = re.compile(
    r"norm(?:\.|_)(?:weight|bias)$|position_embeddings\.weight$|tokentype_embeddings\.weight$"
    r"|(?:\.|^)(?:dense|linear_proj|dense_4h_to_h|linear_fc2)\.bias$|inv_freq$"
)
_TIED = re.compile(r"(?:^|\.)(?:word_embeddings_for_head|output_layer)\.weight$")
_SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size"),
    *("num_attention_heads", "kv_channels", "padded_vocab_size"),
)


def claims(names: Collection[str]) -> bool:
    """By the folders of ranks."""
    return any(MEGATRON_RANK.fullmatch(name) for name in names)


def entries(spec: str, files: Files) -> Listing:
    """List the tensors of the model, merged from its ranks."""
    ranks = _ranks(spec, files)
    first = next(iter(ranks.values()))
    arguments = _arguments(first.content)
    sizes = {name: n for name in _SIZES if type(n := arguments.get(name)) is int and 0 < n < 1 << 40}
    _check_ranks(spec, set(ranks), arguments, sizes)
    if len(ranks) == 1:
        return Listing(_tensors(spec, first).values())
    tensor, pipeline = (sizes[name] for name in _SIZES[:2])
    note = f"merged from {tensor} tensor-parallel ranks in {pipeline} pipeline stages, as their args say"
    return Listing(_Merge(spec, ranks, sizes, arguments, first.fields.get("checkpoint_version")).entries(), [note])


def stated(spec: str, files: Files) -> dict[str, int]:
    """Return the iteration that the first rank states."""
    step = next(iter(_ranks(spec, files).values())).fields.get("iteration")
    return {"iteration": step} if type(step) is int and 0 <= step <= MAX_STEP else {}


def missing_ranks(content: Any) -> str:
    """Return why a rank's file is not a whole model by its own arguments, or an empty text."""
    sizes = {name: value for name, value in _arguments(content).items() if type(value) is int}
    names = (*_SIZES[:2], "expert_model_parallel_size")
    several = [f"{name} {sizes[name]}" for name in names if sizes.get(name, 1) > 1]
    what = f"one rank of several of a model of Megatron-LM ({', '.join(several)}); name the folder of all ranks"
    return what if several else ""


def _ranks(spec: str, files: Files) -> dict[_Place, RankFile]:
    ranks: dict[_Place, RankFile] = {}
    for name in sorted(files):
        if match := MEGATRON_RANK.fullmatch(name):
            tensor, stage, expert = match.groups()
            if expert is not None:
                _refuse(spec, "experts in files of their own")
            if ranks.setdefault((int(tensor), int(stage or 0)), saved := RankFile(files[name])) is not saved:
                _refuse(spec, f"two files of one rank ({name})")
    return ranks


def _arguments(content: Any) -> Mapping[Any, Any]:
    return fields_of((fields_of(content) or {}).get("args")) or {}


def _check_ranks(spec: str, found: set[_Place], arguments: Mapping[Any, Any], sizes: Mapping[str, int]) -> None:
    """Refuse other than one file for each rank that the arguments imply."""
    lacking = [name for name in _SIZES if name not in sizes]
    if len(found) > 1 and lacking:
        raise unsupported(
            spec,
            f"{', '.join(_folder(place) for place in sorted(found)[:4])}: parallel shards of one model of "
            f"Megatron-LM, and their args do not say how they fit (no {', '.join(lacking[:3])}); {FIX}",
        )
    experts = arguments.get("expert_model_parallel_size")
    if type(experts) is int and experts > 1:
        _refuse(spec, f"experts over {experts} ranks")
    # Without these numbers, one rank is a whole model.
    tensor, pipeline = (sizes.get(name, 1) for name in _SIZES[:2])
    if max(tensor, pipeline) > MAX_RANKS:
        _refuse(spec, f"{tensor} x {pipeline} ranks")
    expected = {(t, p) for t in range(tensor) for p in range(pipeline)}
    if strays := found - expected:
        _refuse(spec, f"a rank that its args do not imply ({_folder(min(strays))})")
    if missing := sorted(expected - found):
        here = f"{len(found)} of the {len(expected)} ranks of one model are here"
        raise incomplete(spec, f"{', '.join(map(_folder, missing[:4]))} missing: {here}; fetch the others")


def _folder(place: _Place) -> str:
    tensor, stage = place
    return f"mp_rank_{tensor:02d}" + (f"_{stage:03d}" if stage else "")


def _tensors(spec: str, saved: RankFile) -> dict[str, Entry]:
    if "model" not in saved.fields and "model0" in saved.fields:
        _refuse(spec, "virtual pipeline stages (model0, model1, ...)")
    found = saved.tensors(saved.fields.get("model", {}))
    if not found:
        _refuse(spec, f"no tensors under model in {saved.file.location}")
    return found


def _refuse(spec: str, reason: str) -> NoReturn:
    raise unsupported(spec, f"a checkpoint of Megatron-LM with {reason}; {FIX}")


@dataclass(frozen=True)
class _Merge:
    """Puts the model together from its ranks."""

    spec: str
    ranks: Mapping[_Place, RankFile]
    sizes: Mapping[str, int]
    arguments: Mapping[Any, Any]  # of the first rank
    version: Any  # of the checkpoint

    def entries(self) -> list[Entry]:
        found: dict[str, Entry] = {}
        n_layers = 0
        for stage in range(self.sizes["pipeline_model_parallel_size"]):
            whole, here = self._stage(stage, n_layers)
            if doubled := found.keys() & whole.keys():
                self._uncertain(min(doubled), "which two pipeline stages hold")
            found |= whole
            n_layers += here
        if n_layers != self.sizes["num_layers"]:
            _refuse(self.spec, f"{n_layers} layers where args say {self.sizes['num_layers']}")
        return list(found.values())

    def _stage(self, stage: int, offset: int) -> tuple[dict[str, Entry], int]:
        """Return the tensors of one pipeline stage, and how many layers they are."""
        ranks = [self._rank(tensor, stage) for tensor in range(self.sizes["tensor_model_parallel_size"])]
        names = list(ranks[0])
        if any(rank.keys() != ranks[0].keys() for rank in ranks):
            _refuse(self.spec, f"ranks of different tensors in stage {stage}")
        numbers = {int(match.group(2)) for name in names if (match := _LAYER.fullmatch(name))}
        if numbers != set(range(len(numbers))):
            _refuse(self.spec, f"layers of stage {stage} that are not numbered from 0")
        is_copy = self.arguments.get("untie_embeddings_and_output_weights") is False and stage
        merged = {}
        for name in names:
            if is_copy and _TIED.search(name):
                continue
            full = _LAYER.sub(lambda m: f"{m[1]}layers.{int(m[2]) + offset}.{m[3]}", name)
            merged[full] = self._merged(full, [rank[name] for rank in ranks])
        return merged, len(numbers)

    def _rank(self, tensor: int, stage: int) -> dict[str, Entry]:
        saved = self.ranks[tensor, stage]
        theirs = _arguments(saved.content)
        if any(self.arguments.get(name) != theirs.get(name) for name in (*_SIZES, "swiglu", "num_query_groups")):
            _refuse(self.spec, f"ranks of different args ({saved.file.location.rpartition('/')[0][-80:]})")
        return _tensors(self.spec, saved)

    def _merged(self, name: str, parts: Sequence[Entry]) -> Entry:
        """Return one tensor of the model from the parts of all tensor-parallel ranks."""
        first = parts[0]
        if any((part.shape, part.dtype) != (first.shape, first.dtype) for part in parts):
            self._uncertain(name, "of which the ranks have different shapes")
        if len(parts) == 1 or _REPLICATED.search(name):
            return replace(first, name=name)
        if match := _COLUMN.search(name):
            merged = stacked(name, self._grouped(name, match[1], parts))
            expected: tuple[int, ...] = (self._outputs(match[1], merged.shape[0]), self.sizes["hidden_size"])
            expected = expected[: len(first.shape)] if name.endswith("bias") else expected
        elif (match := _ROW.search(name)) and len(first.shape) == 2:
            merged = side_by_side(name, parts)
            is_mlp = "dense_4h" in match[1] or "fc2" in match[1]
            attention = self.sizes["num_attention_heads"] * self.sizes["kv_channels"]
            expected = self.sizes["hidden_size"], self.sizes["ffn_hidden_size"] if is_mlp else attention
        else:
            self._uncertain(name, "for which there is no rule")
        if merged.shape != expected:
            self._uncertain(name, f"which would be {list(merged.shape)} where args imply {list(expected)}")
        return merged

    def _grouped(self, name: str, kind: str, parts: Sequence[Entry]) -> list[Rows]:
        """Return the rows of a column-parallel tensor in the order of the whole model."""
        if any(not part.shape for part in parts):
            self._uncertain(name, "which has no axis")
        groups = 1
        if kind in _IN.split("|") and parts[0].shape[0] * len(parts) == 2 * self.sizes["ffn_hidden_size"]:
            groups = 2  # gate and up
        elif kind == "query_key_value":
            if not isinstance(self.version, int | float):
                self._uncertain(name, "without a checkpoint_version")
            # Before version 1, all queries come first, then all keys, then all values.
            groups = 3 if self.version < 1 else 1
        if parts[0].shape[0] % groups:
            self._uncertain(name, f"whose rows are not a multiple of {groups}")
        size = parts[0].shape[0] // groups
        return [Rows(part, k * size, (k + 1) * size) for k in range(groups) for part in parts]

    def _outputs(self, kind: str, rows: int) -> int:
        """Return the rows of a whole column-parallel tensor by the arguments."""
        if kind in _TABLES.split("|"):
            return self.sizes["padded_vocab_size"]
        if kind in _IN.split("|"):
            doubled = 2 * self.sizes["ffn_hidden_size"]
            stated = [
                gated for name in ("swiglu", "gated_linear_unit") if (gated := self.arguments.get(name)) is not None
            ]
            return doubled if [*stated, rows == doubled][0] else doubled // 2
        heads, groups = self.sizes["num_attention_heads"], self.arguments.get("num_query_groups")
        is_grouped = self.arguments.get("group_query_attention", groups != 1)
        groups = groups if is_grouped and type(groups) is int else heads
        if groups % self.sizes["tensor_model_parallel_size"] or heads % groups:
            return 0
        return (heads + 2 * groups) * self.sizes["kv_channels"]

    def _uncertain(self, name: str, why: str) -> NoReturn:
        _refuse(self.spec, f"a tensor {name[:80]!r} {why}")
