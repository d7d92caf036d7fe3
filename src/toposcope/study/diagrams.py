"""Diagram files: one safetensors file for each checkpoint and probe, with the stored hidden states."""

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.probes import Probe

SEPARATOR = "|"
STATES = "states"
"""In place of a diagram's name: stored hidden states."""
CHECKSUM = f"{SEPARATOR}checksum"
"""A tensor beside the others: CRC-32 of the diagrams, states and metadata."""
BIRTHS = ".births"
"""Suffix of the births of all points, which a diagram of landmarks carries."""

_dtype_name = cache(str)
"""NumPy makes up the name of a dtype anew each time, in longer than the checksum of a small diagram takes."""

_Counts = tuple[int, int, int, float | None]
StoredStates = Mapping[str, NDArray[np.float32]]


def diagram_file(run: str, step: int, probe: Probe) -> str:
    """Return the path of a diagram file inside a study's folder; each set of options and version has its own."""
    tag = hashlib.sha256(f"{probe.VERSION}{probe.options()}".encode()).hexdigest()[:8]
    return f"diagrams/{run}/step_{step:06d}/{probe.name()}-{tag}.safetensors"


def is_readable(path: Path) -> bool:
    """Return whether a diagram file exists and is whole."""
    try:
        _check(path)
    except (SafetensorError, OSError, ValueError):
        return False
    return True


def diagram_bytes(
    path: Path, layers: Mapping[str, Mapping[str, Diagram]], keep: Sequence[str], states: StoredStates | None = None
) -> bytes:
    """Return the bytes of a diagram file: of some layers, and of the layers of the file at `path` named in `keep`.

    Tensors are called ``layer|name``, shape (k, 2), float64; the metadata ``diagrams`` is JSON that holds, by the same
    names, dimension, n_essential, n_truncated and cover_radius (null if unknown). Births of all points, where a diagram
    is of landmarks, are called ``layer|name.births``, shape (b,), float64; hidden states ``layer|states``, shape
    (n, width), float32.
    """
    before = read_diagrams(path) if keep and is_readable(path) else {}
    everything = {**{layer: before[layer] for layer in keep if layer in before}, **layers}
    flat = {f"{layer}{SEPARATOR}{name}": d for layer, diagrams in everything.items() for name, d in diagrams.items()}
    # nan, which JSON cannot express, becomes null
    counts = {key: [d.dimension, d.n_essential, d.n_truncated, d.cover_radius] for key, d in sorted(flat.items())}
    tensors: dict[str, NDArray[np.float64] | NDArray[np.float32]]
    tensors = {key: np.ascontiguousarray(d.pairs) for key, d in flat.items()}
    tensors |= {key + BIRTHS: d.births for key, d in flat.items() if d.births is not None}
    states_before = {name: s for name, s in read_states(path).items() if name in keep} if before else {}
    tensors |= {f"{name}{SEPARATOR}{STATES}": s for name, s in {**states_before, **(states or {})}.items()}
    # One metadata key: safetensors writes several in no fixed order.
    metadata = {"diagrams": msgspec.json.encode(counts).decode()}
    return save({**tensors, CHECKSUM: _checksum(tensors, metadata)}, metadata=metadata)


def _checksum(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> NDArray[np.uint32]:
    total = zlib.crc32(metadata.get("diagrams", "").encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {_dtype_name(tensor.dtype)} {tensor.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(tensor).data, total)
    return np.array([total], np.uint32)


def _check(path: Path) -> None:
    """Refuse a file that is not as it was written; an older one has no checksum.

    Raises
    ------
    ValueError
    """
    with safe_open(path, framework="np") as file:
        names = set(file.keys())
        if CHECKSUM not in names:
            return
        tensors = {name: file.get_tensor(name) for name in names - {CHECKSUM}}
        if _checksum(tensors, file.metadata() or {}) != file.get_tensor(CHECKSUM):
            raise ValueError("its checksum is wrong")


def read_diagrams(path: Path) -> dict[str, dict[str, Diagram]]:
    """Read a diagram file: layer -> name -> diagram.

    Raises
    ------
    ToposcopeError
        If the file is absent or damaged.
    """
    diagrams: dict[str, dict[str, Diagram]] = {}
    try:
        _check(path)
        with safe_open(path, framework="np") as file:
            described = msgspec.json.decode(file.metadata()["diagrams"], type=dict[str, _Counts])
            names = set(file.keys())
            for key, (dimension, n_essential, n_truncated, radius) in described.items():
                layer, _, name = key.rpartition(SEPARATOR)
                cover_radius = math.nan if radius is None else radius
                births = file.get_tensor(key + BIRTHS) if key + BIRTHS in names else None
                diagram = Diagram(
                    file.get_tensor(key), dimension, n_essential, n_truncated, cover_radius, births=births
                )
                diagrams.setdefault(layer, {})[name] = diagram
    except (SafetensorError, OSError, TypeError, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ToposcopeError(
            f"{path}: diagram file missing or damaged ({error}); delete it and run the study again"
        ) from error
    return diagrams


def read_states(path: Path, only: str = "") -> dict[str, NDArray[np.float32]]:
    """Read the hidden states in a diagram file, by pseudo-layer, or only those of one pseudo-layer.

    Raises
    ------
    ToposcopeError
        If the file is absent or damaged.
    """
    states = {}
    try:
        _check(path)
        with safe_open(path, framework="np") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                layer, _, name = key.rpartition(SEPARATOR)
                if name == STATES and only in ("", layer):
                    states[layer] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError) as error:
        raise ToposcopeError(
            f"{path}: diagram file missing or damaged ({error}); delete it and run the study again"
        ) from error
    return states
