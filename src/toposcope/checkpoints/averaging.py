"""What a weighted average of checkpoints consists of, and which checkpoints have none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import kinds
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry
from toposcope.checkpoints.formats.safetensors_file import DTYPES
from toposcope.checkpoints.sources.source import unsupported
from toposcope.wording import examples

AVERAGED_BYTES = 1 << 20  # of a tensor at a time: twice that, in double precision, fits a cache
_COPIED = {kinds.MASK, kinds.TABLE, kinds.BUFFER}
_SAVED = {*DTYPES.values()}  # dtypes that a file of safetensors has


@dataclass(frozen=True)
class Average:
    """The tensors of an average, which are averaged when their rows are read."""

    entries: tuple[Entry, ...]
    copied: frozenset[str]  # names of those that are of the last checkpoint
    members: tuple[Checkpoint, ...]
    notes: tuple[str, ...]


def average_of(members: Sequence[Checkpoint], weights: Sequence[float]) -> Average:
    """Compare the headers of checkpoints, and return the tensors of their average.

    Raises
    ------
    CheckpointError
        Naming the checkpoint and the tensor, if they have no average.
    """
    members = tuple(replace(member) for member in members)  # lists its files as they are now
    listed = [_listed(member) for member in members]
    _compare(members, listed)
    last, others = members[-1], members[-1].weights.others
    averaged, copied, left = list[Entry](), list[str](), list[str]()
    for name, entry in listed[-1].items():
        kind, dtypes = others.get(name, ""), {entries[name].dtype for entries in listed}
        if kind == kinds.STATISTICS:
            raise unsupported(
                last.location,
                f"{name}: running statistics of a batch norm, which are not those of averaged weights; average with "
                "torch.optim.swa_utils.AveragedModel, and recompute them with its update_bn",
            )
        if kind == kinds.OPTIMIZER:
            left.append(name)
        elif entry.is_float and kind not in _COPIED:
            dtype = "float64" if "float64" in dtypes else "float32"
            parts = [(entries[name], weight) for entries, weight in zip(listed, weights, strict=True) if weight]
            averaged.append(_averaged(name, entry.shape, dtype, parts))
        elif entry.dtype in _SAVED and (kind in _COPIED or not kinds.is_weight_name(name)):
            copied.append(name)
        else:
            raise unsupported(last.location, f"{name}: a weight of dtype {entry.dtype}, which cannot be averaged")
    if not averaged:
        raise unsupported(last.location, "no weights to average: it holds the state of an optimizer, or buffers")
    notes = [f"copied from step {last.step}, not averaged: {examples(copied)}"] if copied else []
    notes += [f"left out, as they are the state of an optimizer: {examples(left)}"] if left else []
    if any("lora_A" in name for name in listed[-1]):
        notes.append("of an adapter, A and B are averaged each by itself, not their product")
    entries = (*averaged, *(listed[-1][name] for name in copied))
    return Average(entries, frozenset(copied), members, tuple(notes))


def _averaged(name: str, shape: tuple[int, ...], dtype: str, parts: Sequence[tuple[Entry, float]]) -> Entry:
    has_rows = all(entry.sequential_rows for entry, _ in parts)
    width = max(1, math.prod(shape[1:]) * itemsize(dtype))
    return Entry(name, shape, dtype, partial(_rows, parts, dtype, width if has_rows else 0), has_rows)


def _rows(parts: Sequence[tuple[Entry, float]], dtype: str, width: int, start: int, stop: int) -> NDArray[Any]:
    """Average the same rows of all checkpoints in double precision, some of them at a time."""
    height = max(1, AVERAGED_BYTES // width) if width else max(1, stop - start)
    blocks = []
    for first in range(start, max(stop, start + 1), height):
        total: NDArray[np.float64] | None = None
        for entry, weight in parts:
            numbers = entry.numbers(first, min(first + height, stop))
            numbers *= weight
            total = numbers if total is None else np.add(total, numbers, out=total)
        blocks.append(np.asarray(total).astype(dtype))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _listed(member: Checkpoint) -> Mapping[str, Entry]:
    """Return the tensors of a checkpoint, by name; packed ones are refused."""
    entries = {entry.name: entry for entry in member.entries}
    if packed := member.weights.packed:
        name, scheme = next(iter(packed.items()))
        raise unsupported(
            member.location, f"{name}: quantised ({scheme}); average the checkpoints that it was made from"
        )
    return entries


def _compare(members: Sequence[Checkpoint], listed: Sequence[Mapping[str, Entry]]) -> None:
    """Refuse checkpoints of different tensors, shapes or ties."""
    last, own = members[-1], listed[-1]
    for member, entries in zip(members[:-1], listed[:-1], strict=True):
        for name in sorted(entries.keys() ^ own.keys()):
            has, lacks = (member, last) if name in entries else (last, member)
            roles = {layer.role for layer in has.layers() if layer.tensor == name}
            tied = ": the head is tied in one and not in the other" if roles & {"head", "embed"} else ""
            raise unsupported(lacks.location, f"lacks the tensor {name}, which {has.location} has{tied}")
        for name, entry in own.items():
            other = entries[name]
            if other.shape != entry.shape:
                shapes = f"{list(other.shape)}, and {list(entry.shape)} in {last.location}"
                raise unsupported(member.location, f"{name}: of shape {shapes}; only equal shapes can be averaged")
            if other.is_float != entry.is_float:
                dtypes = f"{other.dtype}, and {entry.dtype} in {last.location}"
                raise unsupported(member.location, f"{name}: of {dtypes}; such dtypes cannot be averaged")
