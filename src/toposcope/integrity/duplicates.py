"""Checkpoints, files and tensors that are byte-identical under two steps, though training should have moved them."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.checkpoints.kinds import named_buffer
from toposcope.integrity.finding import (
    Finding,
    Severity,
    by_steps,
    findings_of_layers,
    layers_text,
    short_steps,
    single,
    steps_text,
)
from toposcope.integrity.summary import WINDOW_SIZE, CheckpointSummary, TensorSummary

if TYPE_CHECKING:
    from toposcope.logs import LogTable

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_VECTOR_SHARE = 0.9  # share of a float32 vector's values that change in every interval between its equals
MIN_VECTOR_VALUES = 4  # of such a vector
MIN_VECTOR_CHANGES = 20.0  # values that change in lower precision, where one may stay by rounding: exp(-20) by chance
MIN_FROZEN = 3  # checkpoints over which a frozen layer is the same
MIN_EXPECTED_CHANGES = 50.0  # values of an unchanged matrix that should have changed: exp(-50) by chance


EMBEDDINGS = ("embed", "pos_embed", "head")
BLOCK = re.compile(r"(.*\.)?\d+\.(?=.*\.)")  # of layers, such as ``layers.3.``

Run = list[CheckpointSummary]  # an unbroken stretch of checkpoints


def stretches(group: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> list[Run]:
    """Split checkpoints into stretches that follow each other among those that hold a tensor."""
    place = {item.step: k for k, item in enumerate(held)}
    runs: list[Run] = []
    for item in group:
        if runs and place[item.step] == place[runs[-1][-1].step] + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def stale_steps(name: str, runs: Sequence[Run], held: Sequence[CheckpointSummary]) -> dict[int, int]:
    """Return the steps at which a vector comes back to what it was, and the steps whose values it holds there."""
    tensor = runs[0][0].tensors[name]
    if tensor.is_matrix or tensor.is_zero or len(runs) < 2 or not _moved_between(name, runs, held):
        return {}
    # Of a vector that does not change any more the earlier value is right, of single ones the nearer.
    right = min(runs, key=lambda run: (len(run) > 1, _distance_to_neighbours(name, run, held)))
    return {item.step: right[0].step for run in runs if run is not right for item in run}


def _stays(name: str, run: Run) -> bool:
    """Return whether a tensor is the same over a stretch."""
    tensors = [item.tensors.get(name) for item in run]
    return all(a and b and not _differ(a, b) for a, b in pairwise(tensors))


def _next_to(name: str, names: Sequence[str]) -> set[str]:
    """Return the other tensors of a layer, and those that stand next to it."""
    layer, place = name.rpartition(".")[0], names.index(name)
    rest = {other for other in names if layer and other.startswith(f"{layer}.")}
    return (rest | {*names[max(0, place - 1) : place + 2]}) - {name}


def is_stuck(name: str, run: Run, own: float, *, once: bool) -> bool:
    """Return whether a vector that changes before and after stays as it is, while its layer and most of its kind move.

    Biases, norms and statistics are frozen together, but not for a single interval.
    """
    first, kind = run[0].tensors, name.rpartition(".")[2]
    beside = [other for other in _next_to(name, list(first)) if first[other].is_matrix or not once]
    if not _must_move(first[name], own) or any(_stays(other, run) for other in beside):
        return False
    kin = [n for n, t in first.items() if n != name and not t.is_matrix and n.rpartition(".")[2] == kind]
    return once or 2 * sum(_stays(other, run) for other in kin) < len(kin)


def is_frozen(name: str, run: Run, held: Sequence[CheckpointSummary], *, recurs: bool) -> bool:
    """Return whether a tensor stands still as one that is frozen.

    That lasts, from the beginning on or to the end, or recurs, or a change of dtype follows; and what stands next to it
    is frozen too, unless it is an embedding, a head, a vector, or not yet trained. A block may be skipped once.
    """
    tensor = run[0].tensors[name]
    learned = [n for n, t in run[0].tensors.items() if n == name or not named_buffer(n, len(t.shape))]
    begins, ends = run[0] is held[0], run[-1] is held[-1]
    is_cast = not ends and held[held.index(run[-1]) + 1].tensors[name].dtype != tensor.dtype
    if recurs or is_cast or len(run) >= MIN_FROZEN + (not (begins or ends)):
        alone = begins or tensor.role in EMBEDDINGS or (ends and not tensor.is_matrix)
        return alone or any(_stays(other, run) for other in _next_to(name, learned))
    prefix = BLOCK.match(name)
    block = [n for n in learned if prefix and n.startswith(prefix[0])]
    return sum(run[0].tensors[n].is_matrix for n in block) > 1 and all(_stays(other, run) for other in block)


def _moved_between(name: str, runs: Sequence[Run], held: Sequence[CheckpointSummary]) -> bool:
    """Return whether so much of a vector changed in between that it cannot have returned by chance."""
    tensor = runs[0][0].tensors[name]
    members = {item.step for run in runs for item in run}
    begin, end = runs[0][0].step, runs[-1][-1].step
    between = [item.tensors[name] for item in held if begin < item.step < end and item.step not in members]
    return _must_move(tensor, min((_changed(tensor, other, unknown=0.0) for other in between), default=0.0))


def _must_move(tensor: TensorSummary, share: float) -> bool:
    """Return whether a vector of which at least a share of the values always changes cannot stay by chance."""
    count = int(np.prod(tensor.shape))
    if tensor.dtype in ("float32", "float64"):
        return count >= MIN_VECTOR_VALUES and share >= MIN_VECTOR_SHARE
    return count * share >= MIN_VECTOR_CHANGES


def _distance_to_neighbours(name: str, run: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> float:
    begin, end = (next(k for k, item in enumerate(held) if item is run[at]) for at in (0, -1))
    neighbours = [held[k].tensors[name] for k in (begin - 1, end + 1) if 0 <= k < len(held)]
    own = run[0].tensors[name].values().astype(np.float64)
    return float(np.mean([np.linalg.norm(own - other.values()) for other in neighbours if other.sketch]))


def identical_groups(summaries: Sequence[CheckpointSummary]) -> list[list[int]]:
    """Return the groups of steps whose weights are the same: all tensors, or all files as published."""
    groups: dict[object, list[int]] = defaultdict(list)
    for item in summaries:
        if not item.error and (identity := _content(item) or _published(item)):
            groups[identity].append(item.step)
    return sorted(group for group in groups.values() if len(group) > 1)


def _content(item: CheckpointSummary) -> object:
    hashes = frozenset((name, tensor.content_hash) for name, tensor in item.tensors.items())
    known = hashes and all(content for _, content in hashes)
    return hashlib.sha256(repr(sorted(hashes)).encode()).digest() if known else None


def _published(item: CheckpointSummary) -> object:
    identities = frozenset((name, file.identity) for name, file in item.files.items())
    return identities if identities and all(identity for _, identity in identities) else None


def whole_duplicates(summaries: Sequence[CheckpointSummary], log: "LogTable | None") -> Iterator[Finding]:
    """Find whole checkpoints that are the same; those that hold the final weights are findings of their own."""
    steps = [item.step for item in summaries]
    for group in identical_groups(summaries):
        early, late = _before_the_end(group, steps)
        if late and early:
            yield final_weights(early, late[-1], "byte for byte those")
            group = late
        if len(group) < 2:
            continue
        reason = ""
        if group == steps[:2] and steps[0] == 0:
            reason = "as where the first update has a learning rate of 0"
        elif _without_learning(group, log):
            reason = "the learning rate between them was 0"
        elif len(group) >= MIN_FROZEN and group == steps[-len(group) :]:
            reason = "as where the learning rate ends at 0"
        severity: Severity = "note" if reason else "fault"
        message = f"byte for byte the same weights; {reason or 'all but one of them are not what they say'}"
        yield Finding("duplicate", severity, tuple(group), "", f"{steps_text(group)}: {message}")


def final_weights(early: Sequence[int], last: int, which: str, *, where: str = "", layer: str = "") -> Finding:
    """Return the finding that early steps hold the weights of the last step, or some of them."""
    prefix = f"{where}: " if where else ""
    message = f"{prefix}{steps_text(early)}: the weights are {which} of the last checkpoint, step {last}"
    return Finding("final weights", "fault", tuple(early), layer, message)


def _before_the_end(group: Sequence[int], steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split a group that holds the last step into the earlier steps and the unbroken stretch up to the last."""
    if not group or group[-1] != steps[-1]:
        return list(group), []
    members = set(group)
    begin = len(steps) - 1
    while begin > 0 and steps[begin - 1] in members:
        begin -= 1
    return [s for s in group if s < steps[begin]], list(steps[begin:])


def _without_learning(group: Sequence[int], log: "LogTable | None") -> bool:
    """Return whether, by the log, the learning rate was 0 between the first and the last step of a group."""
    if log is None:
        return False
    rates = log.values["learning_rate"][(log.steps > group[0]) & (log.steps <= group[-1])]
    return len(rates) > 0 and bool(np.all(rates == 0))


class Unchanged(NamedTuple):
    """Tensors that are the same at some steps, though they should have changed."""

    final: dict[str, list[int]]  # by tensor, the early steps at which it is as at the last step, which is right
    # tensors, and the steps at which each is the same; which of them is right is not known
    still: list[tuple[str, tuple[int, ...]]]
    frozen: list[tuple[str, tuple[int, ...]]]  # tensors, and the steps at which each is the same as if frozen
    stale: dict[str, dict[int, int]]  # vectors, the steps at which they are old, and those whose values they hold


def unchanged_tensors(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> Unchanged:
    """Find tensors that do not change while others do."""
    readable = _readable(summaries, excluded)
    every = [item.step for item in readable]
    same = _same_tensors(readable)
    unchanged = Unchanged({}, [], [], {})
    for name, groups in same.items():
        if len(groups[0]) == len(readable):
            unchanged.frozen.append((name, tuple(every)))
            continue
        held = [item for item in readable if name in item.tensors]
        runs_of = [stretches(group, held) for group in groups]
        recurs = sum(len(run) > 1 for runs in runs_of for run in runs) > 1
        if stale := {step: old for runs in runs_of for step, old in stale_steps(name, runs, held).items()}:
            unchanged.stale[name] = stale
            continue
        for group, runs in zip(groups, runs_of, strict=True):
            stood = _stood(name, group, held, recurs=recurs)
            early, late = _before_the_end(stood, every)
            if early and late:
                unchanged.final[name] = early
                stood = late
            if len(stood) > 1:
                frozen = len(runs) == 1 and is_frozen(name, runs[0], held, recurs=recurs)
                (unchanged.frozen if frozen else unchanged.still).append((name, tuple(stood)))
    # Vectors of old values are the final ones where the matrices next to them are.
    final = {step for steps in unchanged.final.values() for step in steps}
    for name in [name for name, steps in unchanged.stale.items() if final.issuperset(steps)]:
        unchanged.final[name] = sorted(unchanged.stale.pop(name))
    return unchanged


def _stood(
    name: str, group: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary], *, recurs: bool
) -> list[int]:
    """Return the steps at which a tensor is the same, though it should have moved between two of them."""
    tensor = group[0].tensors[name]
    if tensor.is_zero:
        return []
    if tensor.is_matrix:
        own = _own_share(name, group, held)
        pairs = pairwise(group) if len(group) > 6 else combinations(group, 2)
        return sorted({item.step for a, b in pairs if _should_have_moved(name, a, b, own) for item in (a, b)})
    own = _own_share(name, group, held, unknown=0.0)
    once = not recurs and len(group) == 2 and group[0] is not held[0] and group[1] is not held[-1]
    stuck = [run for run in stretches(group, held) if len(run) > 1 and is_stuck(name, run, own, once=once)]
    return [item.step for run in stuck for item in run]


def partial_duplicates(
    summaries: Sequence[CheckpointSummary], excluded: Collection[int], unchanged: Unchanged
) -> Iterator[Finding]:
    """Report matrices and files that do not change while others do, and tensors that never change."""
    readable = _readable(summaries, excluded)
    if len(readable) < 2:
        return
    last, n_tensors = readable[-1].step, max(len(item.tensors) for item in readable)
    for steps, names in by_steps(unchanged.final.items()):
        yield final_weights(
            steps, last, "byte for byte those", where=layers_text(names, n_tensors), layer=single(names)
        )
    words = "byte for byte the same at {}, while others moved"
    yield from findings_of_layers("still", unchanged.still, n_tensors, words)

    def stale(steps: tuple[int, ...], names: list[str]) -> str:
        old = short_steps(sorted({step for name in names for step in unchanged.stale[name].values()}))
        return f"at {steps_text(steps)} byte for byte as at step {old}, though it changed in between; fetch it again"

    yield from findings_of_layers("still", unchanged.stale.items(), n_tensors, stale)
    words = "the same at {}: frozen"
    yield from findings_of_layers("frozen layer", unchanged.frozen, n_tensors, words, "note")
    yield from _files(readable)


def _readable(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> list[CheckpointSummary]:
    return [item for item in summaries if item.step not in excluded and not item.error]


def _same_tensors(summaries: Sequence[CheckpointSummary]) -> dict[str, list[list[CheckpointSummary]]]:
    """Return the groups of checkpoints in which a tensor is the same, by its name."""
    same = {}
    for name in dict.fromkeys(name for item in summaries for name in item.tensors):
        by_content: dict[str, list[CheckpointSummary]] = defaultdict(list)
        for item in summaries:
            if name in item.tensors and item.tensors[name].content_hash:
                by_content[item.tensors[name].content_hash].append(item)
        if groups := [group for group in by_content.values() if len(group) > 1]:
            same[name] = groups
    return same


def _own_share(
    name: str, group: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary], unknown: float = 1.0
) -> float:
    """Return the least share of a tensor's values that changes just before or after a group of equals."""
    members = {item.step for item in group}
    shares = [1.0]
    for a, b in pairwise(held):
        if (a.step in members) != (b.step in members):
            shares.append(_changed(a.tensors[name], b.tensors[name], unknown))
    return min(shares)


def _changed(first: TensorSummary, second: TensorSummary, unknown: float = 1.0) -> float:
    """Return the share of values that differ, `unknown` where sketches cannot be compared."""
    if not first.sketch or len(first.sketch) != len(second.sketch):
        return unknown
    return float((first.values() != second.values()).mean())


def _should_have_moved(name: str, first: CheckpointSummary, second: CheckpointSummary, own: float) -> bool:
    """Return whether a matrix that two checkpoints share should have changed, at the others' rate and its own."""
    tensor = first.tensors[name]
    if first.step == 0 and any(t.is_zero or t.spot for t in first.matrices.values()) and second.step <= 1:
        # Behind a projection that begins at zero nothing has a gradient at first.
        return False
    count = int(np.prod(tensor.shape))
    return count * min(own, _share_changed(first, second, tensor.dtype)) >= MIN_EXPECTED_CHANGES


def _share_changed(first: CheckpointSummary, second: CheckpointSummary, dtype: str) -> float:
    """Estimate the share of values that most matrices changed between two checkpoints, if they changed."""
    pairs = [(t, second.tensors[n]) for n, t in first.matrices.items() if n in second.tensors and t.dtype == dtype]
    moved = [(a, b) for a, b in pairs if a.shape == b.shape and _differ(a, b)]
    shares = [_changed(a, b) for a, b in moved if a.sketch and b.sketch]
    if shares:
        return float(np.quantile(shares, 0.25))
    if dtype in ("float32", "float64"):
        return float(bool(moved))
    windows = [np.array(a.spot.split(".")) != np.array(b.spot.split(".")) for a, b in moved if a.spot and b.spot]
    if not windows or not all(changed.all() for changed in windows):
        return 0.0
    # Every window changed; one more could have stayed the same.
    return float(1 - (1 / (sum(map(len, windows)) + 1)) ** (1 / WINDOW_SIZE))


def _differ(first: TensorSummary, second: TensorSummary) -> bool:
    if first.content_hash and second.content_hash:
        return first.content_hash != second.content_hash
    return first.spot != second.spot


def _files(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find shards that are published under two steps, where the tensors themselves were not read."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for item in summaries:
        if len(item.files) > 1 and not any(tensor.content_hash for tensor in item.tensors.values()):
            for name, file in item.files.items():
                if file.identity:
                    groups[name, file.identity].append(item.step)
    every = [item.step for item in summaries]
    for (name, _), steps in groups.items():
        if not 1 < len(steps) < len(summaries):
            continue
        early, late = _before_the_end(steps, every)
        if early and late:
            yield final_weights(early, late[-1], "byte for byte those", where=name, layer=name)
            steps = late
        if len(steps) > 1:
            message = f"{name}: the same file at {steps_text(steps)}, while others differ"
            yield Finding("still", "fault", tuple(steps), name, message)
