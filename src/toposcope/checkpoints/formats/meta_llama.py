"""Llama as Meta distributes it: ``params.json`` beside ``consolidated.00.pth``, a file for each model-parallel rank."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import msgspec

from toposcope.checkpoints.formats import model_folder
from toposcope.checkpoints.formats.contents import Key, refuse_key
from toposcope.checkpoints.formats.entry import Entry, Listing
from toposcope.checkpoints.formats.joining import Rows, Saved, all_rows, side_by_side, stacked
from toposcope.checkpoints.formats.weight_names import refuse_pointers
from toposcope.checkpoints.sources import CheckpointError, Files, StoredFile
from toposcope.checkpoints.sources.source import unsupported

PARAMS = "params.json"
_RANK = re.compile(r"consolidated\.(\d\d)\.pth")
_COLUMN = re.compile(r"attention\.(wq|wk|wv)\.weight$|feed_forward\.(w1|w3)\.weight$|^(output)\.weight$")
_ROW = re.compile(r"attention\.(wo)\.weight$|feed_forward\.(w2)\.weight$")
_TABLE = "tok_embeddings.weight"
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
    return (len(found) > 1 or (bool(found) and PARAMS in names)) and not model_folder.claims(names)


def entries(spec: str, files: Files, key: Key = ()) -> Listing:
    """List the tensors of the model, merged from its ranks."""
    refuse_key(spec, key)
    numbers = {int(match[1]): name for name in sorted(files) if (match := _RANK.fullmatch(name))}
    count = max(numbers) + 1
    if missing := [k for k in range(count) if k not in numbers]:
        raise CheckpointError(f"{spec}: consolidated.{missing[0]:02d}.pth is missing; fetch it", "missing shard")
    if PARAMS not in files:
        _refuse(spec, count, "there is no params.json with its sizes")
    params = _params(spec, count, files[PARAMS])
    saved = [Saved(files[numbers[k]]) for k in range(count)]
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
    if len(first.shape) != 2:
        _refuse(spec, count, f"there is no rule for {name[:80]!r}")
    matched = _COLUMN.search(name) or _ROW.search(name)
    if name == _TABLE:
        # Llama 1 and 2 cut the embedding by columns, Llama 3 by rows.
        whole = side_by_side(name, parts) if first.shape[1] * count == params.dim else stacked(name, _all(parts))
        kind = "output"
    elif matched is not None:
        kind = next(group for group in matched.groups() if group)
        whole = side_by_side(name, parts) if _ROW.search(name) else stacked(name, _all(parts))
    elif count == 1:
        return first
    else:
        _refuse(spec, count, f"there is no rule for {name[:80]!r}")
    expected = _expected(kind, params)
    if any(right is not None and right != size for right, size in zip(expected, whole.shape, strict=True)):
        _refuse(spec, count, f"{name[:80]!r} would be {list(whole.shape)}, which params.json contradicts")
    return whole if count > 1 else first


def _all(parts: Sequence[Entry]) -> list[Rows]:
    return [all_rows(part) for part in parts]


def _expected(kind: str, params: _Params) -> tuple[int | None, int | None]:
    """Return the shape of a whole matrix by params.json; None where that does not say."""
    heads = params.n_kv_heads or params.n_heads
    keys = params.dim // params.n_heads * heads if params.n_heads > 0 else -1
    vocabulary = params.vocab_size if params.vocab_size > 0 else None
    sizes: Mapping[str, tuple[int | None, int | None]] = {
        **dict.fromkeys(("wq", "wo"), (params.dim, params.dim)),
        **dict.fromkeys(("wk", "wv"), (keys, params.dim)),
        **dict.fromkeys(("w1", "w3"), (None, params.dim)),
        **{"w2": (params.dim, None), "output": (vocabulary, params.dim)},
    }
    return sizes[kind]


def _refuse(spec: str, count: int, reason: str) -> NoReturn:
    raise unsupported(spec, f"{count} model-parallel ranks of a Llama as Meta saves it, and {reason}; {FIX}")
