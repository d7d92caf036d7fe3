"""Checkpoints that cannot be read, tensors of another shape than in the rest, values that are none, dead layers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from toposcope.integrity.evidence import Evidence
from toposcope.integrity.finding import Finding, grouped, only, told, told_steps

FALLBACK = "unreadable"
"""The check's name where an error is of no kind of its own."""


def unreadable(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find checkpoints that could not be opened or read: a finding each, named after `CheckpointError.kind`."""
    for item in evidence:
        if item.error:
            yield Finding(item.kind or FALLBACK, "fault", (item.step,), "", item.error)


def doubtful(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find checkpoints whose index disagrees with its shards in what nothing that is read depends on."""
    for item in evidence:
        if item.doubt and not item.error:
            yield Finding("index", "fault", (item.step,), "", item.doubt)


def layouts(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find tensors that are missing, superfluous, or of another shape or dtype than in most checkpoints."""
    whole = [item for item in evidence if not item.error]
    usual = usual_layout(whole)
    absent: dict[str, list[int]] = defaultdict(list)
    strays: dict[str, list[int]] = defaultdict(list)
    other: dict[str, dict[str, list[int]]] = {"shape": defaultdict(list), "dtype": defaultdict(list)}
    for item in whole:
        for name in usual.keys() - item.tensors.keys():
            absent[name].append(item.step)
        for name, tensor in item.tensors.items():
            if name not in usual:
                strays[name].append(item.step)
            elif tensor.shape != usual[name][0]:
                other["shape"][name].append(item.step)
            elif tensor.dtype != usual[name][1]:
                other["dtype"][name].append(item.step)
    for steps, names in grouped(absent):
        message = f"{told(sorted(names), len(usual))}: not in {told_steps(steps)}, but in most others"
        yield Finding("tensors", "fault", steps, only(names), message)
    for steps, names in grouped(strays):
        message = f"{told(sorted(names), len(usual))}: in {told_steps(steps)}, but not in most others"
        yield Finding("tensors", "fault", steps, only(names), message)
    for check, incidents in other.items():
        for steps, names in grouped(incidents):
            here = next(item for item in whole if item.step == steps[0]).tensors[names[0]]
            is_, was = (here.shape, usual[names[0]][0]) if check == "shape" else (here.dtype, usual[names[0]][1])
            where = told(sorted(names), len(usual))
            message = f"{where}: {check} {_plain(is_)} in {told_steps(steps)}, {_plain(was)} in most"
            yield Finding(check, "fault", steps, only(names), message)


def usual_layout(evidence: Sequence[Evidence]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype, as most checkpoints have them, of each tensor that at least half of them hold."""
    seen: dict[str, Counter[tuple[tuple[int, ...], str]]] = defaultdict(Counter)
    for item in evidence:
        for name, tensor in item.tensors.items():
            seen[name][tensor.shape, tensor.dtype] += 1
    return {name: c.most_common(1)[0][0] for name, c in seen.items() if 2 * c.total() >= len(evidence)}


def not_finite(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find tensors with NaN or infinite values."""
    incidents: dict[str, list[int]] = defaultdict(list)
    counts: dict[tuple[str, int], int] = {}
    for item in evidence:
        for name, tensor in item.tensors.items():
            if tensor.n_not_finite:
                incidents[name].append(item.step)
                counts[name, item.step] = tensor.n_not_finite
    n_tensors = max((len(item.tensors) for item in evidence), default=0)
    for steps, names in grouped(incidents):
        count = sum(counts[name, step] for name in names for step in steps)
        message = f"{told(names, n_tensors)}: {count} values that are NaN or infinite, at {told_steps(steps)}"
        yield Finding("non-finite", "fault", steps, only(names), message)


def dead(evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """Find matrices of nothing but zeros; before they first move it is a note, as projections may begin at zero."""
    incidents: dict[str, list[int]] = defaultdict(list)
    beginning: dict[str, list[int]] = defaultdict(list)
    for name in sorted({name for item in evidence for name in item.matrices}):
        known = [(item.step, item.tensors[name].is_zero) for item in evidence if name in item.tensors]
        zero = [step for step, is_zero in known if is_zero]
        moved = next((step for step, is_zero in known if not is_zero), None)
        begun = moved if moved is not None and evidence[0].step == 0 else 1
        beginning[name] += [step for step in zero if step < begun]
        incidents[name] += [step for step in zero if step >= begun]
    n_tensors = max((len(item.tensors) for item in evidence), default=0)
    for steps, names in grouped(incidents):
        message = f"{told(names, n_tensors)}: all zero at {told_steps(steps)}"
        yield Finding("dead", "fault", steps, only(names), message)
    for steps, names in grouped(beginning):
        message = f"{told(names, n_tensors)}: all zero at {told_steps(steps)}, as projections that begin at zero are"
        yield Finding("dead", "note", steps, only(names), message)


def _plain(what: tuple[int, ...] | str) -> str:
    return what if isinstance(what, str) else " x ".join(map(str, what)) or "()"
