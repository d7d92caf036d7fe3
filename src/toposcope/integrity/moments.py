"""The state of an optimizer against that of the checkpoints next to it: what no moment of the same run can be.

Only a checkpoint between two that agree is judged, so that whatever changes for good (another optimizer, a longer
vocabulary, frozen layers, a reset) blames nothing. That a mean of squares falls no faster than its decay is a law
that no gradients break; what breaks it for good, as zeroing moments, breaks it past the checkpoint too.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from toposcope.integrity.finding import Finding, Severity, by_steps, steps_text
from toposcope.integrity.summary import CheckpointSummary
from toposcope.integrity.training_state import OPTIMIZER, TrainingState, is_square
from toposcope.wording import examples

MIN_FALLEN, MAX_FALLEN = 0.05, 0.005  # share of a mean of squares that falls too fast: next to another run's; never
MIN_COUNTED_VALUES = 16  # of a mean of squares
ROUNDING, MIN_SQUARE = 2e-7, 1e-30  # of float32 in a step; a mean of squares that is rounded no more than that
MIN_REMEMBERED = 0.5  # share of a mean of squares that lasts over two intervals in which zeros would still show
MIN_DISTINCT = 0.75  # share of the checkpoints that hold moments of their own, for one without to be odd


def state_findings(summaries: Sequence[CheckpointSummary]) -> Iterator[Finding]:
    """Find moments of an optimizer that hold what no moment does, or that are not those of the weights."""
    wrong: dict[str, set[int]] = defaultdict(set)
    for item in summaries:
        if item.error or item.state is None:
            continue
        if item.state.error:
            yield Finding(item.state.kind, "fault", (item.step,), "", item.state.error)
        for words in item.state.wrong:
            wrong[words].add(item.step)
    for steps, reasons in by_steps(wrong.items()):
        words = f"the optimizer's state at {steps_text(steps)} holds {examples(reasons, 1)}; save it again"
        yield Finding("optimizer", "fault", steps, "", words)
    known = [(item, item.state) for item in summaries if not item.error and item.state]
    held = [(item, state) for item, state in known if state.rates]
    if len(held) >= MIN_DISTINCT * len(known):  # else the optimizer is saved now and then
        held = known
    odd: dict[str, set[int]] = defaultdict(set)
    for (before, a), (item, b), (after, c) in zip(held, held[1:], held[2:], strict=False):
        if _may_continue(a, c) and _layout(before) == _layout(item) == _layout(after):
            for words in _between(a, b, c):
                odd[words].add(item.step)
    n_empty = sum(not state.shapes for _, state in held)
    for steps, reasons in by_steps(odd.items()):
        if "no moments" not in reasons[0] or 4 * n_empty <= len(held):
            words = f"the optimizer's state at {steps_text(steps)} {examples(reasons, 1)}; save it again"
            yield Finding("optimizer", "fault", steps, "", words)
    yield from _repeated_moments(held)


def _layout(item: CheckpointSummary) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in item.tensors.items()}


def _may_continue(a: TrainingState, c: TrainingState) -> bool:
    """Return whether an optimizer may be the same at two checkpoints: it has moments, and its count rises."""
    steps = [state.counters.get(OPTIMIZER) for state in (a, c)]
    return bool(a.shapes and c.shapes) and (None in steps or steps[0] < steps[1])  # type: ignore[operator]


def _between(a: TrainingState, b: TrainingState, c: TrainingState) -> Iterator[str]:
    """Yield what is wrong with a state between two others."""
    if not b.shapes:
        yield "has no moments, unlike those before and after"
        return
    lasting = [place for place, shape in a.shapes.items() if c.shapes.get(place) == shape]
    if absent := [place for place in lasting if place not in b.shapes]:
        if len(absent) == len(lasting) or OPTIMIZER in b.counters:
            yield f"has no {examples(absent, 1)}, unlike those before and after"
    elif other := [place for place in lasting if b.shapes[place] != a.shapes[place]]:
        sides = " x ".join(map(str, b.shapes[other[0]]))
        yield f"has {examples(other, 1)} of shape {sides}, not that of those before and after"
    zero = [place for place in lasting if place in b.zeros and place not in {*a.zeros, *c.zeros}]
    if 2 * len(zero) <= len(lasting):  # a moment of gradients may vanish for a while, a mean of squares only decays
        zero = [place for place in zero if is_square(place)]
    if zero and b.counters.get(OPTIMIZER, 1) > 0:
        yield f"has zeros for {examples(zero, 1)}, unlike those before and after"
    elif _is_alien(a, b, c):
        yield "is that of another run or step: means of squares fall faster from step to step than they can"


def _is_alien(a: TrainingState, b: TrainingState, c: TrainingState) -> bool:
    """Return whether means of squares fall too fast next to a checkpoint, and not past it.

    Moments that are set to zero on purpose fall on one side, and are soon so large again that the other shows nothing.
    """
    before, after = _fallen(a, b) > MIN_FALLEN, _fallen(b, c) > MIN_FALLEN
    is_near = min((kept for kept, _ in c.squares.values()), default=0.0) ** max(0, _steps(a, c)) > MIN_REMEMBERED
    return (before or after if is_near else before and after) and 0 <= _fallen(a, c) < MAX_FALLEN


def _steps(a: TrainingState, b: TrainingState) -> int:
    return b.counters.get(OPTIMIZER, 0) - a.counters.get(OPTIMIZER, 0)


def _fallen(a: TrainingState, b: TrainingState) -> float:
    """Return the share of values that fall faster than a mean of squares forgets, of the worst; -1 if unknown."""
    steps, parts = _steps(a, b), []
    for place, (kept, values) in a.squares.items():
        kept_after, after = b.squares.get(place, (0.0, b""))
        if len(after) == len(values) and steps > 0:
            share = min(kept, kept_after) * (1 - ROUNDING)
            least = share**steps * np.frombuffer(values, np.float32).astype(np.float64)
            fell = np.frombuffer(after, np.float32)[least > MIN_SQUARE] < least[least > MIN_SQUARE]
            parts += [float(fell.mean())] if len(fell) >= MIN_COUNTED_VALUES else []
    return max(parts, default=-1.0)


def _repeated_moments(held: Sequence[tuple[CheckpointSummary, TrainingState]]) -> Iterator[Finding]:
    """Find moments that are the same under two steps, while the weights changed."""
    read = [(item, state) for item, state in held if state.digest]
    n_distinct = len({state.digest for _, state in read})
    if n_distinct < 2:  # nothing was ever updated
        return
    distinct = n_distinct >= MIN_DISTINCT * len(read)
    latest: dict[str, tuple[CheckpointSummary, TrainingState]] = {}
    for b, other in read:
        a, one = latest.get(other.digest, (b, other))
        latest[other.digest] = b, other
        is_stale = distinct or one.counters.get(OPTIMIZER) == other.counters.get(OPTIMIZER)
        if a is not b and is_stale and _hashes(a).isdisjoint(_hashes(b)):
            # The last may hold a mean of the weights, with the state of the last checkpoint that was trained.
            severity: Severity = "note" if b is read[-1][0] else "fault"
            words = f"the optimizer's state at steps {a.step} and {b.step} is the same, while the weights differ"
            yield Finding("optimizer", severity, (a.step, b.step), "", f"{words}; save it again")


def _hashes(item: CheckpointSummary) -> set[str]:
    return {tensor.content_hash for tensor in item.matrices.values()}
