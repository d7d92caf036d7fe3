"""Unreadable checkpoints, tensors whose shape or dtype differs from most, values that are not finite, dead layers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from toposcope.integrity.finding import Finding, by_steps, layers_text, single, steps_text
from toposcope.integrity.summary import CheckpointSummary

UNREADABLE = "unreadable"
"""Name of the check for errors that have no kind."""


def unreadable(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints that could not be opened or read: a finding each, named after `CheckpointError.kind`."""
    for item in summaries:
        if item.error:
            yield Finding(item.kind or UNREADABLE, "fault", (item.step,), "", item.error)


def doubtful(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find checkpoints whose index disagrees with the shards in a way that does not affect what is read."""
    for item in summaries:
        if item.doubt and not item.error:
            yield Finding("index", "fault", (item.step,), "", item.doubt)


def layouts(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors that are missing, extra, or of another shape or dtype than in most checkpoints."""
    whole = [item for item in summaries if not item.error]
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
    for steps, names in by_steps(absent):
        message = f"{layers_text(sorted(names), len(usual))}: not in {steps_text(steps)}, but in most others"
        yield Finding("tensors", "fault", steps, single(names), message)
    for steps, names in by_steps(strays):
        message = f"{layers_text(sorted(names), len(usual))}: in {steps_text(steps)}, but not in most others"
        yield Finding("tensors", "fault", steps, single(names), message)
    for check, incidents in other.items():
        for steps, names in by_steps(incidents):
            here = next(item for item in whole if item.step == steps[0]).tensors[names[0]]
            here_text, usual_text = (
                (here.shape, usual[names[0]][0]) if check == "shape" else (here.dtype, usual[names[0]][1])
            )
            where = layers_text(sorted(names), len(usual))
            message = f"{where}: {check} {_plain(here_text)} in {steps_text(steps)}, {_plain(usual_text)} in most"
            yield Finding(check, "fault", steps, single(names), message)


def usual_layout(summaries: Sequence[CheckpointSummary]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype, as most checkpoints have them, of each tensor that at least half of them hold."""
    seen: dict[str, Counter[tuple[tuple[int, ...], str]]] = defaultdict(Counter)
    for item in summaries:
        for name, tensor in item.tensors.items():
            seen[name][tensor.shape, tensor.dtype] += 1
    return {name: c.most_common(1)[0][0] for name, c in seen.items() if 2 * c.total() >= len(summaries)}


def not_finite(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find tensors with NaN or infinite values."""
    incidents: dict[str, list[int]] = defaultdict(list)
    counts: dict[tuple[str, int], int] = {}
    for item in summaries:
        for name, tensor in item.tensors.items():
            if tensor.n_not_finite:
                incidents[name].append(item.step)
                counts[name, item.step] = tensor.n_not_finite
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    for steps, names in by_steps(incidents):
        count = sum(counts[name, step] for name in names for step in steps)
        message = f"{layers_text(names, n_tensors)}: {count} values that are NaN or infinite, at {steps_text(steps)}"
        yield Finding("non-finite", "fault", steps, single(names), message)


def dead(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find matrices that are all zero: a note until they first change, as projections may begin at zero."""
    incidents: dict[str, list[int]] = defaultdict(list)
    beginning: dict[str, list[int]] = defaultdict(list)
    for name in sorted({name for item in summaries for name in item.matrices}):
        known = [(item.step, item.tensors[name].is_zero) for item in summaries if name in item.tensors]
        zero = [step for step, is_zero in known if is_zero]
        moved = next((step for step, is_zero in known if not is_zero), None)
        begun = moved if moved is not None and summaries[0].step == 0 else 1
        beginning[name] += [step for step in zero if step < begun]
        incidents[name] += [step for step in zero if step >= begun]
    n_tensors = max((len(item.tensors) for item in summaries), default=0)
    for steps, names in by_steps(incidents):
        message = f"{layers_text(names, n_tensors)}: all zero at {steps_text(steps)}"
        yield Finding("dead", "fault", steps, single(names), message)
    for steps, names in by_steps(beginning):
        message = (
            f"{layers_text(names, n_tensors)}: all zero at {steps_text(steps)}, as projections that begin at zero are"
        )
        yield Finding("dead", "note", steps, single(names), message)


def _plain(what: tuple[int, ...] | str) -> str:
    return what if isinstance(what, str) else " x ".join(map(str, what)) or "()"
