"""The matrices in tensors of three axes and more: heads of attention joined, stacked experts taken apart.

The width of the residual stream shows which axis is which: attention and the first half of an MLP read it, the second
half and attention's output write.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.formats.entry import reshaped, slice_of
from toposcope.checkpoints.orientation import READS, UNKNOWN, Orientation, orientations
from toposcope.checkpoints.roles import NOT_ANALYSED, leaf_of
from toposcope.checkpoints.votes import Convention, Stored

MAX_CONVOLVED = 16  # taps of a convolution; an axis of a matrix of experts has more
MAX_EXPERTS = 1 << 16  # of one tensor, each of which becomes a layer
HEADS_JOINED, UNFOLDED = "heads joined", "kernel unfolded"
_NORM = re.compile(r"norm|(?:^|[._])ln", re.IGNORECASE)
_HEADS_FIRST = re.compile(r"(?:^|\.)_?W_[QKVO]$")
_EXPERTS = re.compile(r"experts?(?:$|[._])|moe|_(?:ch)?exps(?:$|\.)", re.IGNORECASE)
_STACKED_ROWS = re.compile(r"(.*)\.experts(?:\.mlp)?\.(w1|v1|w2)(?:\.weight)?$")


@dataclass(frozen=True)
class Matrix:
    """A matrix in a stored tensor: its numbers, which way round they are stored, and how it lies, in words."""

    entry: Entry
    layout: str = ""
    orientation: Orientation = UNKNOWN


def residual_width(entries: Sequence[Entry], tables: Sequence[Entry], matrices: Iterable[Entry]) -> int | None:
    """Return the width of the residual stream: of the axes of embeddings and norms, the one that most matrices have."""
    norms = {entry.shape[0] for entry in entries if len(entry.shape) == 1 and _NORM.search(entry.name)}
    last = {table.shape[1] for table in tables}
    candidates = norms.union(*(table.shape for table in tables))
    counts = Counter(size for entry in matrices for size in set(entry.shape) if size in candidates)
    return max(candidates, key=lambda size: (counts[size], size in norms, size in last, size), default=None)


def matrices_in(
    found: Sequence[tuple[Entry, str]],
    width: int | None,
    vectors: Mapping[str, tuple[int, ...]],
    vocabularies: Collection[int],
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
        elif role in {"conv", "other"} and _convolves(entry, role, vectors):
            result[entry.name] = [_unfolded(entry, _bias_of(entry, vectors))]
        else:
            result[entry.name] = []
    return _oriented(result, {entry.name: role for entry, role in found}, width, vectors, vocabularies)


def _oriented(
    found: Mapping[str, Sequence[Matrix]],
    roles: Mapping[str, str],
    width: int | None,
    vectors: Mapping[str, tuple[int, ...]],
    vocabularies: Collection[int],
) -> dict[str, list[Matrix]]:
    """Say of each matrix which way round it is stored."""
    stored = [
        Stored(name, parts[0].entry.shape, roles[name], is_expert=parts[0].layout.startswith("expert"))
        for name, parts in found.items()
        if parts and not parts[0].orientation.reason and roles[name] not in NOT_ANALYSED
    ]
    heads = [part.orientation.transposed for parts in found.values() for part in parts if part.layout == HEADS_JOINED]
    known = orientations(tuple(stored), tuple(vectors.items()), width, frozenset(vocabularies), tuple(heads))
    # A table has a row for each token; by hand some have a column for each.
    known = {**known} | {
        name: Orientation(_is_turned_table(parts[0].entry, width), "a row for each token")
        for name, parts in found.items()
        if parts and roles[name] in NOT_ANALYSED
    }
    return {
        name: [replace(part, orientation=known[name]) if name in known else part for part in parts]
        for name, parts in found.items()
    }


def _is_turned_table(table: Entry, width: int | None) -> bool:
    is_by_hand = Stored(table.name, table.shape, "embed").convention is Convention.BY_HAND
    return is_by_hand and table.shape[0] == width != table.shape[1]


def _holds_experts(entry: Entry, width: int | None) -> bool:
    """Return whether a tensor of three axes holds experts: by its name, or by two axes of a matrix of the stream."""
    if entry.shape[0] > MAX_EXPERTS:
        return False
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
    return Matrix(moved, HEADS_JOINED, Orientation(transposed, "the axis of the heads"))


def _convolves(entry: Entry, role: str, vectors: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a tensor is a convolution's, by its name or by few taps and what no stack of layers has."""
    leaf, shape, bias = leaf_of(entry.name), entry.shape, _bias_of(entry, vectors)
    if leaf not in {"weight", "kernel"} or not 3 <= len(shape) <= 5:
        return False
    if role == "conv":
        return True
    if len(shape) == 3:  # with its inputs before its outputs nothing tells taps from layers
        return leaf == "weight" and bias == shape[:1] and shape[2] <= MAX_CONVOLVED
    taps, outputs = (shape[:-2], shape[-1:]) if leaf == "kernel" else (shape[2:], shape[:2])
    return max(taps) <= MAX_CONVOLVED and (not bias or bias[0] in outputs)


def _bias_of(entry: Entry, vectors: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the bias next to a weight; empty without one."""
    return vectors.get(f"{entry.name[: -len(leaf_of(entry.name))]}bias", ())


def _unfolded(entry: Entry, bias: tuple[int, ...]) -> Matrix:
    """Return a convolution as a matrix with a row for each output, the weights of all its taps along it.

    A kernel of Flax and Keras has its outputs last, a weight of torch first, but that of a transposed convolution,
    which its bias shows.
    """
    first, second, last = entry.shape[0], entry.shape[1], entry.shape[-1]
    n, reason = int(np.prod(entry.shape)), "the length of the bias" if bias else "the axes of a convolution"
    if leaf_of(entry.name) == "kernel":
        return Matrix(reshaped(entry.name, (n // last, last), entry), UNFOLDED, Orientation(True, reason))
    unfolded = reshaped(entry.name, (first, n // first), entry)
    if bias == (second,) != (first,):
        read = partial(_rows_moved, entry, 1, (second, n // second))
        unfolded = Entry(entry.name, (second, n // second), entry.dtype, read, sequential_rows=False)
    return Matrix(unfolded, UNFOLDED, Orientation(False, reason))


def _experts_in_rows(entry: Entry, routers: Mapping[str, int]) -> list[Matrix]:
    """Return the experts stacked along the rows of a matrix, as many as the router of its block has outputs."""
    match = _STACKED_ROWS.fullmatch(entry.name)
    count = routers.get(match.group(1), 0) if match else 0
    if not match or not 0 < count <= 4096 or entry.shape[0] % count:
        return []
    # MegaBlocks multiplies by the transpose of all but the last.
    orientation = Orientation(match.group(2) == "w2", "experts of MegaBlocks")
    return _experts(reshaped(entry.name, (count, entry.shape[0] // count, entry.shape[1]), entry), orientation)


def _experts(entry: Entry, orientation: Orientation = UNKNOWN) -> list[Matrix]:
    count = entry.shape[0]
    return [
        Matrix(slice_of(entry, k, f"{entry.name}[{k}]"), f"expert {k + 1} of {count}", orientation)
        for k in range(count)
    ]


def _rows_moved(entry: Entry, axis: int, shape: tuple[int, ...], start: int, stop: int) -> NDArray[Any]:
    moved: NDArray[Any] = np.moveaxis(entry.whole(), axis, 0)
    return moved[start:stop].reshape(stop - start, shape[1])
