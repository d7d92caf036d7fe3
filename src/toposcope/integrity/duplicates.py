"""Checkpoints, files and tensors that are byte-identical under two steps, though training should have moved them."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toposcope.integrity.evidence import WINDOW, Evidence, TensorEvidence
from toposcope.integrity.finding import Finding, grouped, only, told, told_steps

if TYPE_CHECKING:
    from toposcope.logs import LogTable

EXPECTED = 50.0
"""Values of a tensor that should have changed before its standing still is a fault: by chance, exp(-50)."""


def identical(evidence: Sequence[Evidence]) -> list[list[int]]:
    """Return the groups of steps whose weights are the same: all tensors, or all files as published."""
    groups: dict[int, list[int]] = {item.step: [item.step] for item in evidence}
    for identity in (_content, _published):
        first: dict[object, int] = {}
        for item in evidence:
            known = identity(item)
            if not known or item.error:
                continue
            other = groups[first.setdefault(known, item.step)]
            if item.step not in other:
                other += groups[item.step]
                for step in groups[item.step]:
                    groups[step] = other
    found = {id(group): sorted(group) for group in groups.values() if len(group) > 1}
    return sorted(found.values())


def _content(item: Evidence) -> object:
    hashes = frozenset((name, tensor.content_hash) for name, tensor in item.tensors.items())
    return hashes if hashes and all(content for _, content in hashes) else None


def _published(item: Evidence) -> object:
    identities = frozenset((name, file.identity) for name, file in item.files.items())
    return identities if identities and all(identity for _, identity in identities) else None


def whole(evidence: Sequence[Evidence], log: "LogTable | None") -> Iterator[Finding]:
    """Find whole checkpoints that are the same, those that hold the final weights apart."""
    steps = [item.step for item in evidence]
    for group in identical(evidence):
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
            message = f"{told_steps(group)}: the same weights; the learning rate between them was 0"
            yield Finding("duplicate", "note", tuple(group), "", message)
        else:
            message = f"{told_steps(group)}: byte for byte the same weights; all but one of them are not what they say"
            yield Finding("duplicate", "fault", tuple(group), "", message)


def final_weights(early: Sequence[int], last: int, which: str, *, where: str = "", layer: str = "") -> Finding:
    """Return the finding that early steps serve the weights of the last, or some of them."""
    told_where = f"{where}: " if where else ""
    message = f"{told_where}{told_steps(early)}: the weights are {which} of the last checkpoint, step {last}"
    return Finding("final weights", "fault", tuple(early), layer, message)


def _before_the_end(group: Sequence[int], steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Part a group that holds the last step into what comes before and the stretch that ends with it."""
    if group[-1] != steps[-1]:
        return list(group), []
    members = set(group)
    begin = len(steps) - 1
    while begin > 0 and steps[begin - 1] in members:
        begin -= 1
    return [s for s in group if s < steps[begin]], list(steps[begin:])


def _without_learning(group: Sequence[int], log: "LogTable | None") -> bool:
    """Tell whether the log says that nothing was learned between the first and the last of a group."""
    if log is None:
        return False
    rates = log.values["learning_rate"][(log.steps > group[0]) & (log.steps <= group[-1])]
    return len(rates) > 0 and bool(np.all(rates == 0))


class Standing(NamedTuple):
    """What is the same under some steps, though it should have moved.

    Attributes
    ----------
    final : dict of str to list of int
        By name, early steps that have it as it is at the last; that one is right.
    still : list of (str, tuple of int)
        Names, and steps of which it is not known which is right.
    frozen : list of str
        What is the same at all steps.
    """

    final: dict[str, list[int]]
    still: list[tuple[str, tuple[int, ...]]]
    frozen: list[str]


def standing(evidence: Sequence[Evidence], apart: Collection[int]) -> Standing:
    """Find matrices that stand still while others move.

    Parameters
    ----------
    evidence : sequence of Evidence
    apart : collection of int
        Steps known to hold the weights of another; they are not looked at.
    """
    looked_at = _looked_at(evidence, apart)
    every = [item.step for item in looked_at]
    same = _same_tensors(looked_at)
    found = Standing({}, [], [])
    for name, groups in same.items():
        if len(groups) == 1 and len(groups[0]) == len(looked_at):
            found.frozen.append(name)
            continue
        for group in groups:
            pairs = pairwise(group) if len(group) > 6 else combinations(group, 2)
            own = _own_share(name, group, looked_at)
            stood = sorted({item.step for a, b in pairs if _should_have_moved(name, a, b, own) for item in (a, b)})
            early, late = _before_the_end(stood, every) if stood else ([], [])
            if early and late:
                found.final[name] = early
                stood = late
            if len(stood) > 1:
                found.still.append((name, tuple(stood)))
    # Vectors may stand still for long, but not where the matrices beside them are the final ones.
    final = {step for steps in found.final.values() for step in steps}
    for name in same.keys() - found.final.keys() - set(found.frozen):
        at_the_end = next((group for group in same[name] if group[-1].step == every[-1]), [])
        early = [item.step for item in at_the_end if item.step in final and not item.tensors[name].is_matrix]
        if early:
            found.final[name] = early
    return found


def parts(evidence: Sequence[Evidence], apart: Collection[int], found: Standing) -> Iterator[Finding]:
    """Tell of matrices, or files, that stand still while others move, and of those that are frozen from first to last.

    Parameters
    ----------
    evidence : sequence of Evidence
    apart : collection of int
        Steps known to hold the weights of another; they are not looked at.
    found : Standing
    """
    looked_at = _looked_at(evidence, apart)
    if len(looked_at) < 2:
        return
    last, n_tensors = looked_at[-1].step, max(len(item.tensors) for item in looked_at)
    for steps, names in grouped(found.final):
        yield final_weights(steps, last, "byte for byte those", where=told(names, n_tensors), layer=only(names))
    incidents = {f"{name}\x1f{k}": steps for k, (name, steps) in enumerate(found.still)}
    for steps, keys in grouped(incidents):
        names = [key.partition("\x1f")[0] for key in keys]
        message = f"{told(names, n_tensors)}: byte for byte the same at {told_steps(steps)}, while others moved"
        yield Finding("still", "fault", steps, only(names), message)
    if found.frozen and len(found.frozen) < n_tensors:
        message = f"{told(found.frozen, n_tensors)}: the same at all {len(looked_at)} checkpoints: frozen"
        yield Finding("frozen", "note", tuple(item.step for item in looked_at), only(found.frozen), message)
    yield from _files(looked_at)


def _looked_at(evidence: Sequence[Evidence], apart: Collection[int]) -> list[Evidence]:
    return [item for item in evidence if item.step not in apart and not item.error]


def _same_tensors(evidence: Sequence[Evidence]) -> dict[str, list[list[Evidence]]]:
    """Return, by tensor, the groups of checkpoints in which it is the same."""
    by_content: dict[tuple[str, str], list[Evidence]] = defaultdict(list)
    for item in evidence:
        for name, tensor in item.tensors.items():
            if tensor.content_hash:
                by_content[name, tensor.content_hash].append(item)
    found = defaultdict(list)
    for (name, _), group in by_content.items():
        if len(group) > 1:
            found[name].append(group)
    return found


def _own_share(name: str, group: Sequence[Evidence], evidence: Sequence[Evidence]) -> float:
    """Return which share of a tensor's values changes, at least, where it does: just before and after a group."""
    members = {item.step for item in group}
    held = [item for item in evidence if name in item.tensors]
    shares = [1.0]
    for a, b in pairwise(held):
        if (a.step in members) != (b.step in members):
            shares.append(_changed(a.tensors[name], b.tensors[name]))
    return min(shares)


def _changed(first: TensorEvidence, second: TensorEvidence) -> float:
    if not first.sketch or len(first.sketch) != len(second.sketch):
        return 1.0
    return float((first.values() != second.values()).mean())


def _should_have_moved(name: str, first: Evidence, second: Evidence, own: float) -> bool:
    """Tell whether a matrix that is the same in two checkpoints would have changed as the others, and itself, did."""
    tensor = first.tensors[name]
    if not tensor.is_matrix or tensor.is_zero:
        return False
    if first.step == 0 and any(t.is_zero or t.spot for t in first.matrices.values()) and second.step <= 1:
        # Behind a projection that begins at zero nothing has a gradient at first.
        return False
    count = int(np.prod(tensor.shape))
    return count * min(own, _share_changed(first, second, tensor.dtype)) >= EXPECTED


def _share_changed(first: Evidence, second: Evidence, dtype: str) -> float:
    """Estimate which share of their values at least most matrices changed between two checkpoints, if they changed."""
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
    # All of them changed; of so many one more may have stayed the same.
    return float(1 - (1 / (sum(map(len, windows)) + 1)) ** (1 / WINDOW))


def _differ(first: TensorEvidence, second: TensorEvidence) -> bool:
    if first.content_hash and second.content_hash:
        return first.content_hash != second.content_hash
    return first.spot != second.spot


def _files(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find shards that are published under two steps, where the tensors themselves were not read."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for item in evidence:
        if len(item.files) > 1 and not any(tensor.content_hash for tensor in item.tensors.values()):
            for name, file in item.files.items():
                if file.identity:
                    groups[name, file.identity].append(item.step)
    every = [item.step for item in evidence]
    for (name, _), steps in groups.items():
        if not 1 < len(steps) < len(evidence):
            continue
        early, late = _before_the_end(steps, every)
        if early and late:
            yield final_weights(early, late[-1], "byte for byte those", where=name, layer=name)
            steps = late
        if len(steps) > 1:
            message = f"{name}: the same file at {told_steps(steps)}, while others differ"
            yield Finding("still", "fault", tuple(steps), name, message)
