"""Rows of a console log: its lines put together by the step that they are of."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from toposcope.logs.columns import VALIDATION, identify_columns, target_of, words_of
from toposcope.logs.console_lines import (
    ALL,
    BATCH,
    EPOCH,
    MIN_REPEATS,
    STEP,
    Line,
    Template,
    as_whole,
    is_some_loss,
    kind_of,
    parse_lines,
)
from toposcope.logs.console_steps import MAX_QUOTED, Row, place_steps
from toposcope.logs.epoch_steps import SUMMARY
from toposcope.logs.raw import one_line, plural, size_of
from toposcope.logs.steps import MIN_TIME
from toposcope.logs.target import text_of

MIN_MOVES = 0.3  # share of the rows with a loss at which the bar of the training has moved; several may be of one step
BARS_PER_ROW = 1.5  # progress bars for each row with a loss, from which on a bar is drawn anew below the row
MIN_UNREAD, MAX_UNREAD_SHARE = 5, 0.1  # lines with the word loss that are not read, from which on that is said
MIN_DOUBLED = 0.4  # share of lines that say what the one before said, where a tool prints every line twice
MIN_STALE = 0.5  # share of the rows of a validation loss that only repeat the one before, where it is shown again
_DIGITS = re.compile(r"\d+")
_PROGRAM = re.compile(r"(?:import|from) [a-z]\w*|(?:def|class) \w+[(:]")
"""A line of a program, whose settings need not be those of the run."""
_EPOCHS = re.compile(
    r"\b(?:(?:num|n|max|total|train(?:ing)?)[ _-]?(?:train(?:ing)?[ _])?|number of (?:training )?)?(?<!warmup[ _-])"
    r"epochs['\"]?\s*[:=]\s*'?(\d+)\b(?![.,]\d)|\bfor (\d+) epochs\b",
    re.IGNORECASE,
)
_END = re.compile(
    r"\bend of training\b|\btraining (?:is |has |was )?(?:now )?(?:completed?|finished|done|ended)\b"
    r"|\b(?:finished|completed|done) training\b|\bstopping[ _]early|\bstopp(?:ed|ing) training\b"
    r"|\bearly[ _-]?stopped\b|epoch \d+: early.stopping"
    r"|\bearly[ _-]?stopping(?: is| was)?(?: triggered| at| after|: no|!)|\bmax_(?:epochs|steps)=\d+. reached"
    r"|\bTrainOutput\(|\b(?:total )?training (?:time|took)\b[ :]*\d|\bexiting program at iteration",
    re.IGNORECASE,
)
"""What tools print when a run ends, in time or before."""
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"(?:\[?rank\s?\d+\]?:\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*)")


class Reading(NamedTuple):
    """Columns of text, what is said of the run as a whole, remarks, what its steps count, and where facts come from."""

    columns: dict[str, list[str | None]]
    facts: dict[str, object]
    remarks: tuple[str, ...] = ()
    axis: str = ""
    evidence: Mapping[str, str] = {}


def read_lines(lines: Sequence[str]) -> Reading:
    """Return what lines say: a row for each step of which a loss or something else is stated."""
    parsed, n_left_out = parse_lines(lines)
    if not any(line.template.losses for line in parsed):  # of several losses, none is the loss by its name
        parsed = [line._replace(template=_with_any_loss(line.template)) for line in parsed]
    usual = (_usual(parsed, MIN_REPEATS) or _usual(parsed, 1)) | {
        name for line in parsed for name in line.template.losses if _is_plain_validation(name)
    }
    has_program = any(map(_PROGRAM.match, lines))
    parsed = _without_prose(parsed, has_program=has_program)
    first = next((i for i, line in enumerate(parsed) if _is_row(line, usual)), len(parsed))
    start = parsed[first].at if first < len(parsed) else 0
    facts: dict[str, object] = {}
    evidence: dict[str, str] = {}
    if not has_program:  # of a configuration that was printed before the log
        for line in parsed[:first]:
            for place, name, multiple in line.template.fields:
                value = line.numbers[place] + multiple
                kind = kind_of(name.removesuffix(ALL)) if len(name) > 1 else ""
                key = kind if kind == "parameters" and "param" in name.lower() else name if kind == "last_step" else ""
                # of the numbers of all parameters, of those that are trained and of a layer's, the first is the largest
                if key and not (kind == "parameters" and size_of(facts.get(key)) >= size_of(value)):
                    facts[key], evidence[kind] = value, f"its line {one_line(lines[line.at].strip(), MAX_QUOTED)!r}"
        if len(found := _epochs_of_plan(lines[:start])) == 1:
            facts["num_epochs"] = found.pop()
            evidence["last_epoch"] = "a line before its rows"
    for line in parsed:
        if "train_runtime" in line.said:
            facts |= {name: line.said[name] for name in SUMMARY if name in line.said}
    if end := _end(lines, parsed, usual):
        facts["finished"], evidence["finished"] = True, end
    facts["failed"] = _failure(lines[max((line.at for line in parsed if _is_row(line, usual)), default=0) :])
    remarks = _left_out(lines, parsed, usual, n_left_out)
    parsed = _with_unnamed_steps(parsed, usual, remarks)
    _write_steps(parsed, usual, evidence, remarks)
    rows = _rows(parsed, first, usual, facts, remarks)
    axis = place_steps(rows, facts, evidence, remarks, lines[: start + 1])
    _without_stale(rows, remarks)
    if not any(STEP in row for row in rows) and len(ranks := dict.fromkeys(row.get("rank") for row in rows)) > 1:
        rows = [row for row in rows if row.get("rank") == next(iter(ranks))]
        remarks.append(f"lines of {len(ranks)} processes, and no steps to match them by: the first counts")
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(n for row in rows for n in row)}
    if len(set(columns.get("rank", ()))) < 2:
        columns.pop("rank", None)
    return Reading(columns, facts, tuple(remarks), axis, evidence)


def _with_any_loss(template: Template) -> Template:
    return template._replace(losses=frozenset(f.name for f in template.fields if is_some_loss(f.name)))


def _epochs_of_plan(lines: Sequence[str]) -> set[int]:
    """Return the numbers of epochs that lines before the log declare."""
    return {int(match[1] or match[2]) for line in lines if "epochs" in line.lower() for match in _EPOCHS.finditer(line)}


def _end(lines: Sequence[str], parsed: Sequence[Line], usual: set[str]) -> str:
    """Return what says that the run ended, after its last training loss; empty if nothing does."""
    if any("train_runtime" in line.said for line in parsed):
        return "the summary that the Trainer prints at the end"
    own = [line for line in parsed if not line.template.losses.isdisjoint(usual)]
    training = [line.at for line in own if not all(target_of(name).validation for name in line.template.losses)]
    last = max(training or [line.at for line in own], default=len(lines))
    after = [i for i in range(last, len(lines)) if _END.search(lines[i])]
    shapes = {_DIGITS.sub("0", line) for line in lines[:last] if after and _END.search(line)}  # as of each epoch
    ends = [i for i in after if _DIGITS.sub("0", lines[i]) not in shapes]
    return f"its line {one_line(lines[ends[0]].strip(), MAX_QUOTED)!r}" if ends else ""


def _failure(lines: Sequence[str]) -> str:
    """Return the error of the first traceback in the lines after the last row; empty if there is none."""
    start = next((i for i, line in enumerate(lines) if _TRACEBACK in line), None)
    if start is None:
        return ""
    errors = filter(None, map(_ERROR.match, map(str.strip, lines[start + 1 :])))
    return one_line(error[1], MAX_QUOTED) if (error := next(errors, None)) else "a traceback without its last line"


def _write_steps(parsed: Sequence[Line], usual: set[str], evidence: dict[str, str], remarks: list[str]) -> None:
    """Write steps in digits; where they are rounded, as 1K is, they are counted on from the rows that are not."""
    coarse: dict[str, dict[object, list[tuple[int, float, Line]]]] = {}
    for line in parsed:
        kind = line.template.begin, line.template.losses
        for name in line.template.times:
            line.said[name], last = as_whole(line.said[name])
            if kind_of(name) == STEP and line.template.losses & usual and line.said[name].isdigit():
                coarse.setdefault(name, {}).setdefault(kind, []).append((int(line.said[name]), last, line))
    for name, kinds in coarse.items():
        rows = max(kinds.values(), key=len)
        stated, digits = [step for step, _, _ in rows], [digit for _, digit, _ in rows]
        if max(digits) == 1 or len(set(stated)) == len(stated):
            continue
        exact = stated[: next(i for i, digit in enumerate(digits) if digit > 1)]
        between = exact[1] - exact[0] if len(exact) > 1 else max(exact, default=0)
        steps = [exact[0] + between * i for i in range(len(stated))] if between > 0 else []
        close = all(abs(a - b) <= digit * (digit > 1) for a, b, digit in zip(steps, stated, digits, strict=False))
        if steps and close:
            evidence["steps"] = f"rows are {between:,} steps apart, as those below {stated[len(exact)]:,} show"
        else:
            remarks.append("steps are rounded, and no rows before show how far they are apart: they are not used")
        own = {id(line.said): steps[i : i + 1] for i, (_, _, line) in enumerate(rows)}
        now: list[int] = []
        for line in parsed:
            if name in line.said:
                now = own.get(id(line.said), now)
                line.said.update({name: str(now[0])} if now else {})
                if not (steps and close):
                    del line.said[name]


def _left_out(lines: Sequence[str], parsed: Sequence[Line], usual: set[str], n_left_out: int) -> list[str]:
    """Return remarks on lines that were not looked at, and on those that speak of a loss and were not understood."""
    n_lines = sum("loss" in line.lower() for line in lines)
    unread = n_lines - sum(not line.template.losses.isdisjoint(usual) for line in parsed)
    remarks = [f"{plural(n_left_out, 'line is', 'lines are')} of too many kinds: not looked at"] if n_left_out else []
    if unread > max(MIN_UNREAD, MAX_UNREAD_SHARE * n_lines):
        remarks.append(f"{unread:,} of {n_lines:,} lines with the word loss state none of this log: ignored")
    return remarks


def _usual(parsed: Sequence[Line], n: int) -> set[str]:
    """Return the names of the losses that are stated so often, in lines of which there are as many."""
    names = Counter(name for line in parsed if line.n_alike >= n for name in line.template.losses)
    return {name for name, times in names.items() if times >= n}


def _without_prose(parsed: list[Line], *, has_program: bool) -> list[Line]:
    """Return lines without those that state a loss once or twice, unlike the log: of a program, a sample, a summary."""
    repeated = [line for line in parsed if line.template.losses and line.n_alike >= MIN_REPEATS]
    begins, names = {line.template.begin for line in repeated}, {n for line in repeated for n in line.template.losses}
    if not begins:
        return parsed

    def is_of_log(line: Line) -> bool:
        template = line.template
        if not template.losses or line.n_alike >= MIN_REPEATS:
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
    return (of_log and is_some_loss(name)) or kind_of(name.removesuffix(ALL)) not in ("", "run")


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
            if len(column) >= MIN_REPEATS and column[0] >= 0 and ascends:
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
        if line.n_alike >= MIN_REPEATS
    )
    if not bars and _step_comes_last(parsed, usual):
        parsed = _with_steps_first(parsed, usual)
    rows: list[Row] = []
    position: Row = {}
    early: list[Row] = []
    before: Row = {}  # the times of the last row
    ahead = False
    doubled = sum(a.said == b.said for a, b in pairwise(parsed)) > MIN_DOUBLED * len(parsed)
    for i, (template, said, n_alike, rank, *_) in enumerate(parsed):
        if template.is_of_epoch:
            if said[BATCH] != said[BATCH + ALL]:
                continue
            said = {name: value for name, value in said.items() if name not in template.times or kind_of(name) == EPOCH}
        if template.is_bar and not template.losses:
            continue  # of the training, or of a download
        times = {name: said[name] for name in template.times if name in said}
        of_log = _is_row(parsed[i], usual) or (template.is_of_epoch and bool(template.losses))
        if not of_log and ((i < first and n_alike < MIN_REPEATS) or template.losses):
            if not template.is_code:
                position = _later(position, times if n_alike >= MIN_REPEATS and not template.losses else _epochs(times))
            continue
        said = {name: value for name, value in said.items() if _is_kept(name, usual, of_log=of_log)}
        has_step = template.has_step and not template.is_of_epoch
        if not of_log and (len(times) == len(said) or not (has_step or (position and n_alike >= MIN_REPEATS))):
            position = _later(position, times if n_alike >= MIN_REPEATS else _epochs(times))
            continue
        if rank is not None:
            said["rank"] = rank
        if has_step:
            row = {**_epochs(position), **said}
            position = _epochs(position) | times
        elif bars:
            row = said | {STEP: bars[i], STEP + ALL: length}
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
        # another batch of the epoch, that says the same
        is_next = not (doubled or template.is_of_epoch or STEP in row) and rows[-1:] != [] and set(row) == set(rows[-1])
        if now and now == before and not is_next and all(rows[-1].get(n, v) == v for n, v in row.items()):
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
    return line.template.has_step and not line.template.losses and line.n_alike >= MIN_REPEATS


def _step_comes_last(parsed: Sequence[Line], usual: set[str]) -> bool:
    """Return whether the losses of a step stand above the line that says the step, as in boxes sorted by name."""
    losses = [i for i, line in enumerate(parsed) if line.n_alike >= MIN_REPEATS and line.template.losses & usual]
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
    for i, (template, said, _, rank, *_) in enumerate(parsed):
        if template.is_bar and rank == ranks[0] and said[BATCH].isdigit() and BATCH + ALL in said:
            by_length.setdefault(said[BATCH + ALL], []).append((i, int(said[BATCH])))
    for length, bars in sorted(by_length.items(), key=lambda item: -len({n for _, n in item[1]})):
        if len({step for _, step in bars}) <= MIN_MOVES * len(with_loss):
            break  # nor do those move enough that follow
        below = len(bars) > BARS_PER_ROW * len(with_loss)
        if len(set(_shown_by(bars, with_loss, below=below))) > MIN_MOVES * len(with_loss):
            return [str(step) for step in _shown_by(bars, range(len(parsed)), below=below)], length
    return [], ""


def _shown_by(bars: list[tuple[int, int]], lines: Iterable[int], *, below: bool) -> list[int]:
    """Return the step that a progress bar shows at each of some lines: the first below it, or the last until there."""
    places, steps = zip(*bars, strict=True)
    at = (bisect_left(places, i) if below else bisect_right(places, i) - 1 for i in lines)
    return [steps[min(max(place, 0), len(steps) - 1)] for place in at]


def _without_stale(rows: list[Row], remarks: list[str]) -> None:
    """Take out the validation losses that lines go on to show until the next one is measured."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in [n for n in names if kind_of(n) == "loss" and target_of(n).validation]:
        shown = [row for row in rows if name in row]
        stale = []
        for rank in {row.get("rank") for row in shown}:
            own = [row for row in shown if row.get("rank") == rank]
            stale += [b for a, b in pairwise(own) if a.get(STEP) != b.get(STEP) and _repeats(a[name], b[name])]
        if len(stale) > MIN_STALE * len(shown):
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
