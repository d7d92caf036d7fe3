"""Llama as Meta distributes it: ``params.json`` and ``consolidated.00.pth``, a file for each model-parallel rank."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NoReturn

import msgspec

from toposcope.checkpoints.formats.entry import Entry, Listing, Rows, side_by_side, stacked
from toposcope.checkpoints.formats.torch_file import RankFile
from toposcope.checkpoints.formats.weight_names import is_transformers_folder, refuse_pointers
from toposcope.checkpoints.sources.source import CheckpointError, Files, StoredFile, unsupported

PARAMS = "params.json"
_RANK = re.compile(r"consolidated\.(\d\d)\.pth")
_SPLIT = re.compile(r"attention\.(w[qkvo])\.weight$|feed_forward\.(w[123])\.weight$|^(output|tok_embeddings)\.weight$")
_BY_COLUMNS = ("wo", "w2")
_REPLICATED = re.compile(r"norm\.weight$|^rope\.freqs$")
MAX_PARAMS_BYTES = 1 << 16
FIX = "convert it with transformers' convert_llama_weights_to_hf.py"


class _Params(msgspec.Struct):
    dim: int
    n_heads: int
    n_kv_heads: int | None = None
    vocab_size: int = -1


def claims(names: Collection[str]) -> bool:
    """By a file of weights for each rank."""
    found = [name for name in names if _RANK.fullmatch(name)]
    return (len(found) > 1 or (bool(found) and PARAMS in names)) and not is_transformers_folder(names)


def entries(spec: str, files: Files) -> Listing:
    """List the tensors of the model, merged from its ranks."""
    numbers = {int(match[1]): name for name in sorted(files) if (match := _RANK.fullmatch(name))}
    count = max(numbers) + 1
    if missing := [k for k in range(count) if k not in numbers]:
        raise CheckpointError(f"{spec}: consolidated.{missing[0]:02d}.pth is missing; fetch it", "missing shard")
    if PARAMS not in files:
        _refuse(spec, count, "there is no params.json with its sizes")
    params = _params(spec, count, files[PARAMS])
    saved = [RankFile(files[numbers[k]]) for k in range(count)]
    ranks = [one.tensors(one.content) for one in saved]
    if any(rank.keys() != ranks[0].keys() for rank in ranks):
        _refuse(spec, count, "the ranks hold different tensors")
    listed = [_merged(spec, name, [rank[name] for rank in ranks], params) for name in ranks[0]]
    return Listing(listed, [f"merged from {count} model-parallel ranks, by params.json"] if count > 1 else [])


def _params(spec: str, count: int, file: StoredFile) -> _Params:
    refuse_pointers({PARAMS: file})
    try:
        return msgspec.json.decode(file.read(0, min(file.size, MAX_PARAMS_BYTES)).tobytes(), type=_Params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        _refuse(spec, count, "params.json does not state dim and n_heads")


def _merged(spec: str, name: str, parts: Sequence[Entry], params: _Params) -> Entry:
    """Return one tensor of the model from the parts of all ranks, checked against the sizes."""
    first, count = parts[0], len(parts)
    if any((part.shape, part.dtype) != (first.shape, first.dtype) for part in parts):
        _refuse(spec, count, f"the ranks hold {name[:80]!r} in different shapes")
    if _REPLICATED.search(name):
        return replace(first, name=name)
    match = _SPLIT.search(name)
    if len(first.shape) != 2 or (match is None and count > 1):
        _refuse(spec, count, f"there is no rule for {name[:80]!r}")
    if match is None:
        return first
    kind = next(filter(None, match.groups()))
    # Llama 1 and 2 cut the embedding by columns, Llama 3 by rows.
    by_columns = first.shape[1] * count == params.dim if kind == "tok_embeddings" else kind in _BY_COLUMNS
    whole = side_by_side(name, parts) if by_columns else stacked(name, [Rows.all(part) for part in parts])
    expected = _expected(kind, params)
    if any(right is not None and right != size for right, size in zip(expected, whole.shape, strict=True)):
        _refuse(spec, count, f"{name[:80]!r} would be {list(whole.shape)}, which params.json contradicts")
    return whole if count > 1 else first


def _expected(kind: str, params: _Params) -> tuple[int | None, int | None]:
    """Return the shape of a whole matrix by params.json; None where that does not say."""
    heads = params.n_kv_heads or params.n_heads
    rows = {
        **dict.fromkeys(("wq", "wo", "w2"), params.dim),
        **dict.fromkeys(("wk", "wv"), params.dim // params.n_heads * heads if params.n_heads > 0 else -1),
        **dict.fromkeys(("output", "tok_embeddings"), params.vocab_size if params.vocab_size > 0 else None),
    }
    return rows.get(kind), None if kind == "w2" else params.dim


def _refuse(spec: str, count: int, reason: str) -> NoReturn:
    raise unsupported(spec, f"{count} model-parallel ranks of a Llama as Meta saves it, and {reason}; {FIX}")
