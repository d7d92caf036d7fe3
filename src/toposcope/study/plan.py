"""What of a study is still to be measured: every unit has a key of all that its numbers depend on."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toposcope.probes import Probe
from toposcope.study.diagrams import is_readable
from toposcope.study.store import CheckpointRow, Unit

WHOLE = frozenset({"gradients", "model", "embeddings"})
"""Needs of probes that look at more than the analysed layers."""


@dataclass(frozen=True)
class Surroundings:
    """What the numbers of a run depend on besides the tensors of its checkpoints.

    Attributes
    ----------
    evaluable : bool
        Whether it was trained here.
    corpus_sha256 : str
    models : mapping of int to str
        By step, a digest of the text, and of the model's configuration and tokenizer. A step that is not there cannot
        be measured by what reads a text, and what was measured of it stands.
    roles : str
        The rules by which layers were recognised, besides the built-in ones.
    """

    evaluable: bool = False
    corpus_sha256: str = ""
    models: Mapping[int, str] = field(default_factory=dict)
    roles: str = ""


@dataclass(frozen=True)
class Planned:
    """One checkpoint and probe with something missing.

    Attributes
    ----------
    fingerprint : str
        Of the checkpoint when it was hashed.
    first, previous : int or None
        Steps of the checkpoints before it, where they can be read.
    earlier : tuple of int
        Steps of all readable checkpoints before it.
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
    earlier: tuple[int, ...]
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
    surroundings: Surroundings,
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
    surroundings : Surroundings
    """
    mine: dict[int, dict[str, Unit]] = {step: {} for step in checkpoints if step in only}
    for unit in measured:
        if _is_of(unit, probe) and unit.step in mine:
            mine[unit.step][unit.layer] = unit
    files = {measured[unit][1] for units in mine.values() for unit in units.values()}
    readable = {file: is_readable(directory / file) for file in files if file}
    first = checkpoints.get(steps[0]) if steps else None
    found = [] if source is None else [unit for unit in measured if _is_of(unit, source)]
    for before, step in zip([None, *steps], steps, strict=False):
        if step not in mine:
            continue
        row, previous = checkpoints[step], None if before is None else checkpoints.get(before)
        keys: dict[str, str] = {}
        earlier = [checkpoints[s] for s in steps if s < step and s in checkpoints]
        before_it: dict[str, Sequence[CheckpointRow | None]]
        before_it = {"first": [first], "previous": [previous], "states": earlier}
        if not _can_be_read(probe, source, row, before_it, surroundings.models):
            continue
        if _applies(probe, previous, row is checkpoints[min(checkpoints)], surroundings.evaluable):
            keys = _keys(probe, source, row, before_it, surroundings)
            if "states" in probe.NEEDS:
                # Steps are part of what it tells, and what one of them lacks now may be there the next time.
                places = [f"{unit.step} {unit.layer}" for unit in found if unit.step <= step]
                told = [str(other.step if other else None) for other in (first, previous)] + sorted(places)
                keys = {layer: _digest([key, *told]) for layer, key in keys.items()}
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
                tuple(other.step for other in earlier),
                wanted,
                sorted(current),
                stale,
            )


def _is_of(unit: Unit, probe: Probe) -> bool:
    return (unit.probe, unit.options) == (probe.name(), probe.options())


def _can_be_read(
    probe: Probe,
    source: Probe | None,
    row: CheckpointRow,
    before_it: Mapping[str, Sequence[CheckpointRow | None]],
    models: Mapping[int, str],
) -> bool:
    """Tell whether all models are at hand that what is measured depends on."""
    rows = [row] if "model" in probe.NEEDS else []
    if source is not None and "model" in source.NEEDS:
        rows += [row, *(r for need, found in before_it.items() if need in probe.NEEDS for r in found if r is not None)]
    return all(needed.step in models for needed in rows)


def _applies(probe: Probe, previous: CheckpointRow | None, is_first: bool, evaluable: bool) -> bool:
    if probe.ONCE and not is_first:
        return False
    if "gradients" in probe.NEEDS and not evaluable:
        return False
    return "diagrams" not in probe.NEEDS or previous is not None


def _keys(
    probe: Probe,
    source: Probe | None,
    row: CheckpointRow,
    before_it: Mapping[str, Sequence[CheckpointRow | None]],
    surroundings: Surroundings,
) -> dict[str, str]:
    """Return the key of every layer and pseudo-layer the probe covers.

    `before_it` holds the checkpoints before it that a probe may look at, by need.
    """
    fixed = [probe.name(), str(probe.VERSION), probe.options()]
    others = [row_before for need, rows in before_it.items() if need in probe.NEEDS for row_before in rows]
    fixed += _evaluated(probe, [row], surroundings)
    if source is not None:
        fixed += [source.name(), str(source.VERSION), source.options()]
        fixed += _evaluated(source, [row, *others], surroundings)
    columns = [_shapes(row) if probe.ONCE else _hashes(row), *(_hashes(other) if other else {} for other in others)]
    names = [layer.layer for layer in row.layers]
    # What compares the findings of another probe has its layers.
    covered = (source or probe).covers(names)
    parts = {name: [*fixed, *(column.get(name, "") for column in columns)] for name in names}
    whole = [part for name in names for part in parts[name]]
    # A scale or a sum over the network makes every layer of it part of the key.
    shared = whole if getattr(probe, "scale", "layer") == "network" else []
    return {name: _digest(parts[name] + shared if name in parts else whole) for name in covered}


def _evaluated(probe: Probe, rows: Sequence[CheckpointRow | None], surroundings: Surroundings) -> list[str]:
    """Return what a probe that looks at whole models depends on, of some checkpoints."""
    found = []
    for row in rows:
        if row is not None and probe.NEEDS & WHOLE:
            found.append(row.weights_hash)
        if row is not None and "embeddings" in probe.NEEDS:
            found.append(surroundings.roles)
        if row is not None and "gradients" in probe.NEEDS:
            found.append(surroundings.corpus_sha256)
        if row is not None and "model" in probe.NEEDS:
            found.append(surroundings.models[row.step])
    return found


def _hashes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: layer.content_hash for layer in row.layers}


def _shapes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: f"{layer.n_rows}x{layer.n_columns}" for layer in row.layers}


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
