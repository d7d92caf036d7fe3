"""Averages of the checkpoints of a series: ``merged:SERIES@FIRST..LAST``, read as if they were saved.

The place lists one safetensors file, whose header is made from those of the checkpoints and whose tensors are averaged
when their bytes are read, a block of rows at a time; nothing is written. Next to it lie the files of the last
checkpoint that describe its model.
"""

import bisect
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import matrices
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.decay import DECAYS, decay_weights
from toposcope.checkpoints.formats.dtypes import itemsize
from toposcope.checkpoints.formats.entry import Entry, flattened
from toposcope.checkpoints.formats.safetensors_file import DTYPES
from toposcope.checkpoints.sources import is_remote
from toposcope.checkpoints.sources.local import local_path
from toposcope.checkpoints.sources.source import (
    Access,
    Bytes,
    CheckpointError,
    Files,
    Source,
    StoredFile,
    check_range,
    fingerprint,
    unsupported,
)
from toposcope.checkpoints.tuning import AVERAGED_BYTES
from toposcope.checkpoints.weights import are_tied
from toposcope.errors import ToposcopeError
from toposcope.wording import examples

PREFIX = "merged:"
COMPANIONS = (
    *("config.json", "generation_config.json", "adapter_config.json", "run.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("tokenizer.model", "spiece.model", "chat_template.jinja", "meta.pkl"),
)
"""Files that describe a model or hold its tokenizer."""
_WINDOW = re.compile(r"(\d{1,18})\.\.(\d{1,18})|\d{1,18}(?:\+\d{1,18})*")
_COPIED = {matrices.MASK, matrices.TABLE, matrices.BUFFER}
_BY_CODE = {dtype: code for code, dtype in DTYPES.items()}
_FORM = "write merged:SERIES@FIRST..LAST, such as merged:runs/x@1000..2000"


def claims(spec: str) -> bool:
    """By ``merged:``."""
    return spec.startswith(PREFIX)


def roots(spec: str, _access: Access) -> NoReturn:
    """Refuse it where no series is opened."""
    raise ToposcopeError(f"{spec}: a merged checkpoint, where a file or a folder is needed; name one")


def parts_of(spec: str) -> tuple[str, str, str]:
    """Return the series, the window and how it is averaged; the window follows the last ``@``."""
    inner, _, recipe = spec.removeprefix(PREFIX).rpartition("@")
    window, _, how = recipe.partition(",")
    if not inner or not _WINDOW.fullmatch(window):
        raise ToposcopeError(f"{spec}: no window after the last @; {_FORM}")
    return inner, window, how.strip() or "linear"


def with_path(spec: str, change: Callable[[Path], str]) -> str:
    """Return a spec, a merged one or another, with its path on this machine changed, if it holds one."""
    prefix, inner = (PREFIX, parts_of(spec)[0]) if claims(spec) else ("", spec)
    rest = spec[len(prefix) + len(inner) :]
    return spec if is_remote(inner) else f"{prefix}{change(local_path(inner))}{rest}"


@dataclass(frozen=True)
class MergedSource:
    """A weighted average of checkpoints (see `Source`).

    Attributes
    ----------
    inner : str
        The text that names their series.
    window : str
        ``FIRST..LAST``, or steps joined by ``+``.
    how : str
        The name of a decay, or weights separated by spaces.
    members : tuple of Checkpoint
        Sorted by step.
    weights : tuple of float
        One for each, with the sum 1.
    root : Source or None
        The place of the series.
    """

    inner: str
    window: str
    how: str
    members: tuple[Checkpoint, ...]
    weights: tuple[float, ...]
    root: Source | None

    @property
    def spec(self) -> str:
        """The text that opens it again."""
        return f"{PREFIX}{self.inner}@{self.window}" + ("" if self.how == "linear" else f",{self.how}")

    @property
    def last(self) -> Checkpoint:
        """The checkpoint whose files describe the model."""
        return self.members[-1]

    @property
    def notes(self) -> list[str]:
        """How it was averaged, and what was copied or left out."""
        return [_said(self), *self.plan().notes]

    def plan(self) -> "Plan":
        """Return what each tensor is made of, from the headers of the checkpoints as they are now."""
        return _plan(self, _version(self))

    def files(self) -> Files:
        """List the average as a safetensors file, with what describes the last checkpoint."""
        version = _version(self)
        described = _companions(self, version)
        name = "adapter_model.safetensors" if "adapter_config.json" in described else "model.safetensors"
        published = [member.published_hash() for member in self.members]
        sha256 = _digest(self, published) if all(published) else ""
        return described | {name: MergedFile(self, name, version, _plan(self, version).size, sha256)}

    def child(self, name: str) -> Source:
        """Return a file in the folder of the last checkpoint."""
        return self.last.source.child(name)

    def beside(self, name: str) -> StoredFile | None:
        """Return a file next to the last checkpoint."""
        return self.last.source.beside(name)


@dataclass(frozen=True)
class MergedFile:
    """The average as a file (see `StoredFile`)."""

    source: MergedSource
    name: str
    version: str
    size: int
    sha256: str = ""

    @property
    def location(self) -> str:
        """Its place, as of a folder."""
        return f"{self.source.spec}/{self.name}"

    def read(self, start: int, stop: int) -> Bytes:
        """Read a range of the header, or of tensors, which are averaged for it."""
        check_range(self.location, start, stop, self.size)
        plan = _plan(self.source, self.version)
        content = np.empty(stop - start, np.uint8)
        head = np.frombuffer(plan.header[start:stop], np.uint8)
        content[: len(head)] = head
        for k in range(max(bisect.bisect_right(plan.begins, start) - 1, 0), len(plan.tensors)):
            begin, tensor = plan.begins[k], plan.tensors[k]
            first, last = max(start - begin, 0), min(stop - begin, tensor.n_bytes)
            if last <= 0:
                break
            if first < last:
                tensor.fill(content[begin + first - start : begin + last - start], first)
        return content


@dataclass(frozen=True)
class MergedTensor:
    """One tensor: what is stored in the checkpoints of some places, and its weights; a copied one is of the last."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    places: tuple[int, ...]
    entries: tuple[Entry, ...]
    weights: tuple[float, ...]

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

    def average(self, rows: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
        """Average the same rows of all checkpoints in double precision; of a copied tensor, return them."""
        if self.dtype not in ("float32", "float64"):
            return rows[0]
        total: NDArray[np.float64] | None = None
        for entry, weight, stored in zip(self.entries, self.weights, rows, strict=True):
            numbers = entry.widened(stored)
            numbers *= weight
            total = numbers if total is None else np.add(total, numbers, out=total)
        return np.asarray(total).astype(self.dtype)

    def fill(self, content: Bytes, first: int) -> None:
        """Write the bytes of the tensor from `first` on into an array, as many as it takes."""
        width = self.row_bytes
        for begin, end in self.blocks(first // width, -(-(first + len(content)) // width)):
            rows = self.average([entry.read(begin, end) for entry in self.entries])
            data = flattened(rows).view(np.uint8)
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


def merged_source(
    members: Sequence[Checkpoint], inner: str, window: str, how: str, root: Source | None
) -> MergedSource:
    """Choose the checkpoints of a window and their weights; no file is opened."""
    spec = f"{PREFIX}{inner}@{window}"
    bounds = _WINDOW.fullmatch(window)
    if bounds is not None and bounds[1]:
        first, last = int(bounds[1]), int(bounds[2])
        chosen = [member for member in members if first <= member.step <= last]
    else:
        steps = {int(step) for step in window.split("+")}
        chosen = [member for member in members if member.step in steps]
        if missing := steps - {member.step for member in chosen}:
            raise ToposcopeError(f"{spec}: the series has no checkpoint at step {min(missing)}")
    if len(chosen) < 2:
        there = f"{len(members)} from step {members[0].step} to {members[-1].step}" if members else "none"
        found = f"only the one of step {chosen[0].step}" if chosen else "no checkpoint"
        raise ToposcopeError(
            f"{spec}: {found} in the window; an average needs two, and the series has {there}: widen the window"
        )
    weights = tuple(_weights(spec, how, [member.step for member in chosen]))
    return MergedSource(inner, window, how, tuple(chosen), weights, root)


def _weights(spec: str, how: str, steps: Sequence[int]) -> list[float]:
    if how in DECAYS:
        return [float(weight) for weight in decay_weights(steps, how)]
    try:
        given = [float(word) for word in how.split()]
    except ValueError:
        raise ToposcopeError(
            f"{spec}: {how!r} is neither a decay ({', '.join(DECAYS)}) nor weights separated by spaces"
        ) from None
    if len(given) != len(steps):
        raise ToposcopeError(f"{spec}: {len(given)} weights for the {len(steps)} checkpoints of the window")
    if not all(0 <= weight < math.inf for weight in given) or not 0 < sum(given) < math.inf:
        raise ToposcopeError(f"{spec}: weights are numbers from 0 on, and not all of them 0")
    return [weight / math.fsum(given) for weight in given]


def _said(source: MergedSource) -> str:
    steps = [member.step for member in source.members]
    way = f"weights of the decay {source.how}"
    if source.how not in DECAYS:
        total = math.fsum(map(float, source.how.split()))
        way = "weights as given" + ("" if math.isclose(total, 1) else f", divided by their sum {total:.6g}")
    return f"the average of {len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}, {way}"


def _version(source: MergedSource) -> str:
    """Return a digest that changes with a file of any checkpoint, or a weight."""
    return _digest(source, [fingerprint(member.source.files()) for member in source.members])


def _digest(source: MergedSource, contents: Sequence[str]) -> str:
    recipe = [f"{c}:{m.location}:{w!r}" for c, m, w in zip(contents, source.members, source.weights, strict=True)]
    return hashlib.sha256("\x1f".join(recipe).encode(errors="surrogateescape")).hexdigest()


@lru_cache(maxsize=4)
def _companions(source: MergedSource, _version: str) -> dict[str, StoredFile]:
    """Find what describes the model: in the folder of the last checkpoint, next to it, or in that of the series."""
    place, inside = source.last.source, source.last.source.files()
    found = {name: inside.get(name) or place.beside(name) for name in COMPANIONS}
    if source.root is not None and source.root != place:
        found = {name: file or source.root.child(name).beside(name) for name, file in found.items()}
    return {name: file for name, file in found.items() if file is not None}


@lru_cache(maxsize=4)
def _plan(source: MergedSource, version: str) -> Plan:
    """Compare the headers of the checkpoints, and lay out the average; refuse what has none."""
    if _version(source) != version:
        raise CheckpointError(f"{source.spec}: a checkpoint changed while it was in use; run it again", "changed")
    members = tuple(replace(member) for member in source.members)  # lists its files as they are now
    listed = [_listed(member) for member in members]
    _compare(members, listed)
    last, kinds = members[-1], members[-1].weights.others
    used = tuple(k for k, weight in enumerate(source.weights) if weight)
    weights = tuple(source.weights[k] for k in used)
    tensors, copied, left = list[MergedTensor](), list[str](), list[str]()
    for name, entry in listed[-1].items():
        entries = tuple(entries[name] for entries in listed)
        kind = kinds.get(name, "")
        if kind == matrices.STATISTICS:
            raise unsupported(
                last.location,
                f"{name}: running statistics of a batch norm, which are not those of averaged weights; average with "
                "torch.optim.swa_utils.AveragedModel, which recomputes them by update_bn",
            )
        if kind == matrices.OPTIMIZER:
            left.append(name)
        elif entry.is_float and kind not in _COPIED:
            dtype = "float64" if any(e.dtype == "float64" for e in entries) else "float32"
            tensors.append(MergedTensor(name, entry.shape, dtype, used, tuple(entries[k] for k in used), weights))
        elif entry.dtype in _BY_CODE and (kind in _COPIED or not matrices.is_weight_name(name)):
            copied.append(name)
            tensors.append(MergedTensor(name, entry.shape, entry.dtype, (len(members) - 1,), (entry,), (1.0,)))
        else:
            raise unsupported(last.location, f"{name}: a weight of {entry.dtype}, which cannot be averaged")
    if len(tensors) == len(copied):
        raise unsupported(last.location, "holds no weights to average, but the state of an optimizer or buffers alone")
    notes = [f"copied from step {last.step}, not averaged: {examples(copied)}"] if copied else []
    notes += [f"left out, as they belong to an optimizer: {examples(left)}"] if left else []
    header, begins, size = _laid_out(tensors, last.step)
    return Plan(tuple(sorted(tensors, key=_by_width)), begins, header, size, members, tuple(notes))


def _listed(member: Checkpoint) -> Mapping[str, Entry]:
    """Return the tensors of a checkpoint, by name; packed ones are refused."""
    entries = {entry.name: entry for entry in member.entries}
    packed = {name: entry.note for name, entry in entries.items() if entry.note} | member.weights.packed
    for name, scheme in packed.items():
        raise unsupported(
            member.location, f"{name}: quantised ({scheme}); average the checkpoints that it was made from"
        )
    return entries


def _compare(members: Sequence[Checkpoint], listed: Sequence[Mapping[str, Entry]]) -> None:
    """Refuse checkpoints of different tensors, shapes or ties."""
    last, own = members[-1], listed[-1]
    for member, entries in zip(members[:-1], listed[:-1], strict=True):
        for name in entries.keys() ^ own.keys():
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
        if _tied(member) != _tied(last):
            is_tied, is_not = (member, last) if _tied(member) else (last, member)
            raise unsupported(
                is_tied.location, f"embedding and head are one matrix (tied), and two in {is_not.location}"
            )


def _tied(checkpoint: Checkpoint) -> str:
    """Return the name of the embedding that is the head as well, or equal to it; empty if there is none."""
    layers = [layer for layer in checkpoint.layers() if layer.role in ("head", "embed")]
    heads = [layer for layer in layers if layer.role == "head"]
    tables = [layer for layer in layers if layer.role == "embed"]
    if len(heads) == 1 and not tables:
        return heads[0].tensor
    return next((t.tensor for t in tables if any(are_tied(t.entry, head.entry) for head in heads)), "")


def _by_width(tensor: MergedTensor) -> int:
    """Sort those of wide numbers first, so that all are aligned."""
    return -itemsize(tensor.dtype)


def _laid_out(tensors: Sequence[MergedTensor], step: int) -> tuple[bytes, tuple[int, ...], int]:
    """Return the header of the file, where its tensors begin, and its size."""
    described: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    begins, end = [], 0
    for tensor in sorted(tensors, key=_by_width):
        begins.append(end)
        end += tensor.n_bytes
        shape = [*tensor.shape]
        described[tensor.name] = {"dtype": _BY_CODE[tensor.dtype], "shape": shape, "data_offsets": [begins[-1], end]}
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, tuple(len(header) + begin for begin in begins), len(header) + end
