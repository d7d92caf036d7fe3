"""Tensors by the layout that the plan of a training gives them, which may change at some step and then stays.

A vocabulary that grows, a head that is untied, layers that are added, or another dtype are a change of plan: a note at
the step where it happens. A layout that comes and goes, or that one checkpoint alone has, is a fault there.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from toposcope.checkpoints.formats.dtypes import MANTISSA_BITS
from toposcope.integrity.finding import Finding, by_steps, layers_text, single, steps_text
from toposcope.integrity.summary import CheckpointSummary, TensorSummary

# Chosen on real trainings and on made-up ones that were damaged (docs/doctor.md, benchmarks/doctor.py).
MIN_STAY = 2  # checkpoints for which a layout lasts on either side of a change of plan

Layout = tuple[tuple[int, ...], str] | None  # shape and dtype of a tensor; None where it is absent
MAX_PASSING = 3  # checkpoints for which a wrong layout lasts between right ones; a head may be left out for longer


class Plan:
    """The layouts that tensors should have at each checkpoint."""

    def __init__(self, whole: Sequence[CheckpointSummary]) -> None:
        self.whole = whole
        self.expected: dict[str, list[Layout]] = {}
        self.changes: dict[int, dict[str, tuple[Layout, Layout]]] = defaultdict(dict)
        planned: dict[tuple[Layout, ...], list[Layout]] = {}
        for name in dict.fromkeys(name for item in whole for name in item.tensors):
            actual = tuple(_layout(item, name) for item in whole)
            if actual not in planned:
                planned[actual] = _planned(actual)
            expected = self.expected[name] = planned[actual]
            for before, now, item in zip(expected, expected[1:], whole[1:], strict=False):
                if before != now:
                    self.changes[item.step][name] = before, now

    def finding(self, step: int, further: Sequence[str]) -> Finding:
        """Return the note on the change at a step, with the messages of what goes with it."""
        change = self.changes[step]
        kinds: dict[str, list[str]] = defaultdict(list)
        for name, (before, now) in change.items():
            kinds[_kind(before, now)].append(name)
        parts = [f"{layers_text(names, len(self.expected))} {kind}" for kind, names in sorted(kinds.items())]
        message = f"change of plan at step {step}: {'; '.join([*parts, *further])}"
        return Finding("change of plan", "note", (step,), single(list(change)), message)

    def absorbed(self, step: int, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings that follow from the change at a step: layers renumbered, or saved before an update."""
        steps = [item.step for item in self.whole]
        pair = (steps[steps.index(step) - 1], step)
        renumbered = any(None in layouts for layouts in self.changes[step].values())
        alone = {"leap", "break", "off path"} if renumbered else {"leap"}
        return [
            f
            for f in findings
            if (f.check in alone and f.steps == (step,)) or (f.check in ("still", "frozen layer") and f.steps == pair)
        ]

    def shapes(self, name: str) -> dict[tuple[int, ...], list[str]]:
        """Return the dtypes that a tensor has in each of its shapes, the most common shape first."""
        dtypes: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for layout in filter(None, self.expected[name]):
            dtypes[layout[0]].append(layout[1])
        return dict(sorted(dtypes.items(), key=lambda item: -len(item[1])))

    def read(self, name: str, shape: tuple[int, ...]) -> list[tuple[int, TensorSummary]]:
        """Return the steps at which a tensor of a shape was read and finite, each with its summary."""
        return [
            (item.step, tensor)
            for item in self.whole
            if (tensor := item.tensors.get(name)) and tensor.largest and tensor.shape == shape
        ]


def layouts(plan: Plan) -> Iterator[Finding]:
    """Find tensors that are missing, extra, or of another shape or dtype than the plan gives them."""
    whole = plan.whole
    usual = max((sum(e[k] is not None for e in plan.expected.values()) for k in range(len(whole))), default=0)
    incidents: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, expected in plan.expected.items():
        for item, planned in zip(whole, expected, strict=True):
            if (layout := _layout(item, name)) != planned:
                incidents[_difference(layout, planned)][name].append(item.step)
    for check in ("dtype", "shape", "tensors"):
        of_check = sorted((words, of_name) for (kind, words), of_name in incidents.items() if kind == check)
        for words, steps, names in [(w, *found) for w, of_name in of_check for found in by_steps(of_name.items())]:
            released = check == "dtype" and steps == (whole[-1].step,) and _is_narrower(whole[-1], names, plan)
            message = f"{layers_text(sorted(names), usual)}: {words.format(steps_text(steps))}"
            yield Finding(check, "note" if released else "fault", steps, single(names), message)


def _difference(actual: Layout, planned: Layout) -> tuple[str, str]:
    if actual is None or planned is None:
        return "tensors", "in {}, but not in most others" if actual else "not in {}, but in most others"
    if actual[0] != planned[0]:
        return "shape", f"shape {actual[0]} in {{}}, {planned[0]} in most"
    return "dtype", f"dtype {actual[1]} in {{}}, {planned[1]} in most"


def _layout(item: CheckpointSummary, name: str) -> Layout:
    tensor = item.tensors.get(name)
    return None if tensor is None else (tensor.shape, tensor.dtype)


def _planned(actual: Sequence[Layout]) -> list[Layout]:
    """Return the layouts of one tensor without those that come and go, or that one checkpoint alone has."""
    runs = [(layout, len(list(run))) for layout, run in groupby(actual)]
    while len(runs) > 1:
        lengths = [length for _, length in runs]
        passing = [
            k
            for k in range(1, len(runs) - 1)
            if runs[k - 1][0] == runs[k + 1][0] and lengths[k] <= min(MAX_PASSING, max(lengths[k - 1], lengths[k + 1]))
        ]
        short = passing or [k for k, length in enumerate(lengths) if length < MIN_STAY]
        if not short:
            break
        # Of one length, the later is wrong.
        k = min(short, key=lambda k: (lengths[k], -k))
        longer = max((j for j in (k - 1, k + 1) if 0 <= j < len(runs)), key=lengths.__getitem__)
        runs[k] = runs[longer][0], lengths[k]
        runs = [(layout, sum(n for _, n in run)) for layout, run in groupby(runs, key=itemgetter(0))]
    return [layout for layout, length in runs for _ in range(length)]


def _kind(before: Layout, now: Layout) -> str:
    if before is None or now is None:
        return "appear" if before is None else "are gone"
    if before[0] == now[0]:
        return f"from {before[1]} to {now[1]}"
    return "of another shape" if before[1] == now[1] else "of another shape and dtype"


def _is_narrower(last: CheckpointSummary, names: Sequence[str], plan: Plan) -> bool:
    """Return whether most of the last checkpoint has a dtype of fewer digits than before, as for a release."""
    bits = [
        (MANTISSA_BITS.get(planned[1], 0), MANTISSA_BITS.get(last.tensors[name].dtype, 0))
        for name in names
        if (planned := plan.expected[name][-1]) is not None
    ]
    return 2 * len(names) > len(last.tensors) and all(now < planned for planned, now in bits)
