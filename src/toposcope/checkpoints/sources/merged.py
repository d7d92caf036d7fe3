"""Averages of the checkpoints of a series: ``merged:SERIES@FIRST..LAST``, read as if they were saved.

The place lists one file, whose tensors are averaged when they are read; nothing is written. Next to it lie the files of
the last checkpoint that describe its model.
"""

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from toposcope.checkpoints.averaging import Average, average_of
from toposcope.checkpoints.checkpoint import Checkpoint
from toposcope.checkpoints.decay import DECAYS, decay_weights
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.sources import is_remote
from toposcope.checkpoints.sources.local import local_path
from toposcope.checkpoints.sources.source import (
    Access,
    Bytes,
    CheckpointError,
    Files,
    MadeFile,
    Source,
    StoredFile,
    fingerprint,
    unsupported,
)
from toposcope.errors import ToposcopeError

PREFIX = "merged:"
COMPANIONS = (
    *("config.json", "generation_config.json", "adapter_config.json", "run.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "chat_template.jinja", "meta.pkl"),
)
"""Files that describe a model or hold its tokenizer."""
_WINDOW = re.compile(r"(\d{1,18})\.\.(\d{1,18})|\d{1,18}(?:\+\d{1,18})*")
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
    if claims(inner):
        raise ToposcopeError(f"{spec}: an average of an average, which is one checkpoint; {_FORM}")
    return inner, window, how.strip() or "linear"


def with_path(spec: str, change: Callable[[Path], str]) -> str:
    """Return a spec, a merged one or another, with its path on this machine changed, if it holds one."""
    prefix, inner = (PREFIX, parts_of(spec)[0]) if claims(spec) else ("", spec)
    rest = spec[len(prefix) + len(inner) :]
    return spec if is_remote(inner) else f"{prefix}{change(local_path(inner))}{rest}"


@dataclass(frozen=True)
class MergedSource:
    """A weighted average of checkpoints (see `Source`)."""

    spec: str  # the text that opens it again
    how: str  # the name of a decay, or weights separated by spaces
    members: tuple[Checkpoint, ...]  # sorted by step
    weights: tuple[float, ...]  # one for each, with the sum 1
    root: Source | None  # the place of the series

    @property
    def last(self) -> Checkpoint:
        """The checkpoint whose files describe the model."""
        return self.members[-1]

    @property
    def notes(self) -> list[str]:
        """How it was averaged, and what was copied or left out."""
        steps = f"{len(self.members)} checkpoints, steps {self.members[0].step} to {self.last.step}"
        total = 1.0 if self.how in DECAYS else math.fsum(map(float, self.how.split()))
        way = f"of the decay {self.how}" if self.how in DECAYS else "as given"
        way += "" if math.isclose(total, 1) else f", divided by their sum {total:.6g}"
        return [f"the average of {steps}, weights {way}", *self.average().notes]

    def average(self) -> Average:
        """Return its tensors, by the headers of the checkpoints as they are now."""
        return _average(self, _version(self))

    def files(self) -> Files:
        """List the average as a safetensors file, with what describes the last checkpoint."""
        version = _version(self)
        described = _companions(self, version)
        name = "adapter_model.safetensors" if "adapter_config.json" in described else "model.safetensors"
        size = sum(entry.n_bytes for entry in _average(self, version).entries)
        return described | {name: MergedFile(self, name, version, size)}

    def child(self, name: str) -> Source:
        """Return a file in the folder of the last checkpoint."""
        return self.last.source.child(name)

    def beside(self, name: str) -> StoredFile | None:
        """Return a file next to the last checkpoint."""
        return self.last.source.beside(name)


@dataclass(frozen=True)
class MergedFile(MadeFile):
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

    def read(self, _start: int, _stop: int) -> Bytes:
        """Refuse: its tensors are averaged, not stored."""
        raise unsupported(self, "an average, of which only tensors are read; write it with its save()")

    def entries(self) -> list[Entry]:
        """Return its tensors."""
        return [*_average(self.source, self.version).entries]


def merged_source(
    members: Sequence[Checkpoint], inner: str, window: str, how: str, root: Source | None
) -> MergedSource:
    """Choose the checkpoints of a window and their weights; no file is opened."""
    spec = f"{PREFIX}{inner}@{window}"
    bounds = _WINDOW.fullmatch(window)
    if bounds is None:
        raise ToposcopeError(f"{spec}: {window!r} is no window of two steps; {_FORM}")
    there = [member.step for member in members]
    steps = {int(step) for step in window.split("+")} if bounds[1] is None else set()
    if missing := steps.difference(there):
        raise ToposcopeError(f"{spec}: the series has no checkpoint at step {min(missing)}")
    chosen = [m for m in members if (m.step in steps if steps else int(bounds[1]) <= m.step <= int(bounds[2]))]
    if len(chosen) < 2:
        found = f"only the one of step {chosen[0].step}" if chosen else "no checkpoint"
        has = f"{len(there)} from step {there[0]} to {there[-1]}" if there else "none"
        raise ToposcopeError(
            f"{spec}: {found} in the window; an average needs two, and the series has {has}: widen the window"
        )
    text = spec if how == "linear" else f"{spec},{how}"
    return MergedSource(text, how, tuple(chosen), _weights(spec, how, [m.step for m in chosen]), root)


def _weights(spec: str, how: str, steps: Sequence[int]) -> tuple[float, ...]:
    if how in DECAYS:
        return tuple(decay_weights(steps, how).tolist())
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
    return tuple(weight / math.fsum(given) for weight in given)


def _version(source: MergedSource) -> str:
    """Return a digest that changes with a file of any checkpoint, or a weight."""
    listed = [fingerprint(member.source.files()) for member in source.members]
    recipe = [f"{f}:{m.location}:{w!r}" for f, m, w in zip(listed, source.members, source.weights, strict=True)]
    return hashlib.sha256("\x1f".join(recipe).encode(errors="surrogateescape")).hexdigest()


@lru_cache(maxsize=4)
def _average(source: MergedSource, version: str) -> Average:
    if _version(source) != version:
        raise CheckpointError(f"{source.spec}: a checkpoint changed while it was in use; run it again", "changed")
    return average_of(source.members, source.weights)


@lru_cache(maxsize=4)
def _companions(source: MergedSource, _version: str) -> dict[str, StoredFile]:
    """Find what describes the model: in the folder of the last checkpoint, next to it, or in that of the series."""
    place, inside = source.last.source, source.last.source.files()
    code = [name for name in inside if name.endswith(".py") and "/" not in name]  # which a configuration may name
    found = {name: inside.get(name) or place.beside(name) for name in (*COMPANIONS, *code)}
    root = source.root
    # Next to a direct child of the series' folder is in that folder.
    if root is not None and place not in (root, root.child(place.spec.rpartition("/")[2])):
        found = {name: file or root.child(name).beside(name) for name, file in found.items()}
    return {name: file for name, file in found.items() if file is not None}
