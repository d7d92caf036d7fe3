"""What a weighted average of checkpoints consists of, and which checkpoints have none."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import kinds
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry, flattened
from toposcope.checkpoints.formats.safetensors_file import DTYPES
from toposcope.checkpoints.sources.source import Bytes, unsupported
from toposcope.wording import examples

AVERAGED_BYTES = 1 << 20  # of a tensor at a time: twice that, in double precision, fits a cache
_COPIED = {kinds.MASK, kinds.TABLE, kinds.BUFFER}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class MergedTensor:
    """One tensor: what is stored in the checkpoints that weigh anything; a copied one is of the last alone."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    entries: tuple[Entry, ...]
    weights: tuple[float, ...]
    is_copied: bool = False

    @property
    def n_bytes(self) -> int:
        """Size of the average."""
        return math.prod(self.shape) * itemsize(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Size of a row of it."""
        return max(1, math.prod(self.shape[1:]) * itemsize(self.dtype))

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that are averaged at a time."""
        count = (self.shape[0] if self.shape else 1) if stop is None else stop
        n_rows = max(1, AVERAGED_BYTES // self.row_bytes) if all(e.sequential_rows for e in self.entries) else count
        for first in range(start, count, max(1, n_rows)):
            yield first, min(first + n_rows, count)

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Average the same rows of all checkpoints in double precision; of a copied tensor, read them."""
        if self.is_copied:
            return self.entries[0].read(start, stop)
        total: NDArray[np.float64] | None = None
        for entry, weight in zip(self.entries, self.weights, strict=True):
            numbers = entry.numbers(start, stop)
            numbers *= weight
            total = numbers if total is None else np.add(total, numbers, out=total)
        return np.asarray(total).astype(self.dtype)

    def fill(self, content: Bytes, first: int) -> None:
        """Write the bytes of the tensor from `first` on into an array, as many as it takes."""
        width = self.row_bytes
        for begin, end in self.blocks(first // width, -(-(first + len(content)) // width)):
            data = flattened(self.rows(begin, end)).view(np.uint8)
            at = begin * width - first
            content[max(at, 0) : at + len(data)] = data[max(-at, 0) : len(content) - at]


@dataclass(frozen=True)
class Plan:
    """What each tensor of an average is made of, and the file it is listed as."""

    tensors: tuple[MergedTensor, ...]
    begins: tuple[int, ...]  # of the tensors in the file
    header: bytes
    size: int
    members: tuple[Checkpoint, ...]
    notes: tuple[str, ...]


def plan_average(members: Sequence[Checkpoint], weights: Sequence[float]) -> Plan:
    """Compare the headers of checkpoints, and lay out their average.

    Raises
    ------
    CheckpointError
        Naming the checkpoint and the tensor, if they have no average.
    """
    members = tuple(replace(member) for member in members)  # lists its files as they are now
    listed = [_listed(member) for member in members]
    _compare(members, listed)
    last, others = members[-1], members[-1].weights.others
    parts = tuple(weight for weight in weights if weight)
    tensors, copied, left = list[MergedTensor](), list[str](), list[str]()
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
            used = tuple(entries[name] for entries, weight in zip(listed, weights, strict=True) if weight)
            tensors.append(MergedTensor(name, entry.shape, dtype, used, parts))
        elif entry.dtype in _CODES and (kind in _COPIED or not kinds.is_weight_name(name)):
            copied.append(name)
            tensors.append(MergedTensor(name, entry.shape, entry.dtype, (entry,), (1.0,), is_copied=True))
        else:
            raise unsupported(last.location, f"{name}: a weight of dtype {entry.dtype}, which cannot be averaged")
    if len(tensors) == len(copied):
        raise unsupported(last.location, "no weights to average: it holds the state of an optimizer, or buffers")
    tensors.sort(key=lambda tensor: -itemsize(tensor.dtype))  # so that all are aligned in the file
    notes = [f"copied from step {last.step}, not averaged: {examples(copied)}"] if copied else []
    notes += [f"left out, as they are the state of an optimizer: {examples(left)}"] if left else []
    if any("lora_A" in name for name in listed[-1]):
        notes.append("of an adapter, A and B are averaged each by itself, not their product")
    header, begins, size = _laid_out(tensors, last.step)
    return Plan(tuple(tensors), begins, header, size, members, tuple(notes))


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


def _laid_out(tensors: Sequence[MergedTensor], step: int) -> tuple[bytes, tuple[int, ...], int]:
    """Return the header of the file, where its tensors begin, and its size."""
    described: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    begins, end = [], 0
    for tensor in tensors:
        begins.append(end)
        end += tensor.n_bytes
        shape = [*tensor.shape]
        described[tensor.name] = {"dtype": _CODES[tensor.dtype], "shape": shape, "data_offsets": [begins[-1], end]}
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, tuple(len(header) + begin for begin in begins), len(header) + end
