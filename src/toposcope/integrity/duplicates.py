"""Checkpoints, files and tensors that are byte-identical under two steps, though training should have moved them."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.integrity import tuning
from toposcope.integrity.finding import (
    Finding,
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


EMBEDDINGS = ("embed", "pos_embed", "head")

MIN_OWN_MOVES = 3  # other intervals, in each of which a vector moves

Runs = list[list[CheckpointSummary]]  # unbroken stretches of checkpoints, each a list


def stretches(group: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> Runs:
    """Split checkpoints into stretches that follow each other among those that hold a tensor."""
    place = {item.step: k for k, item in enumerate(held)}
    runs: Runs = []
    for item in group:
        if runs and place[item.step] == place[runs[-1][-1].step] + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def stale_vectors(
    same: Mapping[str, Sequence[Sequence[CheckpointSummary]]], summaries: Sequence[CheckpointSummary]
) -> dict[str, dict[int, int]]:
    """Return vectors that come back to what they were, with the steps and the step whose values each holds."""
    stale: dict[str, dict[int, int]] = defaultdict(dict)
    for name, groups in same.items():
        held = [item for item in summaries if name in item.tensors]
        for group in groups:
            if group[0].tensors[name].is_matrix or group[0].tensors[name].is_zero:
                continue
            runs = stretches(group, held)
            if len(runs) > 1 and _moved_between(name, runs, held):
                # Of a vector that does not change any more the earlier value is right, of single ones the nearer.
                right = min(runs, key=lambda run: (len(run) > 1, _distance_to_neighbours(name, run, held)))
                stale[name] |= {item.step: right[0].step for run in runs if run is not right for item in run}
    return dict(stale)


def stale_findings(stale: Mapping[str, Mapping[int, int]], n_tensors: int) -> Iterator[Finding]:
    """Report stale vectors."""

    def words(steps: tuple[int, ...], names: list[str]) -> str:
        old = sorted({step for name in names for step in stale[name].values()})
        return (
            f"at {steps_text(steps)} byte for byte as at step {short_steps(old)}, though it changed in between; "
            "fetch or save it again"
        )

    yield from findings_of_layers("still", stale.items(), n_tensors, words)


def stuck_steps(name: str, group: Sequence[CheckpointSummary], summaries: Sequence[CheckpointSummary]) -> list[int]:
    """Return the steps at which a vector stays as it is, though it moves otherwise, and others of its kind move then.

    All of its layer must move too: biases, norms and statistics are frozen together.
    """
    held = [item for item in summaries if name in item.tensors]
    layer, _, kind = name.rpartition(".")
    first = group[0].tensors
    names = list(first)
    rest = [other for other in names if other != name and other.startswith(f"{layer}.")]
    if not rest:  # a norm without a bias is frozen with what stands next to it
        rest = [other for other in names[max(0, names.index(name) - 1) : names.index(name) + 2] if other != name]
    kin = [n for n, t in first.items() if n != name and not t.is_matrix and n.rpartition(".")[2] == kind]
    steps: set[int] = set()
    for run in stretches(group, held):
        members = {item.step for item in run}
        own = [
            _changed(a.tensors[name], b.tensors[name], unknown=0.0)
            for a, b in pairwise(held)
            if not members.issuperset((a.step, b.step))
        ]
        moves_before = run[0] is not held[0] and run[0] is not held[1]
        if len(run) < 2 or not moves_before or len(own) < MIN_OWN_MOVES or not _must_move(first[name], min(own)):
            continue

        def moved(names: Sequence[str], a: CheckpointSummary, b: CheckpointSummary) -> int:
            shares = [_changed(a.tensors[n], b.tensors[n], 0.0) for n in names if n in a.tensors and n in b.tensors]
            return sum(share >= tuning.MIN_VECTOR_SHARE for share in shares)

        if kin and all(moved(rest, a, b) == len(rest) and 2 * moved(kin, a, b) > len(kin) for a, b in pairwise(run)):
            steps |= members
    return sorted(steps)


def is_frozen(name: str, group: Sequence[CheckpointSummary], summaries: Sequence[CheckpointSummary]) -> bool:
    """Return whether a tensor is the same for a while, one checkpoint more in between, with the rest of its layer."""
    held = [item for item in summaries if name in item.tensors]
    at_an_end = group[0] is held[0] or group[-1] is held[-1]
    if len(group) < tuning.MIN_FROZEN + (not at_an_end) or len(stretches(group, held)) > 1:
        return False
    layer = name.rpartition(".")[0]
    while layer:
        rest = [other for other in group[0].tensors if other != name and other.startswith(f"{layer}.")]
        if rest:
            known = ([tensor for item in group if (tensor := item.tensors.get(other))] for other in rest)
            return all(len({tensor.content_hash or tensor.spot for tensor in of}) == 1 for of in known)
        if group[0].tensors[name].role in EMBEDDINGS:
            return True
        layer = layer.rpartition(".")[0]
    return group[0].tensors[name].role in EMBEDDINGS


def _moved_between(name: str, runs: Runs, held: Sequence[CheckpointSummary]) -> bool:
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
        return count >= tuning.MIN_VECTOR_VALUES and share >= tuning.MIN_VECTOR_SHARE
    return count * share >= tuning.MIN_VECTOR_CHANGES


def _distance_to_neighbours(name: str, run: Sequence[CheckpointSummary], held: Sequence[CheckpointSummary]) -> float:
    begin, end = (next(k for k, item in enumerate(held) if item is run[at]) for at in (0, -1))
    neighbours = [held[k].tensors[name] for k in (begin - 1, end + 1) if 0 <= k < len(held)]
    own = run[0].tensors[name].values().astype(np.float64)
    return float(np.mean([np.linalg.norm(own - other.values()) for other in neighbours if other.sketch]))


def identical_groups(summaries: Sequence[CheckpointSummary]) -> list[list[int]]:
    """Return the groups of steps whose weights are the same: all tensors, or all files as published."""
    groups: dict[int, list[int]] = {item.step: [item.step] for item in summaries}
    for identity in (_content, _published):
        first: dict[object, int] = {}
        for item in summaries:
            known = identity(item)
            if not known or item.error:
                continue
            other = groups[first.setdefault(known, item.step)]
            if item.step not in other:
                other += groups[item.step]
                for step in groups[item.step]:
                    groups[step] = other
    merged = {id(group): sorted(group) for group in groups.values() if len(group) > 1}
    return sorted(merged.values())


def _content(item: CheckpointSummary) -> object:
    hashes = frozenset((name, tensor.content_hash) for name, tensor in item.tensors.items())
    return hashes if hashes and all(content for _, content in hashes) else None


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
        if group == steps[:2] and steps[0] == 0:
            message = "steps 0 and the next are the same, as they are where the first update has a learning rate of 0"
            yield Finding("duplicate", "note", tuple(group), "", message)
        elif _without_learning(group, log):
            message = f"{steps_text(group)}: the same weights; the learning rate between them was 0"
            yield Finding("duplicate", "note", tuple(group), "", message)
        else:
            message = f"{steps_text(group)}: byte for byte the same weights; all but one of them are not what they say"
            yield Finding("duplicate", "fault", tuple(group), "", message)


def final_weights(early: Sequence[int], last: int, which: str, *, where: str = "", layer: str = "") -> Finding:
    """Return the finding that early steps hold the weights of the last step, or some of them."""
    prefix = f"{where}: " if where else ""
    message = f"{prefix}{steps_text(early)}: the weights are {which} of the last checkpoint, step {last}"
    return Finding("final weights", "fault", tuple(early), layer, message)


def _before_the_end(group: Sequence[int], steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split a group that holds the last step into the earlier steps and the unbroken stretch up to the last."""
    if group[-1] != steps[-1]:
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
    frozen: list[str]  # tensors that are the same at all steps
    # tensors that are the same from some step on, or up to one, together with the rest of their layer
    frozen_for: list[tuple[str, tuple[int, ...]]]
    stale: dict[str, dict[int, int]]  # vectors that hold the values of another step; see `stale_vectors`


def unchanged_tensors(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> Unchanged:
    """Find matrices that do not change while others do."""
    readable = _readable(summaries, excluded)
    every = [item.step for item in readable]
    same = _same_tensors(readable)
    unchanged = Unchanged({}, [], [], [], stale_vectors(same, readable))
    for name, groups in same.items():
        if len(groups) == 1 and len(groups[0]) == len(readable):
            unchanged.frozen.append(name)
            continue
        for group in groups:
            pairs = pairwise(group) if len(group) > 6 else combinations(group, 2)
            own = _own_share(name, group, readable)
            stood = sorted({item.step for a, b in pairs if _should_have_moved(name, a, b, own) for item in (a, b)})
            early, late = _before_the_end(stood, every) if stood else ([], [])
            if early and late:
                unchanged.final[name] = early
                stood = late
            if len(stood) > 1 and is_frozen(name, group, readable):
                unchanged.frozen_for.append((name, tuple(item.step for item in group)))
                continue
            if not (group[0].tensors[name].is_matrix or group[0].tensors[name].is_zero or name in unchanged.stale):
                stood = stuck_steps(name, group, readable)
            if len(stood) > 1:
                unchanged.still.append((name, tuple(stood)))
    # Vectors may stay the same for long, but not where the matrices next to them are the final ones.
    final = {step for steps in unchanged.final.values() for step in steps}
    for name in same.keys() - unchanged.final.keys() - set(unchanged.frozen):
        at_the_end = next((group for group in same[name] if group[-1].step == every[-1]), [])
        early = [item.step for item in at_the_end if item.step in final and not item.tensors[name].is_matrix]
        if early:
            unchanged.final[name] = early
    for name in unchanged.stale.keys() & unchanged.final.keys():
        del unchanged.stale[name]
    return unchanged


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
    yield from stale_findings(unchanged.stale, n_tensors)
    words = "the same at {} with all of its layer: frozen"
    yield from findings_of_layers("frozen layer", unchanged.frozen_for, n_tensors, words, "note")
    if unchanged.frozen and len(unchanged.frozen) < n_tensors:
        message = f"{layers_text(unchanged.frozen, n_tensors)}: the same at all {len(readable)} checkpoints: frozen"
        yield Finding("frozen layer", "note", tuple(item.step for item in readable), single(unchanged.frozen), message)
    yield from _files(readable)


def _readable(summaries: Sequence[CheckpointSummary], excluded: Collection[int]) -> list[CheckpointSummary]:
    return [item for item in summaries if item.step not in excluded and not item.error]


def _same_tensors(summaries: Sequence[CheckpointSummary]) -> dict[str, list[list[CheckpointSummary]]]:
    """Return the groups of checkpoints in which a tensor is the same, by its name."""
    by_content: dict[tuple[str, str], list[CheckpointSummary]] = defaultdict(list)
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.content_hash:
                by_content[name, tensor.content_hash].append(item)
    same = defaultdict(list)
    for (name, _), group in by_content.items():
        if len(group) > 1:
            same[name].append(group)
    return same


def _own_share(name: str, group: Sequence[CheckpointSummary], summaries: Sequence[CheckpointSummary]) -> float:
    """Return the least share of a tensor's values that changes just before or after a group of equals."""
    members = {item.step for item in group}
    held = [item for item in summaries if name in item.tensors]
    shares = [1.0]
    for a, b in pairwise(held):
        if (a.step in members) != (b.step in members):
            shares.append(_changed(a.tensors[name], b.tensors[name]))
    return min(shares)


def _changed(first: TensorSummary, second: TensorSummary, unknown: float = 1.0) -> float:
    """Return the share of values that differ, `unknown` where sketches cannot be compared."""
    if not first.sketch or len(first.sketch) != len(second.sketch):
        return unknown
    return float((first.values() != second.values()).mean())


def _should_have_moved(name: str, first: CheckpointSummary, second: CheckpointSummary, own: float) -> bool:
    """Return whether a matrix that two checkpoints share should have changed, at the others' rate and its own."""
    tensor = first.tensors[name]
    if not tensor.is_matrix or tensor.is_zero:
        return False
    if first.step == 0 and any(t.is_zero or t.spot for t in first.matrices.values()) and second.step <= 1:
        # Behind a projection that begins at zero nothing has a gradient at first.
        return False
    count = int(np.prod(tensor.shape))
    return count * min(own, _share_changed(first, second, tensor.dtype)) >= tuning.MIN_EXPECTED_CHANGES


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
