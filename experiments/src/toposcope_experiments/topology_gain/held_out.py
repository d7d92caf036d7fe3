"""Configurations held out in turn, and the data that the stack learns from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from toposcope.extend import COOLDOWN, STACKED_LAWS, Indices, LoggedRun, Matrix, RefusedError, Vector, stack_features
from toposcope_experiments.topology_gain.study_features import FeatureBlocks

MIN_RUNS, MIN_SIZES = 8, 2  # runs and groups that a stack learns from, as the forecaster of that name


@dataclass(frozen=True, eq=False)
class Fold:
    """A group held out."""

    family: str
    group: str
    size: object  # of the group's runs
    learned: Indices  # shape (n,); indices of the runs learned from, in the tables of features
    rows: Matrix  # shape (n, p); the stack's own features of these runs, each computed without the runs of its group
    target: Vector  # shape (n,); log(final / base)
    groups: tuple[str, ...]  # held out together while the strength of the ridge is chosen
    held_out: Indices  # shape (m,); indices of the runs held out
    held_out_rows: Matrix  # shape (m, p)
    base: Vector  # shape (m,); the predictions of `COOLDOWN` for them, and their final losses
    final: Vector  # shape (m,); the predictions of `COOLDOWN` for them, and their final losses
    laws: tuple[Mapping[str, float], ...]  # the prediction of each law


class HeldOut(NamedTuple):
    """All that can be held out at one fraction."""

    folds: tuple[Fold, ...]  # empty if there are too few runs
    n_groups: int  # number of configurations, whether or not they can be predicted
    notes: tuple[str, ...]  # what was left out altogether, a sentence each


def configuration(run: LoggedRun) -> str:
    """Name what runs share that differ in their seed alone: size, kind of schedule, peak rate, steps."""
    size = run.size[1]
    written = f"{size:.4g}" if isinstance(size, float) else size
    # the peak to two digits: what was logged may have just missed it
    return f"{written} {run.log.schedule} {run.schedule.peak:.2g} {run.schedule.last_step}"


def hold_out_each(runs: Sequence[LoggedRun], block: FeatureBlocks) -> HeldOut:
    """Hold out every configuration in turn, among the runs of the largest family."""
    place = {name: i for i, name in enumerate(block.runs)}
    known = [run for run in runs if run.log.name in place]
    kinds = [(run.log.family, run.log.unit) for run in known]
    largest = max(kinds, key=kinds.count, default=("", ""))
    members = tuple(run for run, kind in zip(known, kinds, strict=True) if kind == largest)
    notes = [
        f"{run.log.name} is left out: it is not of the family {largest[0]!r} in {largest[1]}."
        for run, kind in zip(known, kinds, strict=True)
        if kind != largest
    ]
    sized = all(np.isfinite(run.log.parameters) for run in members)
    folds = []
    names = dict.fromkeys(map(configuration, members))
    for group in names:
        others = tuple(run for run in members if configuration(run) != group)
        apart = {key: tuple(o for o in others if configuration(o) != key) for key in set(map(configuration, others))}
        learned = [_stack_row(run, block.fraction, apart[configuration(run)], sized) for run in others]
        held_out = [_stack_row(run, block.fraction, others, sized) for run in members if configuration(run) == group]
        fold = _fold(group, place, [t for t in learned if t is not None], [t for t in held_out if t is not None])
        if fold is not None:
            folds.append(fold)
    predicted = {block.runs[i] for fold in folds for i in fold.held_out}
    refused = [run.log.name for run in members if run.log.name not in predicted]
    if refused:
        few = f"fewer than {MIN_RUNS} other runs of {MIN_SIZES} groups, or too little was logged"
        which = f"{', '.join(refused[:3])}{' ...' * (len(refused) > 3)}"
        notes.append(f"{which}: no forecast at {block.fraction:.0%}: {few}.")
    return HeldOut(tuple(folds), len(names), tuple(notes))


class _StackRow(NamedTuple):
    """What the stack learns from one run."""

    run: LoggedRun
    base: float
    features: Vector


def _stack_row(run: LoggedRun, fraction: float, siblings: Sequence[LoggedRun], sized: bool) -> _StackRow | None:
    """Return a run's row of the stack; None if a law refuses it."""
    seen = run.seen(fraction)
    if seen is None:
        return None
    try:
        base = COOLDOWN.law(seen, run.schedule, siblings).final()
        return _StackRow(run, base, stack_features(seen, run.schedule, siblings, base, sized))
    except RefusedError:
        return None


def _fold(
    group: str, place: Mapping[str, int], learned: Sequence[_StackRow], held_out: Sequence[_StackRow]
) -> Fold | None:
    groups = tuple(configuration(row.run) for row in learned)
    if not held_out or len(learned) < MIN_RUNS or len(set(groups)) < MIN_SIZES:
        return None
    names = [law.name for law in STACKED_LAWS]
    return Fold(
        family=held_out[0].run.log.family,
        group=group,
        size=held_out[0].run.size,
        learned=np.array([place[row.run.log.name] for row in learned]),
        rows=np.array([row.features for row in learned]),
        target=np.array([np.log(row.run.final() / row.base) for row in learned]),
        groups=groups,
        held_out=np.array([place[row.run.log.name] for row in held_out]),
        held_out_rows=np.array([row.features for row in held_out]),
        base=np.array([row.base for row in held_out]),
        final=np.array([row.run.final() for row in held_out]),
        laws=tuple(
            {COOLDOWN.name: row.base}
            | dict(zip(names, (row.base * np.exp(row.features[: len(names)])).tolist(), strict=True))
            for row in held_out
        ),
    )
