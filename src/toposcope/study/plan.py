"""What of a study is still to be measured: every unit has a key of all that its numbers depend on."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toposcope.probes import Probe
from toposcope.probes.probe import NETWORK, POOLED
from toposcope.study.diagrams import is_readable
from toposcope.study.store import CheckpointRow, Unit


@dataclass(frozen=True)
class Planned:
    """One checkpoint and probe with something missing.

    Attributes
    ----------
    wanted : dict
        Key of every missing layer or pseudo-layer.
    current : list of str
        Layers and pseudo-layers whose rows stand.
    stale : list of Unit
        Rows under another key, of layers that are gone, or without their diagrams: to be forgotten.
    """

    probe: Probe
    step: int
    previous: int | None
    wanted: dict[str, str]
    current: list[str]
    stale: list[Unit]


def plan(
    checkpoints: Mapping[int, CheckpointRow],
    probe: Probe,
    source: Probe | None,
    measured: Mapping[Unit, tuple[str, str]],
    directory: Path,
    corpus_sha256: str,
) -> Iterator[Planned]:
    """Yield what one probe still has to measure on one run, checkpoint by checkpoint.

    Parameters
    ----------
    checkpoints : mapping
        Readable checkpoints by step, ascending.
    probe, source : Probe
        `source` is the probe whose diagrams `probe` reads.
    measured : mapping
        Key and diagram file of what is in the store; a row whose file is gone or damaged counts as missing.
    directory : Path
        The study's.
    corpus_sha256 : str
    """
    steps = list(checkpoints)
    readable = {file: is_readable(directory / file) for file in {file for _, file in measured.values()} if file}
    mine: dict[int, dict[str, Unit]] = {step: {} for step in steps}
    for unit in measured:
        if (unit.probe, unit.options) == (probe.name(), probe.options()) and unit.step in mine:
            mine[unit.step][unit.layer] = unit
    for i, step in enumerate(steps):
        row, previous = checkpoints[step], steps[i - 1] if i else None
        keys: dict[str, str] = {}
        if _applies(probe, row, previous):
            before = None if previous is None else checkpoints[previous]
            keys = _keys(probe, source, row, checkpoints[steps[0]], before, corpus_sha256)
        current = set()
        for layer, unit in mine[step].items():
            key, file = measured[unit]
            if keys.get(layer) == key and readable.get(file, True):
                current.add(layer)
        wanted = {layer: key for layer, key in keys.items() if layer not in current}
        stale = [unit for layer, unit in mine[step].items() if layer not in current]
        if wanted or stale:
            yield Planned(probe, step, previous, wanted, sorted(current), stale)


def _applies(probe: Probe, row: CheckpointRow, previous: int | None) -> bool:
    if "gradients" in probe.NEEDS and not row.weights_hash:
        return False
    return "diagrams" not in probe.NEEDS or previous is not None


def _keys(
    probe: Probe,
    source: Probe | None,
    row: CheckpointRow,
    first: CheckpointRow,
    previous: CheckpointRow | None,
    corpus_sha256: str,
) -> dict[str, str]:
    """Return the key of every layer and pseudo-layer the probe covers."""
    fixed = [probe.name(), str(probe.VERSION), probe.options()]
    if source is not None:
        fixed += [source.name(), str(source.VERSION), source.options()]
    if "gradients" in probe.NEEDS:
        fixed += [row.weights_hash, corpus_sha256]
    others = [first] if "first" in probe.NEEDS else []
    others += [previous] if "previous" in probe.NEEDS and previous is not None else []
    columns = [_hashes(other) for other in (row, *others)]
    names = [layer.layer for layer in row.layers]
    parts = {name: [*fixed, *(column.get(name, "") for column in columns)] for name in names}
    whole = [part for name in names for part in parts[name]]
    # A scale or a sum over the network makes every layer of it part of the key.
    shared = whole if getattr(probe, "scale", "layer") == "network" else []
    return {name: _digest(whole if name in (NETWORK, POOLED) else parts[name] + shared) for name in probe.covers(names)}


def _hashes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: layer.content_hash for layer in row.layers}


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
