"""Lines of a console log, read as names and numbers in any usual punctuation.

A training script prints the same few sentences over and over with other numbers in them. Each sentence, its numbers
taken out, is a template; what its numbers are is worked out once, and holds for every line of that template.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from toposcope.logs.columns import VALIDATION, identify_columns, words_of
from toposcope.logs.raw import plural

PARTS = VALIDATION | {"train", "training"}
_NUMBER = re.compile(
    r"([-+.\dnNiI](?<![\w.].)(?:"
    r"(?:(?<=\d)|(?<=\.)(?=\d)|(?<=[-+])(?=\.?\d))\d*(?:[,_'’]\d+)*\.?\d*(?:[eE][-+]?\d+)?(?![A-Za-z_]*\d|\.\d)"
    r"|(?:(?<=[nN])[aA][nN]|(?<=[iI])(?:nf|NF)(?:inity)?|(?<=[-+])(?:[nN][aA][nN]|[iI](?:nf|NF)(?:inity)?))(?!\w)"
    r"(?! (?:iter|step|grad|value|loss|count|found|detected|in\b|or\b))))"
)
"""A number that stands alone; its first character comes first, which is several times as fast to look for."""
_TIME = re.compile(r"\W?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?\W*")
_RANK = re.compile(r"^\W{0,2}(?:default|rank|worker|gpu|process|proc)[\s:=_-]{0,2}(\d+)\]?\W{0,2}", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(\d{1,5}):\s")
"""The number of a process before its lines, as srun puts it."""
_CALL = re.compile(r"(?<=[:=\[(,])\s*[A-Za-z_][\w.]*[(\[]+\s*$")
"""``tensor(`` before a number."""
_TAIL = re.compile(r"(?:[\s:=→>~|'\"\[({@`*]|->)+$")
_SEPARATORS = re.compile(r"[,;|{}()\[\]:=\"'`<>•·│]+|\s[-–—*/]+\s|\s-$|^-\s")
_IN_BRACKETS = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_ATTACHED = re.compile(r"^(?:[A-Za-zµ%°$][\w%/]*)")
_UNIT = re.compile(
    r"^\s?(ms|us|µs|secs?|seconds?|mins?|minutes?|h|hours?|[KMG]i?B|%|percent|tok(?:ens)?/s|it/s)(?![\w/])"
)
_MULTIPLE = re.compile(r"^([kKMBT])(?![A-Za-z])")
_UNIT_WORDS = frozenset({"ms", "s", "sec", "secs", "seconds", "min", "minutes", "h", "hours", "%", "mb", "gb", "gib"})
_FILLERS = PARTS | {"at", "on", "the", "average", "mean", "current", "set"}
_OF = frozenset({"/", "of", "out of"})
_NAMED = (
    (re.compile(r"^\[#, ?#\] "), ("epoch", "batch")),  # [1, 2000] loss: 2.2, of PyTorch's tutorials
    (re.compile(r"^#\|#\|[Ll]oss"), ("epoch", "step")),  # 1|10|Loss: 1.9, of torchtune
)
"""Sentences whose numbers have no names, # standing for a number, and what the first of them are."""
ALL = "/all"
"""Ends the name of how many there are of something: of steps, of epochs."""
BATCH, EPOCH, STEP = "batch", "epoch", "step"
SHORT = {"trl": "train loss", "tel": "val loss", "tps": "tokens per second", "norm": "grad norm", "s": "step"}
"""Names of llm.c's file, and one that is a rate here and the tokens of a step in tables."""
MAX_KEY_WORDS = 4
MAX_UNDER = 3
"""Lines with numbers below a heading that may be its own."""
MIN_REPEATS = 3
"""Lines of a kind that make it a part of the log, where nothing else says so."""
MAX_TEMPLATES = 20_000
"""Kinds of lines that are looked at; a log has a few."""


class Field(NamedTuple):
    """A number of a template: its place among the numbers, its name, and a multiple that stands behind it."""

    place: int
    name: str
    multiple: str = ""


class Template(NamedTuple):
    """What the numbers of a kind of line are.

    Attributes
    ----------
    fields : tuple of Field
        Those with a name.
    names, times : frozenset of str
        Their names, and the names that say how far the run is: steps and epochs.
    has_step, has_loss : bool
    is_bar : bool
        Whether it is a progress bar.
    """

    fields: tuple[Field, ...]
    names: frozenset[str]
    times: frozenset[str]
    has_step: bool
    has_loss: bool
    is_bar: bool


class Reading(NamedTuple):
    """Columns of text, what is said of the run as a whole, and remarks."""

    columns: dict[str, list[str | None]]
    facts: dict[str, object]
    remarks: tuple[str, ...] = ()


class _Line(NamedTuple):
    template: Template
    said: dict[str, str]
    repeats: bool
    rank: str | None


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return what a name stands for: one of `toposcope.logs.columns.NAMES`, ``loss``, ``accuracy``; empty if unknown.

    Examples
    --------
    >>> kind_of("Iter"), kind_of("Val. Loss"), kind_of("lr"), kind_of("box_loss")
    ('step', 'loss', 'learning_rate', '')
    """
    found = identify_columns([name, "loss"])
    if any(loss.name == name for loss in found.losses):
        return "loss"
    if found.accuracies:
        return "accuracy"
    return next(iter(found.named), "")


def read_lines(lines: Sequence[str]) -> Reading:
    """Return what lines say: a row for each that states a loss, or something else of a step."""
    parsed = _parsed(lines)
    bars, length = _next_bars(parsed)
    first = next((i for i, line in enumerate(parsed) if line.template.has_loss and line.repeats), 0)
    facts: dict[str, object] = {"max_steps": length} if bars else {}
    rows: list[dict[str, str]] = []
    clock: dict[str, str] = {}
    stated = any(line.template.has_loss and line.template.has_step for line in parsed)
    early = 0
    for i, (template, said, repeats, rank) in enumerate(parsed):
        if "train_runtime" in said:
            facts["finished"] = True
        if i < first and not repeats and not (template.has_loss and template.has_step):
            facts |= {name: value for name, value in said.items() if _is_fact(name)}
            continue  # a configuration, or a program, that was printed before the log
        if not template.has_loss:
            said = {name: value for name, value in said.items() if _is_known(name)}
        times = {name: said[name] for name in template.times}
        if not template.has_loss and (len(times) == len(said) or not (template.has_step or (clock and repeats))):
            clock |= times if repeats or all(map(_is_epoch, times)) else {}
            continue
        if template.has_step:
            row = said if said.keys() >= clock.keys() else {**{n: v for n, v in clock.items() if _is_epoch(n)}, **said}
            clock |= times
        elif bars:
            row = said | {STEP: bars[i]}
        elif clock or not stated:
            if rows and clock and all(rows[-1].get(n, v) == v for n, v in (clock | said).items()):
                rows[-1] |= said
                continue
            row = {**clock, **said}
        else:
            early += 1
            continue
        rows.append(row if rank is None else row | {"rank": rank})
    remarks = (f"{plural(early, 'line states', 'lines state')} a loss before any step: ignored",) if early else ()
    return _with_plan(_columns(rows), facts)._replace(remarks=remarks)


def _is_fact(name: str) -> bool:
    return len(name) > 1 and (kind_of(name) == "last_step" or (kind_of(name) == "parameters" and "param" in name))


def _is_known(name: str) -> bool:
    return name.endswith(ALL) or kind_of(name) not in ("", "run")


def _with_plan(columns: dict[str, list[str | None]], facts: dict[str, object]) -> Reading:
    """Return columns with steps counted through epochs, and what their totals say of the plan.

    A step that begins again with every epoch is one of ``<name>/all`` in the epoch, and the epochs are one of
    ``epoch/all``.
    """
    plans = {name.removesuffix(ALL): values for name, values in columns.items() if name.endswith(ALL)}
    kept: dict[str, list[str | None]] = {name: column for name, column in columns.items() if not name.endswith(ALL)}
    names = sorted((name for name in kept if kind_of(name) == STEP), key=lambda name: name == BATCH)
    epoch = next((name for name in kept if kind_of(name) == EPOCH), "")
    epochs, n_epochs = _whole(kept.get(epoch, [])), _last(plans.get(epoch, []))
    # a progress bar beside the steps counts them too
    planned = next((name for name in names if name in plans and kept[name][-1] == kept[names[0]][-1]), None)
    if planned is None:
        if n_epochs and not names:
            facts["max_steps"] = n_epochs
        return Reading(kept, facts)
    steps, length = _whole(kept[planned]), _last(plans[planned])
    seen = [step for step in steps if step is not None]
    again = any(b < a for a, b in pairwise(seen)) or (n_epochs or 1) > 1
    if length and epochs and again and None not in epochs:
        base = 0 if min(e for e in epochs if e is not None) == 0 else 1
        kept[planned] = [
            str(((e or 0) - base + (s is None)) * length + (s or 0)) for s, e in zip(steps, epochs, strict=True)
        ]
        if n_epochs:
            facts.setdefault("max_steps", n_epochs * length)
    elif length and not again:
        facts["max_steps"] = length
    return Reading(kept, facts)


def _whole(column: Sequence[str | None]) -> list[int | None]:
    return [int(value) if value is not None and value.isdigit() else None for value in column]


def _last(column: Sequence[str | None]) -> int | None:
    """Return the last whole number of a column."""
    return next((value for value in reversed(_whole(column)) if value is not None), None)


def _is_epoch(name: str) -> bool:
    return kind_of(name.removesuffix(ALL)) == EPOCH


def _columns(rows: list[dict[str, str]]) -> dict[str, list[str | None]]:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    if len(set(columns.get("rank", ()))) < 2:
        columns.pop("rank", None)
    return columns


def _parsed(lines: Sequence[str]) -> list[_Line]:
    """Return the lines with a number that has a name."""
    ranks = _labels(lines)
    keys: dict[tuple[str, ...], Template] = {}
    found: list[tuple[tuple[str, ...], list[str], str | None]] = []
    under = 0  # lines that a heading such as `Test Error:` may still be of
    for i, text in enumerate(lines):
        rank = None
        if ranks:
            rank, text = ranks[i], text.partition(":")[2]
        if match := _RANK.match(text):
            rank, text = match[1], text[match.end() :]
        if match := _TIME.match(text):
            text = text[match.end() :]
        parts = _NUMBER.split(" ".join(text.split()))
        if len(parts) == 1:
            under = MAX_UNDER if _is_heading(parts[0].strip()) else under
            continue
        key = (f"valid: {parts[0]}", *parts[2::2]) if under > 0 else tuple(parts[::2])
        under -= 1
        if key in keys or len(keys) < MAX_TEMPLATES:
            if key not in keys:
                keys[key] = _template(key)
            under *= not keys[key].has_loss
            if keys[key].fields:
                found.append((key, parts[1::2], rank))
    clocks = Counter(key for key, *_ in found)
    kinds: Counter[frozenset[str]] = Counter()
    for key, n in clocks.items():
        kinds[keys[key].names] += n
    parsed = []
    for key, values, rank in found:
        template = keys[key]
        # of a name that a line has twice, the first counts
        said = {name: values[place] + multiple for place, name, multiple in reversed(template.fields)}
        n = kinds[template.names] if template.has_loss else clocks[key]
        parsed.append(_Line(template, said, n >= MIN_REPEATS, rank))
    return parsed


def _is_heading(text: str) -> bool:
    """Return whether a line without numbers says that what follows is of held-out data."""
    return len(text.split()) <= MAX_KEY_WORDS and text[-1:] in ":])=*-" and _is_held_out(text, so_far=False)


def _labels(lines: Sequence[str]) -> list[str] | None:
    """Return the number of a process before each line, where every line has one of a few."""
    labels = [match[1] for line in lines if (match := _LABEL.match(line))]
    return labels if len(labels) == len(lines) and len(set(labels)) <= max(1, len(lines) // MIN_REPEATS) else None


def _next_bars(parsed: Sequence[_Line]) -> tuple[list[str], str]:
    """Return the step that the next progress bar of the training shows, for each line, and its length; else nothing.

    Of bars of several lengths, that of the training never begins again.
    """
    by_length: dict[str, list[tuple[int, int]]] = {}
    for i, (template, said, *_) in enumerate(parsed):
        if template.is_bar and not template.has_loss and said[BATCH].isdigit():
            by_length.setdefault(said[BATCH + ALL], []).append((i, int(said[BATCH])))
    steady = {
        length: bars
        for length, bars in by_length.items()
        if len(bars) >= MIN_REPEATS and all(a[1] <= b[1] for a, b in pairwise(bars))
    }
    if not steady or any(line.template.has_loss and line.template.has_step for line in parsed):
        return [], ""
    length = max(steady, key=lambda length: len({n for _, n in steady[length]}))
    bars = steady[length]
    places = [i for i, _ in bars]
    return [str(bars[min(bisect_left(places, i), len(bars) - 1)][1]) for i in range(len(parsed))], length


def _template(parts: tuple[str, ...]) -> Template:
    """Return what the numbers between the parts of a line are."""
    known = next((names for pattern, names in _NAMED if pattern.match("#".join(parts))), ())
    fields = [Field(place, name) for place, name in enumerate(known)]
    held_out, previous = False, ""
    for place, (before, after) in enumerate(pairwise(parts)):
        if place < len(known):
            continue
        unit = _UNIT.match(after) or (_ATTACHED.match(after) if after[:1] not in "/_" else None)
        multiple = _MULTIPLE.match(after)
        if previous and before.strip() in _OF:
            fields.append(Field(place, previous + ALL))
            previous = ""
            continue
        name, rest = _name(_ATTACHED.sub("", before) if place else before, first=not fields)
        held_out = _is_held_out(rest, so_far=held_out)
        following = parts[place + 1].strip() in _OF and place + 2 < len(parts)
        if not name and following and not unit and not held_out and all(field.name != BATCH for field in fields):
            name = BATCH
        elif name.lower() in PARTS and after.lstrip()[:1] in ("[", "("):
            name = EPOCH  # Train: 3 [ 50/1251 (4%)]
        previous = name if following else ""
        if not name:
            continue
        name = _full_name(name, held_out, " ".join(parts))
        if multiple and kind_of(name) not in ("loss", ""):
            fields.append(Field(place, name, multiple[1]))
        else:
            fields.append(Field(place, f"{name} in {unit[0].strip()}" if unit else name))
    kinds = {field.name: kind_of(field.name.removesuffix(ALL)) for field in fields}
    times = frozenset(name for name, kind in kinds.items() if kind in (STEP, EPOCH))
    is_step = any(kinds[name] == STEP for name in times)
    is_bar = BATCH in times and any(sign in part for part in parts for sign in ("%", "it/s", "s/it"))
    return Template(tuple(fields), frozenset(kinds), times, is_step, "loss" in kinds.values(), is_bar)


def _full_name(name: str, held_out: bool, line: str) -> str:
    """Return a name with what the rest of its line says of it."""
    words = words_of(name)
    name = SHORT.get(name.lower(), name) if name.lower() != "s" or re.search(r"\bt[re]l:", line) else name
    if set(words) <= PARTS and len(words) == 1:
        return f"{name} loss" if name.lower() != "test" or "loss" in line.lower() else name
    if held_out and VALIDATION.isdisjoint(words) and kind_of(name) in ("loss", "accuracy"):
        return f"valid/{name}"
    return name


def _is_held_out(text: str, *, so_far: bool) -> bool:
    """Return whether what follows in a line is of held-out data, by the words that stand alone in it."""
    for word in text.lower().split():
        bare = word.strip("[](){}<>:,;|='\"-")
        if bare in VALIDATION:
            so_far = True
        elif bare in ("train", "training"):
            so_far = False
    return so_far


def _name(before: str, *, first: bool) -> tuple[str, str]:
    """Return the name that the text before a number ends with, and the rest of that text.

    Before the first name of a line there may be any words; `number of skipped iterations` further on is no step.
    """
    text = _TAIL.sub("", _CALL.sub("", before))
    unit = ""
    if match := _IN_BRACKETS.search(text):
        inner = match[1].strip().lower()
        text = text[: match.start()]
        if inner in _UNIT_WORDS:
            unit = f" in {inner}"
        elif inner in PARTS and not kind_of(text):
            text = f"{text} {inner}"
    start = max((match.end() for match in _SEPARATORS.finditer(text)), default=0)
    words = text[start:].split()[-MAX_KEY_WORDS:]
    words = words[:-1] if len(words) > 1 and words[-1].lower() == "value" else words  # lm loss value: 3.2
    for n in range(len(words)):
        if kind_of(" ".join(words[n:])):
            words = words[n:] if first or set(words_of(" ".join(words[:n]))) <= _FILLERS else words
            break
    name = " ".join(words).strip(".-_#!?* ")
    if not any(c.isalpha() for c in name):
        return "", before
    return name + unit, text[: text.rfind(words[0])]
