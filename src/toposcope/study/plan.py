"""What of a study is still to be measured: every unit has a key of all that its numbers depend on."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    fingerprint : str
        Of the checkpoint when it was hashed.
    first, previous : int or None
        Steps of the checkpoints before it, where they can be read.
    wanted : dict
        Key of every missing layer or pseudo-layer.
    current : list of str
        Layers and pseudo-layers whose rows stand.
    stale : list of Unit
        Rows under another key, of layers that are gone, or without their diagrams: to be forgotten.
    """

    probe: Probe
    step: int
    fingerprint: str
    first: int | None
    previous: int | None
    wanted: dict[str, str]
    current: list[str]
    stale: list[Unit]


def plan(
    checkpoints: Mapping[int, CheckpointRow],
    steps: Sequence[int],
    only: Collection[int],
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
        Readable checkpoints by step.
    steps : sequence of int
        Of all checkpoints, ascending. What is unreadable is nobody's first or previous checkpoint, and nothing further
        away takes its place.
    only : collection of int
        The steps that are planned for.
    probe, source : Probe
        `source` is the probe whose diagrams `probe` reads.
    measured : mapping
        Key and diagram file of what is in the store; a row whose file is gone or damaged counts as missing.
    directory : Path
        The study's.
    corpus_sha256 : str
    """
    mine: dict[int, dict[str, Unit]] = {step: {} for step in checkpoints if step in only}
    for unit in measured:
        if (unit.probe, unit.options) == (probe.name(), probe.options()) and unit.step in mine:
            mine[unit.step][unit.layer] = unit
    files = {measured[unit][1] for units in mine.values() for unit in units.values()}
    readable = {file: is_readable(directory / file) for file in files if file}
    first = checkpoints.get(steps[0]) if steps else None
    for before, step in zip([None, *steps], steps, strict=False):
        if step not in mine:
            continue
        row, previous = checkpoints[step], None if before is None else checkpoints.get(before)
        keys: dict[str, str] = {}
        if _applies(probe, row, previous, row is checkpoints[min(checkpoints)]):
            keys = _keys(probe, source, row, first, previous, corpus_sha256)
        current = set()
        for layer, unit in mine[step].items():
            key, file = measured[unit]
            if keys.get(layer) == key and readable.get(file, True):
                current.add(layer)
        wanted = {layer: key for layer, key in keys.items() if layer not in current}
        stale = [unit for layer, unit in mine[step].items() if layer not in current]
        if wanted or stale:
            yield Planned(
                probe,
                step,
                row.fingerprint,
                first.step if first else None,
                previous.step if previous else None,
                wanted,
                sorted(current),
                stale,
            )


def _applies(probe: Probe, row: CheckpointRow, previous: CheckpointRow | None, is_first: bool) -> bool:
    if probe.ONCE and not is_first:
        return False
    if "gradients" in probe.NEEDS and not row.weights_hash:
        return False
    return "diagrams" not in probe.NEEDS or previous is not None


def _keys(
    probe: Probe,
    source: Probe | None,
    row: CheckpointRow,
    first: CheckpointRow | None,
    previous: CheckpointRow | None,
    corpus_sha256: str,
) -> dict[str, str]:
    """Return the key of every layer and pseudo-layer the probe covers."""
    fixed = [probe.name(), str(probe.VERSION), probe.options()]
    if source is not None:
        fixed += [source.name(), str(source.VERSION), source.options()]
    if "gradients" in probe.NEEDS:
        fixed += [row.weights_hash, corpus_sha256]
    others = [first if need == "first" else previous for need in ("first", "previous") if need in probe.NEEDS]
    columns = [_shapes(row) if probe.ONCE else _hashes(row), *(_hashes(other) if other else {} for other in others)]
    names = [layer.layer for layer in row.layers]
    parts = {name: [*fixed, *(column.get(name, "") for column in columns)] for name in names}
    whole = [part for name in names for part in parts[name]]
    # A scale or a sum over the network makes every layer of it part of the key.
    shared = whole if getattr(probe, "scale", "layer") == "network" else []
    return {name: _digest(whole if name in (NETWORK, POOLED) else parts[name] + shared) for name in probe.covers(names)}


def _hashes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: layer.content_hash for layer in row.layers}


def _shapes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: f"{layer.n_rows}x{layer.n_columns}" for layer in row.layers}


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
