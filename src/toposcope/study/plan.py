"""What a study still has to measure: every unit has a key of all that its numbers depend on."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toposcope.probes import Probe
from toposcope.probes.needs import needs_of
from toposcope.study.tables import CheckpointRow, Unit


@dataclass(frozen=True)
class InputKeys:
    """What the inputs of probes depend on, for the checkpoints of one run (see `toposcope.probes.needs`)."""

    # need -> step -> key. What needs the input cannot be measured at a step without one, and what was measured there
    # before stands
    keys: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    inapplicable: frozenset[str] = frozenset()  # needs that this run cannot have


@dataclass(frozen=True)
class Planned:
    """One checkpoint and probe with something missing."""

    probe: Probe
    step: int
    fingerprint: str  # of the checkpoint when it was hashed
    first: int | None  # steps of the checkpoints before it, where they can be read
    previous: int | None  # steps of the checkpoints before it, where they can be read
    earlier: tuple[int, ...]  # steps of all readable checkpoints before it, if the probe looks at them
    wanted: dict[str, str]  # key of every missing layer or pseudo-layer
    current: list[str]  # layers and pseudo-layers whose rows stand
    stale: list[Unit]  # rows under another key, of layers that are gone, or without their diagrams: to be forgotten


def plan(
    checkpoints: Mapping[int, CheckpointRow],
    steps: Sequence[int],
    only: Collection[int],
    probe: Probe,
    source: Probe | None,
    measured: Mapping[Unit, tuple[str, str]],
    is_readable: Callable[[str], bool],
    inputs: InputKeys,
) -> Iterator[Planned]:
    """Yield what one probe still has to measure on one run, checkpoint by checkpoint."""
    stored: dict[int, dict[str, Unit]] = {step: {} for step in checkpoints if step in only}
    own, of_source = ((p.name(), p.options()) if p else None for p in (probe, source))
    for unit in measured:
        if (unit.probe, unit.options) == own and unit.step in stored:
            stored[unit.step][unit.layer] = unit
    files = {measured[unit][1] for units in stored.values() for unit in units.values()}
    readable = {file: is_readable(file) for file in files if file}
    first = checkpoints.get(steps[0]) if steps else None
    source_units = [unit for unit in measured if (unit.probe, unit.options) == of_source]
    first_step = min(checkpoints, default=None)
    for before, step in zip([None, *steps], steps, strict=False):
        if step not in stored:
            continue
        row, previous = checkpoints[step], None if before is None else checkpoints.get(before)
        keys: dict[str, str] = {}
        earlier = []
        if probe.REQUIRES & {"earlier", "states"}:  # of thousands of checkpoints, too many to list for nobody
            earlier = [checkpoints[s] for s in steps if s < step and s in checkpoints]
        before_it: dict[str, Sequence[CheckpointRow | None]]
        before_it = {"first": [first], "previous": [previous], "earlier": earlier, "states": earlier}
        others = [each for need, rows in before_it.items() if need in probe.REQUIRES for each in rows]
        looks_at: list[tuple[Probe, Sequence[CheckpointRow | None]]] = [(probe, [row])]
        if source is not None:
            looks_at.append((source, [row, *others]))
        if not _has_inputs(looks_at, inputs):
            continue
        if _applies(probe, source, previous, step == first_step, inputs):
            keys = _keys(looks_at, others, inputs)
            if "earlier" in probe.REQUIRES:
                keys = {layer: _digest([key, *(str(other.step) for other in earlier)]) for layer, key in keys.items()}
            if "states" in probe.REQUIRES:
                # Statistics are named by steps, and what one of them lacks now may be there the next time.
                places = [f"{unit.step} {unit.layer}" for unit in source_units if unit.step <= step]
                compared = [str(other.step if other else None) for other in (first, previous)] + sorted(places)
                keys = {layer: _digest([key, *compared]) for layer, key in keys.items()}
        current = set()
        for layer, unit in stored[step].items():
            key, file = measured[unit]
            if keys.get(layer) == key and readable.get(file, True):
                current.add(layer)
        wanted = {layer: key for layer, key in keys.items() if layer not in current}
        stale = [unit for layer, unit in stored[step].items() if layer not in current]
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


LooksAt = Sequence[tuple[Probe, Sequence[CheckpointRow | None]]]
"""A probe, and the probe whose results it compares, each with the checkpoints it looks at; the first is measured."""


def _has_inputs(looks_at: LooksAt, inputs: InputKeys) -> bool:
    """Return whether every checkpoint that is looked at has the inputs that the probe and its source need."""
    return all(
        row.step in inputs.keys[need.name]
        for probe, rows in looks_at
        for need in needs_of(probe)
        if need.name not in inputs.inapplicable
        for row in rows
        if row is not None
    )


def _applies(
    probe: Probe, source: Probe | None, previous: CheckpointRow | None, is_first: bool, inputs: InputKeys
) -> bool:
    if probe.ONCE and not is_first:
        return False
    if any(need.name in inputs.inapplicable for need in needs_of(probe, source)):
        return False
    return "diagrams" not in probe.REQUIRES or previous is not None


def _keys(looks_at: LooksAt, others: Sequence[CheckpointRow | None], inputs: InputKeys) -> dict[str, str]:
    """Return the key of every layer and pseudo-layer the probe covers; `others` are the checkpoints it compares."""
    fixed: list[str] = []
    for each, rows in looks_at:
        needs = needs_of(each)
        fixed += [each.name(), str(each.VERSION), each.options()]
        for seen in rows:
            if seen is not None:
                fixed += [seen.weights_hash] if any(need.whole_model for need in needs) else []
                fixed += [inputs.keys[need.name][seen.step] for need in needs]
    probe, row = looks_at[0][0], looks_at[0][1][0]
    assert row is not None
    columns = [_shapes(row) if probe.ONCE else _hashes(row), *(_hashes(other) if other else {} for other in others)]
    names = [layer.layer for layer in row.layers]
    # A probe that compares what another measured covers the same layers.
    covered = looks_at[-1][0].covers(names)
    parts = {name: [*fixed, *(column.get(name, "") for column in columns)] for name in names}
    whole = [part for name in names for part in parts[name]]
    # A scale or a sum over the network, or a chain of layers, makes every layer of it part of the key.
    shared = whole if probe.ACROSS_LAYERS or getattr(probe, "scale", "layer") == "network" else []
    return {name: _digest(parts[name] + shared if name in parts else whole) for name in covered}


def _hashes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: layer.content_hash for layer in row.layers}


def _shapes(row: CheckpointRow) -> dict[str, str]:
    return {layer.layer: f"{layer.n_rows}x{layer.n_columns}" for layer in row.layers}


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
