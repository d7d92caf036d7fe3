"""Rows of a console log: its lines put together by the step that they are of."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from toposcope.logs import tuning
from toposcope.logs.columns import VALIDATION, identify_columns, target_of, words_of
from toposcope.logs.console_lines import ALL, BATCH, EPOCH, STEP, Line, Template, kind_of, parse_lines
from toposcope.logs.raw import plural
from toposcope.logs.steps import MIN_TIME
from toposcope.logs.target import text_of

_PROGRAM = re.compile(r"(?:import|from) [a-z]\w*|(?:def|class) \w+[(:]")
"""A line of a program, whose settings need not be those of the run."""
Row = dict[str, str]


class Reading(NamedTuple):
    """Columns of text, what is said of the run as a whole, and remarks."""

    columns: dict[str, list[str | None]]
    facts: dict[str, object]
    remarks: tuple[str, ...] = ()


def read_lines(lines: Sequence[str]) -> Reading:
    """Return what lines say: a row for each step of which a loss or something else is stated."""
    parsed, n_left_out = parse_lines(lines)
    usual = (_usual(parsed, tuning.MIN_REPEATS) or _usual(parsed, 1)) | {
        name for line in parsed for name in line.template.losses if _is_plain_validation(name)
    }
    has_program = any(map(_PROGRAM.match, lines))
    parsed = _without_prose(parsed, has_program=has_program)
    first = next((i for i, line in enumerate(parsed) if _is_row(line, usual)), len(parsed))
    facts: dict[str, object] = {}
    if not has_program:  # of a configuration that was printed before the log
        for line in parsed[:first]:
            for name, value in line.said.items():
                kind = kind_of(name) if len(name) > 1 else ""
                if kind == "last_step" or (kind == "parameters" and "param" in name):
                    facts[name] = value
    if any("train_runtime" in line.said for line in parsed):
        facts["finished"] = True
    remarks = _left_out(lines, parsed, usual, n_left_out)
    parsed = _with_unnamed_steps(parsed, usual, remarks)
    rows = _rows(parsed, first, usual, facts, remarks)
    _place(rows, facts, remarks)
    _without_stale(rows, remarks)
    if not any(STEP in row for row in rows) and len(ranks := dict.fromkeys(row.get("rank") for row in rows)) > 1:
        rows = [row for row in rows if row.get("rank") == next(iter(ranks))]
        remarks.append(f"lines of {len(ranks)} processes, and no steps to match them by: the first counts")
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(n for row in rows for n in row)}
    if len(set(columns.get("rank", ()))) < 2:
        columns.pop("rank", None)
    return Reading(columns, facts, tuple(remarks))


def _left_out(lines: Sequence[str], parsed: Sequence[Line], usual: set[str], n_left_out: int) -> list[str]:
    """Return remarks on lines that were not looked at, and on those that speak of a loss and were not understood."""
    n_lines = sum("loss" in line.lower() for line in lines)
    unread = n_lines - sum(not line.template.losses.isdisjoint(usual) for line in parsed)
    remarks = [f"{plural(n_left_out, 'line is', 'lines are')} of too many kinds: not looked at"] if n_left_out else []
    if unread > max(tuning.MIN_UNREAD, tuning.MAX_UNREAD_SHARE * n_lines):
        remarks.append(f"{unread:,} of {n_lines:,} lines with the word loss state none of this log: ignored")
    return remarks


def _usual(parsed: Sequence[Line], n: int) -> set[str]:
    """Return the names of the losses that are stated so often, in lines of which there are as many."""
    names = Counter(name for line in parsed if line.n_alike >= n for name in line.template.losses)
    return {name for name, times in names.items() if times >= n}


def _without_prose(parsed: list[Line], *, has_program: bool) -> list[Line]:
    """Return lines without those that state a loss once or twice, unlike the log: of a program, a sample, a summary."""
    repeated = [line for line in parsed if line.template.losses and line.n_alike >= tuning.MIN_REPEATS]
    begins, names = {line.template.begin for line in repeated}, {n for line in repeated for n in line.template.losses}
    if not begins:
        return parsed

    def is_of_log(line: Line) -> bool:
        template = line.template
        if not template.losses or line.n_alike >= tuning.MIN_REPEATS:
            return True
        if has_program and template.is_code:
            return False
        if not template.has_step and not template.losses.isdisjoint(names) and EPOCH not in template.times:
            return False
        return template.begin in {"", *begins} or not VALIDATION.isdisjoint(words_of(template.begin))

    return list(filter(is_of_log, parsed))


@lru_cache(maxsize=4096)
def _is_plain_validation(name: str) -> bool:
    return target_of(name).validation and not text_of(name)


def _is_row(line: Line, usual: set[str]) -> bool:
    """Return whether a line states a loss of the log: not one of a program, a sample or a summary."""
    if line.template.losses.isdisjoint(usual):
        return False
    held_out = any(map(_is_plain_validation, line.template.losses))
    return line.template.has_step or line.n_alike > 1 or held_out or EPOCH in map(kind_of, line.said)


def _is_kept(name: str, usual: set[str], *, of_log: bool) -> bool:
    """Return whether a name is of a row: of steps, of a quantity that is known, or of a loss that is stated often."""
    kind = kind_of(name)
    if kind == "loss":
        return name in usual
    return (of_log and _is_some_loss(name)) or kind_of(name.removesuffix(ALL)) not in ("", "run")


@lru_cache(maxsize=4096)
def _is_some_loss(name: str) -> bool:
    return "loss" in words_of(name)


def _with_unnamed_steps(parsed: list[Line], usual: set[str], remarks: list[str]) -> list[Line]:
    """Return lines with their steps, where no line names one: the first whole number that grows from line to line."""
    kinds: dict[Template, list[Line]] = {}
    for line in parsed:
        if line.template.losses & usual:
            kinds.setdefault(line.template, []).append(line)
    largest = sorted(kinds, key=lambda template: -len(kinds[template]))
    if not largest or largest[0].has_step or any(map(_states_only_the_step, parsed)):
        return parsed
    steps: dict[Template, int] = {}
    for template in largest:
        end = min(field.place for field in template.fields if field.name in template.losses)
        named = {field.place for field in template.fields}
        likely = steps.get(largest[0], 0)
        for place in sorted(set(range(end)) - named, key=lambda place: place != likely):
            column = [int(n) if (n := line.numbers[place]).isdigit() else -1 for line in kinds[template]]
            ascends = all(a < b for a, b in pairwise(column)) and column[-1] < MIN_TIME
            if len(column) >= tuning.MIN_REPEATS and column[0] >= 0 and ascends:
                steps[template] = place
                break
        if not steps:
            return parsed
    remarks.append("no line names its step: the first number that grows from line to line is taken for it")
    return [
        line._replace(
            template=line.template._replace(times=line.template.times | {STEP}, has_step=True),
            said=line.said | {STEP: line.numbers[steps[line.template]]},
        )
        if line.template in steps
        else line
        for line in parsed
        if line.template in steps or not line.template.has_step
    ]


def _rows(
    parsed: Sequence[Line], first: int, usual: set[str], facts: dict[str, object], remarks: list[str]
) -> list[Row]:
    """Return a row for each line of the log, with the times of its own or of the lines before it."""
    bars, length = _steps_by_bars(parsed, usual)
    stated = any(
        line.template.has_step and not (line.template.is_bar or line.template.is_of_epoch)
        for line in parsed
        if line.n_alike >= tuning.MIN_REPEATS
    )
    if not bars and _step_comes_last(parsed, usual):
        parsed = _with_steps_first(parsed, usual)
    rows: list[Row] = []
    position: Row = {}
    early: list[Row] = []
    before: Row = {}  # the times of the last row
    ahead = False
    for i, (template, said, n_alike, rank, _) in enumerate(parsed):
        if template.is_of_epoch:
            if said[BATCH] != said[BATCH + ALL]:
                continue
            said = {name: value for name, value in said.items() if name not in template.times or kind_of(name) == EPOCH}
        if template.is_bar and not template.losses:
            continue  # of the training, or of a download
        times = {name: said[name] for name in template.times if name in said}
        of_log = _is_row(parsed[i], usual) or (template.is_of_epoch and bool(template.losses))
        if not of_log and ((i < first and n_alike < tuning.MIN_REPEATS) or template.losses):
            if not template.is_code:
                position = _later(
                    position, times if n_alike >= tuning.MIN_REPEATS and not template.losses else _epochs(times)
                )
            continue
        said = {name: value for name, value in said.items() if _is_kept(name, usual, of_log=of_log)}
        has_step = template.has_step and not template.is_of_epoch
        if not of_log and (len(times) == len(said) or not (has_step or (position and n_alike >= tuning.MIN_REPEATS))):
            position = _later(position, times if n_alike >= tuning.MIN_REPEATS else _epochs(times))
            continue
        if rank is not None:
            said["rank"] = rank
        if has_step:
            row = {**_epochs(position), **said}
            position = _epochs(position) | times
        elif bars:
            row = said | {STEP: bars[i]}
            facts["max_steps"] = length
        elif (stated and not any(kind_of(name) == STEP for name in position)) or (
            ahead and all(target_of(name).validation for name in template.losses)
        ):
            early.append(said)
            continue
        else:
            row = {**position, **said}
            position |= times
        if early and has_step:
            ahead = ahead or (not rows and _number(row) == 0)
            rows += [{**(_times(row) if ahead else {STEP: "0"}), **one} for one in early]
            before, early = _times(rows[-1]), []
        now = _times(row)
        if now and now == before and all(rows[-1].get(n, v) == v for n, v in row.items()):
            rows[-1] |= row
        else:
            rows.append(row)
            before = now
    if early:
        remarks.append(f"{plural(len(early), 'line states', 'lines state')} a loss without any step: ignored")
    return rows


def _later(position: Row, times: Row) -> Row:
    """Return the times of a later line, and the epoch of those before it."""
    return (_epochs(position) if any(kind_of(name) == STEP for name in times) else position) | times


def _states_only_the_step(line: Line) -> bool:
    return line.template.has_step and not line.template.losses and line.n_alike >= tuning.MIN_REPEATS


def _step_comes_last(parsed: Sequence[Line], usual: set[str]) -> bool:
    """Return whether the losses of a step stand above the line that says the step, as in boxes sorted by name."""
    losses = [i for i, line in enumerate(parsed) if line.n_alike >= tuning.MIN_REPEATS and line.template.losses & usual]
    steps = [i for i, line in enumerate(parsed) if _states_only_the_step(line)]
    if not losses or not steps or any(parsed[i].template.has_step for i in losses):
        return False
    return losses[0] < steps[0] and losses[-1] < steps[-1]


def _with_steps_first(parsed: Sequence[Line], usual: set[str]) -> list[Line]:
    found: list[Line] = []
    block: list[Line] = []
    for line in parsed:
        if _states_only_the_step(line):
            found += [line, *block]
            block = []
        else:
            block.append(line)
    return found + block


def _epochs(times: Mapping[str, str]) -> Row:
    return {name: value for name, value in times.items() if kind_of(name.removesuffix(ALL)) == EPOCH}


def _times(row: Row) -> Row:
    return {name: value for name, value in row.items() if kind_of(name.removesuffix(ALL)) in (STEP, EPOCH)}


def _number(row: Row) -> int | None:
    """Return the step of a row, by the likeliest of its names."""
    name = next(iter(identify_columns(row).named.get("step", [])), "")
    return int(row[name]) if row.get(name, "").isdigit() else None


def _steps_by_bars(parsed: Sequence[Line], usual: set[str]) -> tuple[list[str], str]:
    """Return the step that the progress bar of the training shows at each line, and its length; else nothing."""
    ranks = [line.rank for line in parsed if line.template.is_bar]
    with_loss = [i for i, line in enumerate(parsed) if line.template.losses & usual and line.rank in ranks[:1]]
    if any(parsed[i].template.has_step for i in with_loss):
        return [], ""
    by_length: dict[str, list[tuple[int, int]]] = {}
    for i, (template, said, _, rank, _) in enumerate(parsed):
        if template.is_bar and rank == ranks[0] and said[BATCH].isdigit() and BATCH + ALL in said:
            by_length.setdefault(said[BATCH + ALL], []).append((i, int(said[BATCH])))
    for length, bars in sorted(by_length.items(), key=lambda item: -len({n for _, n in item[1]})):
        places, steps = zip(*bars, strict=True)
        below = len(places) > tuning.BARS_PER_ROW * len(with_loss)
        at = [bisect_left(places, i) if below else bisect_right(places, i) - 1 for i in range(len(parsed))]
        found = [steps[min(max(place, 0), len(steps) - 1)] for place in at]
        if len({found[i] for i in with_loss}) > tuning.MIN_MOVES * len(with_loss):
            return [str(step) for step in found], length
    return [], ""


def _place(rows: list[Row], facts: dict[str, object], remarks: list[str]) -> None:
    """Put one step into each row in place of its steps of several names, counted through epochs; and the plan."""
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in identify_columns(columns).named.get("step", []) if name != BATCH]
    names += [BATCH] if BATCH in columns else []
    epoch = next((name for name in columns if kind_of(name) == EPOCH), "")
    n_epochs = _last(rows, epoch + ALL)
    if not names:
        if epoch and all(row.get(epoch, "").isdigit() for row in rows):
            remarks.append("no line states a step: epochs are the steps, and --steps counts epochs too")
            for row in rows:
                row[STEP] = row.pop(epoch)
        if n_epochs:
            facts["max_steps"] = n_epochs
        return
    for name in names:
        if length := _last(rows, name + ALL):
            is_main = all(row.get(names[0], row.get(name)) == row.get(name) for row in rows if name in row)
            _count_through(rows, name, epoch, length, n_epochs, facts if is_main else {})
    pairs = {name: _pairs(rows, name, names[: k + 1]) for k, name in enumerate(names)}
    for row in rows:
        own = [name for name in names if row.get(name, "").isdigit()]
        step = _translated(int(row[own[0]]), pairs[own[0]]) if own else None
        for name in (*names, *(name + ALL for name in names), epoch + ALL):
            row.pop(name, None)
        if step is not None:
            row[STEP] = str(step)


def _last(rows: list[Row], name: str) -> int | None:
    return next((int(row[name]) for row in reversed(rows) if row.get(name, "").isdigit()), None)


def _count_through(
    rows: list[Row], name: str, epoch: str, length: int, n_epochs: int | None, facts: dict[str, object]
) -> None:
    """Count a step that begins again with every epoch through all of them; else its length is that of the plan."""
    steps = [int(row[name]) for row in rows if row.get(name, "").isdigit()]
    epochs = [int(row[epoch]) for row in rows if row.get(epoch, "").isdigit()]
    both = [(int(r[epoch]), int(r[name])) for r in rows if r.get(epoch, "").isdigit() and r.get(name, "").isdigit()]
    goes_on = any(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(both))
    again = any(b < a for a, b in pairwise(steps)) or (not goes_on and ((n_epochs or 1) > 1 or len(set(epochs)) > 1))
    if not again:
        if n_epochs == 1 or not epochs or goes_on or name != BATCH:
            facts["max_steps"] = length  # else it may be that of the first of several epochs
        return
    if max(steps) > length or not epochs:
        return
    base = 0 if min(epochs) == 0 else 1
    for row in rows:
        if row.get(name, "").isdigit() and row.get(epoch, "").isdigit():
            row[name] = str((int(row[epoch]) - base) * length + int(row[name]))
    if n_epochs:
        facts.setdefault("max_steps", n_epochs * length)


def _pairs(rows: list[Row], name: str, likelier: list[str]) -> list[tuple[int, int]]:
    """Return the numbers of a name that stand next to one of a likelier name, and those; ascending."""
    found = {}
    for row in rows:
        best = next((other for other in likelier if row.get(other, "").isdigit()), name)
        if best != name and row.get(name, "").isdigit():
            found[int(row[name])] = int(row[best])
    return sorted(found.items())


def _translated(number: int, pairs: list[tuple[int, int]]) -> int:
    """Return the step that a number of another name stands for: iteration 40 is step 10 where batches are gathered."""
    if len(pairs) < tuning.MIN_REPEATS or all(a == b for a, b in pairs):
        return number
    place = bisect_right(pairs, (number, 2**62)) - 1
    return pairs[max(place, 0)][1]


def _without_stale(rows: list[Row], remarks: list[str]) -> None:
    """Take out the validation losses that lines go on to show until the next one is measured."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in [n for n in names if kind_of(n) == "loss" and target_of(n).validation]:
        shown = [row for row in rows if name in row]
        stale = []
        for rank in {row.get("rank") for row in shown}:
            own = [row for row in shown if row.get("rank") == rank]
            stale += [b for a, b in pairwise(own) if a.get(STEP) != b.get(STEP) and _repeats(a[name], b[name])]
        if len(stale) > tuning.MIN_STALE * len(shown):
            for row in stale:
                del row[name]
            remarks.append(f"{name!r} is shown again in {plural(len(stale), 'row', 'rows')} until the next: ignored")


def _repeats(before: str, text: str) -> bool:
    """Return whether a number is one before it, to the digits that both have."""
    try:
        digits = min(len(one.partition(".")[2]) for one in (before, text))
        return abs(float(before) - float(text)) <= 0.51 * 10.0**-digits and (digits > 0 or before == text)
    except ValueError:
        return before == text
