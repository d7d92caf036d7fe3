"""The step of each row of a console log: one in place of several names, counted through epochs; and the plan."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from toposcope.logs.columns import identify_columns, identify_facts
from toposcope.logs.console_lines import ALL, BATCH, EPOCH, MIN_REPEATS, STEP, is_some_loss, kind_of
from toposcope.logs.raw import one_line, size_of

OF_EPOCHS = " epochs of its steps"  # ends the evidence of a plan that is their product
MAX_EPOCHS, BATCHES = 1000, 8
_OF_SAMPLES = re.compile(r"Train Epoch: \d+ \[\d+/\d+ \(\d+%\)\]")
MAX_QUOTED = 80  # characters of a line that is evidence
Row = dict[str, str]


def place_steps(
    rows: list[Row], facts: dict[str, object], evidence: dict[str, str], remarks: list[str], lines: Sequence[str]
) -> str:
    """Put one step into each row in place of its steps of several names, counted through epochs; and the plan.

    Return what the steps count, where that is known.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in identify_columns(columns).named.get("step", []) if name != BATCH]
    names += [BATCH] if BATCH in columns else []
    epoch = next((name for name in columns if kind_of(name) == EPOCH), "")
    if (n_epochs := _last(rows, epoch + ALL)) is not None:
        facts["num_epochs"], evidence["last_epoch"] = n_epochs, "the number of epochs in its rows"
    ended = [row for row in rows if any(name in row for name in names)]
    if epoch and len(ended) > 1 and all(row.get(name) == row.get(name + ALL) for row in ended for name in names):
        for row in rows:  # each at the end of its epoch, whatever is counted in it
            for name in names:
                row.pop(name, None)
        names = []
    if not names:
        return _place_by_epochs(rows, epoch, facts, evidence, remarks) if epoch else ""
    plans: dict[int, str] = {}
    samples = ""
    for name in names:
        if length := _last(rows, name + ALL):
            is_main = all(row.get(names[0], row.get(name)) == row.get(name) for row in rows if name in row)
            samples = samples or _counts_samples(rows, name, length, lines)
            plan = _count_through(rows, name, epoch, length, size_of(facts.get("num_epochs")))
            plans |= {plan[0]: plan[1]} if plan and is_main else {}
    pairs = {name: _pairs(rows, name, names[: k + 1]) for k, name in enumerate(names)}
    last = 0
    for row in rows:
        own = [name for name in names if row.get(name, "").isdigit()]
        step = _translated(int(row[own[0]]), pairs[own[0]]) if own else None
        for name in (*names, *(name + ALL for name in names), epoch + ALL):
            row.pop(name, None)
        if step is not None:
            row[STEP] = str(step)
            last = max(last, step)
    _choose_plan(plans, last, facts, evidence)
    if samples:
        evidence["steps"] = samples
    return "sample" if samples else ""


def _counts_samples(rows: list[Row], name: str, length: int, lines: Sequence[str]) -> str:
    """Return why numbers within an epoch count its samples, not its steps; empty if they may be steps."""
    number = f"(?:{length}|{length:,})"
    what = r"(?:samples|examples|images|sequences|sentences)\b"
    size = re.compile(
        rf"(?<![\d.,]){number} +(?:train(?:ing)? )?{what}|{what}\D{{0,20}}{number}(?![\d.,]*\d)", re.IGNORECASE
    )
    if line := next((line for line in lines if size.search(line)), ""):
        return f"samples, as its line {one_line(line.strip(), MAX_QUOTED)!r} says"
    if any(map(_OF_SAMPLES.match, lines)):
        return "samples, as PyTorch's example prints them"
    steps = [int(row[name]) for row in rows if row.get(name, "").isdigit()]
    gaps = Counter(b - a for a, b in pairwise(steps) if b > a)
    gap = gaps.most_common(1)[0][0] if gaps else 0
    batch = min(steps, default=0)
    if 1 < batch < gap and gap % batch == 0 and batch % BATCHES == 0 and batch % 50:  # the first row is after one batch
        return f"samples: the first row is at {batch:,}, the others {gap:,} apart"
    # a step is logged every 50 or 100, samples by batches of some power of 2
    if gap and gap % BATCHES == 0 and gap % 50 and length % gap and length in steps:
        return f"samples: rows are {gap:,} apart, and the last of an epoch is at {length:,}"
    return ""


def _place_by_epochs(
    rows: list[Row], epoch: str, facts: dict[str, object], evidence: dict[str, str], remarks: list[str]
) -> str:
    """Count epochs where these are whole, or rows where an epoch has many; return which, if any."""
    if not all(row.get(epoch, "").isdigit() for row in rows):
        return ""
    _drop_plan(facts, evidence)  # in steps
    n_epochs = size_of(facts.get("num_epochs"))
    first = next((row.get("rank") for row in rows), None)  # of several processes, each states all epochs
    own = [row for row in rows if row.get("rank") == first and any(map(is_some_loss, row))]
    sizes = list(Counter(row[epoch] for row in own).values())
    if max(sizes) < MIN_REPEATS:
        remarks.append("no line states a step: epochs are the steps, and --steps counts epochs too")
        for row in rows:
            row[STEP] = row.pop(epoch)
            row.pop(epoch + ALL, None)
        return "epoch"
    if np.isfinite(n_epochs) and len(set(sizes[:-1])) == 1:  # the last epoch may go on
        facts["max_steps"], evidence["last_step"] = (
            n_epochs * sizes[0],
            f"its {n_epochs:,.0f} epochs of {sizes[0]:,} rows",
        )
    return "row"


def _choose_plan(counted: dict[int, str], last: int, facts: dict[str, object], evidence: dict[str, str]) -> None:
    """Keep one plan of those that a configuration declares and that steps of an epoch and its epochs make."""
    # one that the log exceeds counts only alone: a row may be one past its plan
    sizes = [size_of(facts[key]) for key in identify_facts(facts).get("last_step", [])]
    declared = next((size for size in sizes if size >= last), max(sizes, default=np.nan))
    line = evidence.get("last_step", "")
    _drop_plan(facts, evidence)
    plan, why = next(iter(counted.items()), (np.nan, ""))
    # a count of all steps beats that of an epoch; what other lines declare may be of a program above the log
    is_whole = plan < declared <= MAX_EPOCHS * plan and declared % plan == 0 and "=" not in line
    if not counted or (is_whole and not why.endswith(OF_EPOCHS)):
        plan, why = declared, line
    if np.isfinite(plan):
        facts["max_steps"], evidence["last_step"] = plan, why


def _drop_plan(facts: dict[str, object], evidence: dict[str, str]) -> None:
    for key in [key for key in facts if kind_of(key) == "last_step"]:
        del facts[key]
    evidence.pop("last_step", None)


def _last(rows: list[Row], name: str) -> int | None:
    return next((int(row[name]) for row in reversed(rows) if row.get(name, "").isdigit()), None)


def _count_through(rows: list[Row], name: str, epoch: str, length: int, n_epochs: float) -> tuple[int, str] | None:
    """Count a step that begins again with every epoch through all of them; return the steps of the plan, and why."""
    own = [row for row in rows if row.get(name, "").isdigit()]
    steps = [int(row[name]) for row in own]
    texts = [row[epoch] for row in rows if epoch in row]
    epochs = [int(text) for text in texts] if all(map(str.isdigit, texts)) else []
    both = [(int(row[epoch]), int(row[name])) for row in own if row.get(epoch, "").isdigit()]
    goes_on = any(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(both))
    back = any(b < a for a, b in pairwise(steps))
    again = back or (not goes_on and bool(epochs) and (n_epochs > 1 or len(set(epochs)) > 1))
    if not again:
        # else it may be the length of the first of several epochs; a share of an epoch stands next to steps of the run
        is_plan = n_epochs == 1 or goes_on or (not epochs and (bool(texts) or not n_epochs > 1))
        return (length, "the number of steps in its rows") if is_plan else None
    if max(steps) > length:
        return None
    if not epochs and not _fill_epochs(own, name, epoch := EPOCH, length):
        return None
    base = 0 if min(int(row[epoch]) for row in own if row.get(epoch, "").isdigit()) == 0 else 1
    for row in own:
        if row.get(epoch, "").isdigit():
            row[name] = str((int(row[epoch]) - base) * length + int(row[name]))
    return (int(n_epochs) * length, f"{n_epochs:,.0f}{OF_EPOCHS}") if np.isfinite(n_epochs) else None


def _fill_epochs(rows: list[Row], name: str, epoch: str, length: int) -> bool:
    """Give epochs to rows that state none, where each goes nearly to its end before the next begins."""
    steps = [int(row[name]) for row in rows]
    between = max((b - a for a, b in pairwise(steps)), default=0)
    begins = [i for i in range(1, len(steps)) if steps[i] < steps[i - 1]]
    if any(steps[i - 1] + 2 * between < length or steps[i] > steps[0] + between for i in begins):
        return False
    for i, row in enumerate(rows):
        row[epoch] = str(bisect_right(begins, i))
    return True


def _pairs(rows: list[Row], name: str, likelier: list[str]) -> list[tuple[int, int]]:
    """Return the numbers of a name that stand next to one of a likelier name, and those; nothing if all are equal."""
    found = {}
    for row in rows:
        best = next((other for other in likelier if row.get(other, "").isdigit()), name)
        if best != name and row.get(name, "").isdigit():
            found[int(row[name])] = int(row[best])
    return [] if all(number == step for number, step in found.items()) else sorted(found.items())


def _translated(number: int, pairs: list[tuple[int, int]]) -> int:
    """Return the step that a number of another name stands for: iteration 40 is step 10 where batches are gathered."""
    if len(pairs) < MIN_REPEATS:
        return number
    place = bisect_right(pairs, (number, 2**62)) - 1
    return pairs[max(place, 0)][1]
