"""Which way round a weight is stored, and the matrices in tensors of three axes and more.

``nn.Linear`` stores (outputs, inputs). Conv1D of GPT-2, Flax and TransformerLens store (inputs, outputs), weights of
attention also with an axis for the heads, mixtures of experts one matrix for each. The width of the residual stream
shows which axis is which: attention and the first half of an MLP read it, the second half and attention's output write.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import reshaped, slice_of
from toposcope.checkpoints.roles import leaf_of
from toposcope.checkpoints.tuning import MAX_CONVOLVED

READS = {"attn.q", "attn.k", "attn.v", "attn.qkv", "mlp.in", "head"}  # roles whose inputs are the residual stream
WRITES = {"attn.out", "mlp.out"}  # roles whose outputs are
HEADS_JOINED = "heads joined"
_NORM = re.compile(r"norm|(?:^|[._])ln", re.IGNORECASE)
_CONV1D = re.compile(r"(?:^|\.)(?:c_attn|c_proj|c_fc|q_attn)\.(?:weight|kernel)$")
_HEADS_FIRST = re.compile(r"(?:^|\.)_?W_[QKVO]$")
_ROUTER = re.compile(r"router|gating", re.IGNORECASE)
_INPUTS_FIRST = re.compile(r"(?:^|\.)_?W_[A-Za-z]+$")
_EXPERTS = re.compile(r"experts?(?:$|[._])|moe|_(?:ch)?exps(?:$|\.)", re.IGNORECASE)
_STACKED_ROWS = re.compile(r"(.*)\.experts(?:\.mlp)?\.(w1|v1|w2)(?:\.weight)?$")


@dataclass(frozen=True)
class Matrix:
    """A matrix in a stored tensor: its numbers, whether stored as (inputs, outputs), and how it lies, in words."""

    entry: Entry
    transposed: bool = False
    layout: str = ""


def residual_width(entries: Sequence[Entry], tables: Sequence[Entry], matrices: Iterable[Entry]) -> int | None:
    """Return the width of the residual stream: of the axes of embeddings and norms, the one that most matrices have."""
    norms = {entry.shape[0] for entry in entries if len(entry.shape) == 1 and _NORM.search(entry.name)}
    last = {table.shape[1] for table in tables}
    candidates = norms.union(*(table.shape for table in tables))
    counts = Counter(size for entry in matrices for size in set(entry.shape) if size in candidates)
    return max(candidates, key=lambda size: (counts[size], size in norms, size in last, size), default=None)


def matrices(
    found: Sequence[tuple[Entry, str]], width: int | None, biases: Mapping[str, int]
) -> dict[str, list[Matrix]]:
    """Return the matrices in each tensor, by its name; none where its axes cannot be told apart."""
    routers = {
        e.name[: e.name.lower().index(".router")]: e.shape[0]
        for e, _ in found
        if ".router" in e.name.lower() and len(e.shape) == 2
    }
    result: dict[str, list[Matrix]] = {}
    for stored, role in found:
        entry, shape = stored, stored.shape
        if role not in {"conv", "other"} and len(shape) == 3 and shape[1] != 1 and 1 in (shape[0], shape[2]):
            entry = reshaped(stored.name, shape[1:] if shape[0] == 1 else shape[:2], stored)
        if len(entry.shape) == 2:
            result[entry.name] = _experts_in_rows(entry, routers) or [Matrix(entry)]
        elif role in {"mlp.in", "mlp.out"} and len(entry.shape) == 3 and _holds_experts(entry, width):
            result[entry.name] = _experts(entry)
        elif role.startswith("attn."):
            matrix = _of_heads(entry, role, width)
            result[entry.name] = [matrix] if matrix else []
        else:
            result[entry.name] = []
    return _turned(result, {entry.name: role for entry, role in found}, width, biases)


def _turned(
    found: Mapping[str, Sequence[Matrix]], roles: Mapping[str, str], width: int | None, biases: Mapping[str, int]
) -> dict[str, list[Matrix]]:
    """Mark the matrices stored as (inputs, outputs): by their own shapes, or as the others of the same style."""
    own = {
        name: _vote(name, parts[0].entry.shape, roles[name], width, biases) for name, parts in found.items() if parts
    }
    votes: dict[str, set[bool | None]] = {}
    for name, vote in own.items():
        votes.setdefault(_style(name, found[name][0]), set()).add(vote)
    return {
        name: [replace(part, transposed=_is_turned(name, part, roles[name], own[name], votes, width)) for part in parts]
        for name, parts in found.items()
    }


def _is_turned(
    name: str, part: Matrix, role: str, vote: bool | None, votes: Mapping[str, set[bool | None]], width: int | None
) -> bool:
    style = _style(name, part)
    if part.transposed or style == "done":
        return part.transposed
    if role in {"embed", "pos_embed"}:
        # A row for each token; by hand some tables have a column for each.
        shape = part.entry.shape
        return style == "parameter" and role == "embed" and shape[0] == width != shape[1]
    if style in {"kernel", "linear"}:
        return style == "kernel"
    of_style = votes[style] - {None}
    if vote is not None and "conv1d" not in style:
        return vote
    is_usual = style == "conv1d kernel" or _INPUTS_FIRST.search(name) is not None
    return of_style == {True} or (not of_style and is_usual)


def _vote(name: str, shape: tuple[int, ...], role: str, width: int | None, biases: Mapping[str, int]) -> bool | None:
    """Return whether a shape shows (inputs, outputs), also by a bias (``b1`` of ``W1``), as long as the outputs."""
    outer, dot, leaf = name.rpartition(".")
    bias = biases.get(f"{outer}{dot}b{leaf[1:]}") if leaf[:1] in {"w", "W"} else None
    if role == "other" and _ROUTER.search(name):
        role = "mlp.in"  # a router of experts reads the stream
    if bias in shape and shape[0] != shape[1]:
        return shape[1] == bias
    if width is None or shape[0] == shape[1] or width not in shape or role not in READS | WRITES:
        return None
    return (shape[0] == width) == (role in READS)


def _style(name: str, part: Matrix) -> str:
    """Return the way of storing that a name stands for: all of one style are stored the same way round."""
    leaf = leaf_of(name)
    if part.layout == HEADS_JOINED:
        return "done"
    if leaf == "kernel" or (leaf == "w" and ("/" in name or "~" in name)):
        # The Conv1D of GPT-2 in Flax stores (outputs, inputs); the Dense of others, under the same names, does not.
        return "conv1d kernel" if _CONV1D.search(name) else "kernel"
    if part.layout.startswith("expert"):
        return "experts"
    if _CONV1D.search(name):
        return "conv1d"
    return "linear" if leaf == "weight" or leaf.endswith("_weight") else "parameter"


def _holds_experts(entry: Entry, width: int | None) -> bool:
    """Return whether a tensor of three axes holds experts: by its name, or by two axes of a matrix of the stream."""
    if _EXPERTS.search(entry.name):
        return True
    return leaf_of(entry.name) != "kernel" and width in entry.shape[1:] and min(entry.shape[1:]) > MAX_CONVOLVED


def _of_heads(entry: Entry, role: str, width: int | None) -> Matrix | None:
    """Return the matrix of a weight of attention with axes for heads; None if no axis is known to be the stream's."""
    at = [axis for axis, size in enumerate(entry.shape) if size == width]
    last = len(entry.shape) - 1
    is_kernel = leaf_of(entry.name) == "kernel"
    if is_kernel and (last != 2 or (0 if role in READS else last) not in at or width in (entry.shape[1], None)):
        # Layers stacked along an axis, as scanned models have them.
        return None
    if len(at) != 1:
        is_reader = role in READS
        if role == "attn.qkv" and entry.shape[0] in {3, 4} and at == [last - 1, last]:
            # Queries, keys and values below each other, each as a linear map has it.
            at = [last]
        elif is_kernel:
            at = [0 if is_reader else last]
        elif _HEADS_FIRST.search(entry.name) and last == 2:
            at = [1 if is_reader else last]
        else:
            return None
    (axis,) = at
    size = entry.shape[axis]
    others = int(np.prod(entry.shape)) // max(1, size)
    if 0 < axis < last:
        # Neither rows nor columns lie together.
        read = partial(_rows_moved, entry, axis, (size, others))
        moved = Entry(entry.name, (size, others), entry.dtype, read, sequential_rows=False)
        transposed = role in READS
    else:
        moved = reshaped(entry.name, (size, others) if axis == 0 else (others, size), entry)
        transposed = (axis == 0) == (role in READS)
    return Matrix(moved, transposed, HEADS_JOINED)


def _experts_in_rows(entry: Entry, routers: Mapping[str, int]) -> list[Matrix]:
    """Return the experts stacked along the rows of a matrix, as many as the router of its block has outputs."""
    match = _STACKED_ROWS.fullmatch(entry.name)
    count = routers.get(match.group(1), 0) if match else 0
    if not match or not 0 < count <= 4096 or entry.shape[0] % count:
        return []
    return _experts(
        reshaped(entry.name, (count, entry.shape[0] // count, entry.shape[1]), entry), match.group(2) == "w2"
    )


def _experts(entry: Entry, transposed: bool = False) -> list[Matrix]:
    count = entry.shape[0]
    return [
        Matrix(slice_of(entry, k, f"{entry.name}[{k}]"), transposed, f"expert {k + 1} of {count}") for k in range(count)
    ]


def _rows_moved(entry: Entry, axis: int, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
    moved: NDArray[Any] = np.moveaxis(entry.whole(), axis, 0)
    return moved[start:stop].reshape(stop - start, shape[1])
