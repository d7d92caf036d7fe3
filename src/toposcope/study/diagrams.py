"""The diagrams of one checkpoint and probe, with the stored hidden states: what a safetensors file holds.

Small ones are rows of the store, which costs far less than a file each; the others are files.
"""

import hashlib
import math
import sqlite3
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.probes import Probe

SEPARATOR = "|"
STATES = "states"
"""In place of a diagram's name: stored hidden states."""
CHECKSUM = f"{SEPARATOR}checksum"  # one more tensor: CRC-32 of the diagrams, states and metadata
BIRTHS = ("births", "essential_births", "truncated_births")  # fields of a diagram, and suffixes of their tensors


@dataclass(frozen=True)
class StoredContent:
    """What a diagram file would hold, from a row of the store; `place` is how messages call it."""

    place: str
    content: bytes


_dtype_name = cache(str)
"""NumPy makes up the name of a dtype anew each time, in longer than the checksum of a small diagram takes."""

Source = Path | StoredContent
StoredStates = Mapping[str, NDArray[np.float32]]
_Counts = tuple[int, int, int, float | None]
_DAMAGED = (SafetensorError, OSError, TypeError, KeyError, ValueError, msgspec.MsgspecError)


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def diagram_file(run: str, step: int, probe: Probe) -> str:
    """Return the path of a diagram file inside a study's folder; each set of options and version has its own."""
    tag = hashlib.sha256(f"{probe.VERSION}{probe.options()}".encode()).hexdigest()[:8]
    return f"diagrams/{run}/step_{step:06d}/{probe.name()}-{tag}.safetensors"


def is_readable(source: Source) -> bool:
    """Return whether diagrams are there and whole."""
    try:
        _contents(source)
    except _DAMAGED:
        return False
    return True


def stored_diagrams(c: sqlite3.Connection, database: Path, file: str) -> Source | None:
    """Return where a diagram file is stored, given its path in the study's folder; None if it is nowhere."""
    row = c.execute("SELECT content FROM diagrams WHERE file = ?", (file,)).fetchone()
    if row is not None:
        return StoredContent(f"{database}: {file}", row[0])
    path = database.parent / file
    return path if path.exists() else None


def diagram_bytes(
    layers: Mapping[str, Mapping[str, Diagram]],
    states: StoredStates | None = None,
    before: Source | None = None,
    keep: Collection[str] = (),
) -> bytes:
    """Return the bytes of a diagram file: of some layers, and of the layers named in `keep` of those there before."""
    states, counts, tensors = states or {}, dict[str, _Counts](), dict[str, NDArray[Any]]()
    if keep and before is not None:
        old, old_states = set(keep) - layers.keys(), set(keep) - states.keys()
        with suppress(*_DAMAGED):  # tensor by tensor: the diagrams of very many layers take several times as much
            stored, metadata = _contents(before)
            described_before = msgspec.json.decode(metadata["diagrams"], type=dict[str, _Counts])
            counts = {key: of for key, of in described_before.items() if _layer(key) in old}
            of_states = f"{SEPARATOR}{STATES}"
            tensors = {k: t for k, t in stored.items() if _layer(k) in (old_states if k.endswith(of_states) else old)}
    for layer, diagrams in layers.items():
        for name, d in diagrams.items():
            key = f"{layer}{SEPARATOR}{name}"
            counts[key] = d.dimension, d.n_essential, d.n_truncated, d.cover_radius
            tensors[key] = np.ascontiguousarray(d.pairs)
            for field in BIRTHS:
                births = getattr(d, field)
                # of H0 all are 0, or 1, and known without being stored
                if births is not None and (field == "births" or (d.dimension and len(births))):
                    tensors[f"{key}.{field}"] = np.ascontiguousarray(births)
    tensors |= {f"{name}{SEPARATOR}{STATES}": np.ascontiguousarray(points) for name, points in states.items()}
    # nan, which JSON cannot express, becomes null
    described = msgspec.json.encode(dict(sorted(counts.items()))).decode()
    checksum = np.array([_checksum(tensors, described)], np.uint32)
    # One metadata key: safetensors writes several in no fixed order.
    return save({**tensors, CHECKSUM: checksum}, metadata={"diagrams": described})


def _layer(key: str) -> str:
    return key.rpartition(SEPARATOR)[0]


def _checksum(tensors: Mapping[str, NDArray[Any]], described: str) -> int:
    total = zlib.crc32(described.encode())
    for name, tensor in sorted(tensors.items(), key=itemgetter(0)):
        total = zlib.crc32(f"{name} {_dtype_name(tensor.dtype)} {tensor.shape}".encode(), total)
        total = zlib.crc32(tensor.data, total)
    return total


def _contents(source: Source) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return tensors and metadata if they are as they were written."""
    if isinstance(source, Path):
        with safe_open(source, framework="np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            metadata = file.metadata() or {}
    else:
        tensors = load(source.content)
        end = 8 + int.from_bytes(source.content[:8], "little")
        metadata = msgspec.json.decode(source.content[8:end], type=_Header).metadata
    checksum = tensors.pop(CHECKSUM, None)
    if checksum is None or _checksum(tensors, metadata.get("diagrams", "")) != checksum:
        raise ValueError("its checksum is wrong")
    return tensors, metadata


def read_diagrams(source: Source) -> dict[str, dict[str, Diagram]]:
    """Read diagrams: layer -> name -> diagram."""
    diagrams: dict[str, dict[str, Diagram]] = {}
    try:
        tensors, metadata = _contents(source)
        described = msgspec.json.decode(metadata["diagrams"], type=dict[str, _Counts])
        for key, (dimension, n_essential, n_truncated, radius) in described.items():
            layer, _, name = key.rpartition(SEPARATOR)
            cover_radius = math.nan if radius is None else radius
            births: dict[str, Any] = {field: tensors.get(f"{key}.{field}") for field in BIRTHS}
            diagram = Diagram(tensors[key], dimension, n_essential, n_truncated, cover_radius, **births)
            diagrams.setdefault(layer, {})[name] = diagram
    except _DAMAGED as error:
        raise _unreadable(source, error) from error
    return diagrams


def read_states(source: Source, only: str = "") -> dict[str, NDArray[np.float32]]:
    """Read hidden states by pseudo-layer, or only those of one pseudo-layer."""
    try:
        tensors, _ = _contents(source)
    except _DAMAGED as error:
        raise _unreadable(source, error) from error
    named = ((key.rpartition(SEPARATOR), points) for key, points in tensors.items())
    return {layer: points for (layer, _, name), points in named if name == STATES and only in ("", layer)}


def _unreadable(source: Source, error: Exception) -> ToposcopeError:
    if isinstance(source, Path):
        return ToposcopeError(f"{source}: diagram file missing or damaged ({error}); delete it and run the study again")
    return ToposcopeError(f"{source.place}: diagrams damaged ({error}); run the study again")
