"""What of a declared study is not in its store: every unit has a key of all that its numbers depend on."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from toposcope.probes import Probe
from toposcope.probes.needs import needs_of
from toposcope.study.diagrams import is_readable
from toposcope.study.store import Store
from toposcope.study.tables import CheckpointRow, Unit

InputKeys = Mapping[str, Mapping[int, str] | None]
"""What the inputs of probes depend on, by name and step; None for an input that the run cannot have.

At a step without a key the input could not be made: nothing is measured with it, and what was measured before stands.
"""
LooksAt = Sequence[tuple[Probe, Sequence[CheckpointRow | None]]]
"""A probe, and the probe whose results it compares, each with the checkpoints it looks at; the first is measured."""


@dataclass(frozen=True)
class Pending:
    """What one probe still has to measure of one checkpoint."""

    probe: Probe
    source: Probe | None  # the probe whose results it compares
    row: CheckpointRow
    first: CheckpointRow | None  # the first checkpoint of the run, if it can be read
    previous: CheckpointRow | None  # the one before, if it can be read
    earlier: Sequence[CheckpointRow]  # all readable ones before, if the probe looks at them
    wanted: dict[str, str]  # key of every missing layer or pseudo-layer
    is_begun: bool  # whether rows of other layers stand


def missing(
    store: Store,
    run: str,
    rows: Mapping[int, CheckpointRow],
    steps: Sequence[int],
    only: Collection[int],
    probes: Mapping[Probe, Probe | None],
    inputs: InputKeys,
) -> list[Pending]:
    """Return what is declared of a run and not stored, checkpoint by checkpoint.

    Stored rows under another key, of layers that are gone, or without their diagrams are deleted.

    Parameters
    ----------
    store : Store
    run : str
    rows : mapping
        The readable checkpoints, by step.
    steps : sequence of int
        The steps of all checkpoints, ascending.
    only : collection of int
        The steps to look at.
    probes : mapping
        Probes, each with the probe whose results it compares.
    inputs : mapping
    """
    first_step, first = min(rows, default=None), rows.get(steps[0])
    stored: dict[tuple[int, str, str], dict[Unit, tuple[str, str]]] = {}
    for unit, key_and_file in store.measured(run, only).items():
        stored.setdefault((unit.step, unit.probe, unit.options), {})[unit] = key_and_file

    @cache
    def is_there(diagrams: str) -> bool:
        source = store.diagrams(diagrams) if diagrams else None
        return not diagrams or (source is not None and is_readable(source))

    found, stale = list[Pending](), list[Unit]()
    for probe, source in probes.items():
        applies = all(inputs[need.name] is not None for need in needs_of(probe, source))
        for before, step in zip([None, *steps], steps, strict=False):
            if step not in rows or step not in only:
                continue
            row, previous = rows[step], None if before is None else rows.get(before)
            earlier: list[CheckpointRow] = []
            if probe.REQUIRES & {"earlier", "states"}:  # of thousands of checkpoints, too many to list for nobody
                earlier = [rows[s] for s in steps if s < step and s in rows]
            relations: dict[str, Sequence[CheckpointRow | None]]
            relations = {"first": [first], "previous": [previous], "earlier": earlier, "states": earlier}
            others = [other for name, named in relations.items() if name in probe.REQUIRES for other in named]
            looks_at: LooksAt = [(probe, [row]), *([(source, [row, *others])] if source else [])]
            if not _has_inputs(looks_at, inputs):
                continue
            keys: dict[str, str] = {}
            applies_here = step == first_step or not probe.ONCE
            if applies and applies_here and ("diagrams" not in probe.REQUIRES or previous is not None):
                keys = _keys(looks_at, others, inputs)
            if "earlier" in probe.REQUIRES:
                keys = {layer: _digest([key, *(str(other.step) for other in earlier)]) for layer, key in keys.items()}
            if "states" in probe.REQUIRES and source:
                # Statistics are named by steps, and what one of them lacks now may be there the next time.
                by_source = [stored.get((s, source.name(), source.options()), {}) for s in only if s <= step]
                compared = [str(other.step if other else None) for other in (first, previous)]
                compared += sorted(f"{unit.step} {unit.layer}" for units in by_source for unit in units)
                keys = {layer: _digest([key, *compared]) for layer, key in keys.items()}
            of_place = stored.get((step, probe.name(), probe.options()), {})
            current = {u.layer for u, (key, file) in of_place.items() if keys.get(u.layer) == key and is_there(file)}
            stale += [unit for unit in of_place if unit.layer not in current]
            wanted = {layer: key for layer, key in keys.items() if layer not in current}
            if wanted:
                found.append(Pending(probe, source, row, first, previous, earlier, wanted, bool(current)))
    store.drop_measurements(stale)
    # Checkpoint by checkpoint, so that each is opened once, by the process that measures it, for all probes.
    return sorted(found, key=lambda each: each.row.step)


def _has_inputs(looks_at: LooksAt, inputs: InputKeys) -> bool:
    """Return whether every checkpoint that is looked at has the inputs that the probe and its source need."""
    return all(
        row.step in keys
        for probe, rows in looks_at
        for need in needs_of(probe)
        if (keys := inputs[need.name]) is not None
        for row in rows
        if row is not None
    )


def _keys(looks_at: LooksAt, others: Sequence[CheckpointRow | None], inputs: InputKeys) -> dict[str, str]:
    """Return the key of every layer and pseudo-layer the probe covers; `others` are the checkpoints it compares."""
    fixed: list[str] = []
    for each, rows in looks_at:
        needs = needs_of(each)
        fixed += [each.name(), str(each.VERSION), each.options()]
        for seen in rows:
            if seen is not None:
                fixed += [seen.weights_hash] if any(need.whole_model for need in needs) else []
                fixed += [keys[seen.step] for need in needs if (keys := inputs[need.name]) is not None]
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
