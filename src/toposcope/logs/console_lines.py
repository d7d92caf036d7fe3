"""Lines of a console log, read as names and numbers in any usual punctuation.

A training script prints the same few sentences over and over with other numbers in them. Each sentence, its numbers
taken out, is a template; what its numbers are is worked out once, and holds for every line of that template.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from toposcope.logs.columns import VALIDATION, identify_columns, words_of
from toposcope.logs.epoch_steps import SUMMARY
from toposcope.logs.raw import MULTIPLES

MAX_UNDER = 3  # lines with numbers below a heading that may be its own
MIN_REPEATS = 3  # lines of a kind that make it a part of the log, where nothing else says so
MAX_BEFORE_END, MIN_ALIKE = 200, 2  # lines before the last by which it is found to be cut, and how many are like it
MAX_UNLABELLED = 0.1  # share of lines without the number of a process, where the others have one
MANY_ALIKE, MAX_SHAPES = 50, 4  # lines of a kind before others are matched as a whole; kinds for which it is worth it
MANY_TEMPLATES, MAX_TEMPLATES = 1000, 20_000  # kinds of lines that are looked at; a log has a few

PARTS = VALIDATION | {"train", "training"}
_NUMBER = re.compile(
    r"([-+.\dnNiI](?<![\w.].)(?:"
    r"(?:(?<=\d)|(?<=\.)(?=\d)|(?<=[-+])(?=\.?\d))\d*(?:[,_'’]\d+)*\.?\d*(?:[eE][-+]?\d+)?(?![A-Za-z_]*\d|\.\d)"
    r"|(?:(?<=[nN])[aA][nN]|(?<=[iI])(?:nf|NF)(?:inity)?|(?<=[-+])(?:[nN][aA][nN]|[iI](?:nf|NF)(?:inity)?))(?!\w)"
    r"(?<!of nan)))"
)
"""A number that stands alone; its first character comes first, which is several times as fast to look for."""
_CLOCK = r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_TIME = re.compile(
    r"(?:()[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w.]+:\d+\]"
    rf"|(\D{{0,30}}?)\d{{1,4}}[-/.]\d{{1,2}}(?:[-/.]\d{{1,4}})?[T ,]\s?{_CLOCK})\W*"
)
"""Date and time at the beginning of a line, after few other words; or what absl and glog put there."""
RANK = re.compile(r"^\W{0,2}(?:default|rank|worker|gpu|process|proc)[\s:=_-]{0,2}(\d+)\]?\W{0,2}", re.IGNORECASE)
LABEL = re.compile(r"^\s*(\d{1,5}):(?:\s|$)")  # the number of a process before its lines, as srun puts it
_CALL = re.compile(r"(?:(?<=[:=\[(,])\s*[A-Za-z_][\w.]*|\b(?:tensor|array|float\d*))[(\[]+\s*$")
"""``tensor(`` before a number."""
_TAIL = re.compile(r"(?:[\s:=→>~|'\"\[({@`*]|->| is)+$")
_SEPARATORS = re.compile(r"[,;|{}()\[\]:=\"'`<>•·│]+|\s[-–—*/]+\s|\s-$|^-\s")
_IN_BRACKETS = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_COUNT = re.compile(r"(\d[\d,_]*(?:\.\d*)?)([kKMBT]?)")
_COUNTED = re.compile(r"[\d,_'’]+")  # of rows, of files
_AGAIN = re.compile(r"\s*(?::|=|is|->)\s*")
_LOSS_AT = re.compile(r"([\w.]+(?: loss)?) (?:at|after|on|for)(?: the)?\s*$")
_CLOSED, _OPENED = re.compile(r"[)\]]\s*[:=]\s*$"), re.compile(r"\s*[(\[][^(\[]*$")
_LOCATION = re.compile(r"[\w>.](?:\.\w{1,4}|:<?([A-Za-z_]\w*)>?):$")
_BRACKETS = re.compile(r"[\s\[\]()|:]+")
_STEPS_BEHIND = re.compile(r" (?:steps|iterations|iters|updates)\b")
_BEFORE_SIZE = re.compile(r"(?:^|\bmodel\b(?: has| with|:)?)[\s:~]*$", re.IGNORECASE)
_SIZE_AFTER = re.compile(r" ?[KMB]?(?:illion)? +(?:[Tt]otal |[Tt]rainable |model )?(param(?:eter)?s)\b")
_NAMED_AFTER = re.compile(r" ?[:|,-]? ?[A-Za-z]")
_CODE = re.compile(r"[=(){}\"'#]")
_ATTACHED = re.compile(r"^(?:[A-Za-zµ%°$][\w%/]*|(?:/[A-Za-z]+)+)")
_UNIT = re.compile(
    r"^\s?(ms|us|µs|s(?=$|[\s,;|)\]])|secs?|seconds?|mins?|minutes?|h|hours?|[KMG]i?B|%|percent|tok(?:ens)?/s|it/s)(?![\w/])"
)
_MULTIPLE = re.compile(r"^([kKMBT])(?![A-Za-z])")
_IN_MULTIPLES = re.compile(r"\(([KMB])\)\s*[:=]\s*$")
_SPACED, _SIZES = re.compile(r"^ ([KMBT]|[mb](?=illion))"), ("parameters", "tokens")  # 123.85 M, 1.2 billion
_UNIT_WORDS = frozenset({"ms", "s", "sec", "secs", "seconds", "min", "minutes", "h", "hours", "%", "mb", "gb", "gib"})
_FILLERS = PARTS | frozenset(
    """
    at on the all average mean current set of and global total overall final info debug warning root main trainer log
    logger metrics results stats steps iterations iters updates epoch
    """.split()
)
"""Words before the name of a loss that leave it the model's own: `box loss` is not."""
_ENDS = tuple(".:-)]}>")
_OPERATORS = tuple("+*%<!&^")  # before a number of a program: ``step % 100``
_OF = frozenset({"/", "of", "out of"})
ALL = "/all"  # ends the name of how many there are of something: of steps, of epochs
_NAMED = (
    (re.compile(r"^\[#, ?#\] "), ("epoch", "batch")),  # [1, 2000] loss: 2.2, of PyTorch's tutorials
    (re.compile(r"^#\|#\|[Ll]oss"), ("epoch", "step")),  # 1|10|Loss: 1.9, of torchtune
    (re.compile(r"^\s?\[#\] ?\[#/#\]"), ("epoch", "batch", f"batch{ALL}")),  # [0][10/1108]
)
"""Sentences whose numbers have no names, # standing for a number, and what the first of them are."""
_ASIDE = re.compile(r"\b(?:best|saved?|saving|resum\w+|early.stopping|improved|loaded|loading|wandb)\b", re.IGNORECASE)
"""Words before what a line only recalls: the loss of a checkpoint, the best so far."""
_EPOCH_MEANS = re.compile(r"\| train \|")  # of fairseq, whose rows are called train_inner
BATCH, EPOCH, STEP = "batch", "epoch", "step"
SHORT = {"trl": "train loss", "tel": "val loss", "tps": "tokens per second", "norm": "grad norm", "s": STEP, "up": STEP}
"""Names of llm.c's and Marian's logs, and one that is a rate here and the tokens of a step in tables."""
MAX_KEY_WORDS = 4
_A_NUMBER = r"([-+]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|NaN|inf))"
_ZEROS = str.maketrans("123456789", "000000000")


class Field(NamedTuple):
    """A number of a template: its place among the numbers, its name, and a multiple that stands behind it."""

    place: int
    name: str
    multiple: str = ""


class Template(NamedTuple):
    """What the numbers of a kind of line are."""

    fields: tuple[Field, ...]  # those with a name
    times: frozenset[str]  # the names that say how far the run is: steps and epochs
    losses: frozenset[str]  # the names of losses
    has_step: bool
    is_bar: bool  # whether it is a progress bar
    is_of_epoch: bool  # whether it is a bar of Keras, whose numbers are those of the epoch once it is full
    evaluates: bool  # whether it says how far an evaluation is
    begin: str  # the text before its first name
    is_code: bool  # whether it begins as a line of a program may


class Line(NamedTuple):
    """A line with numbers that have names: what it says, how many lines are like it, the process, and all numbers."""

    template: Template
    said: dict[str, str]
    n_alike: int
    rank: str | None
    numbers: list[str]
    at: int  # its place in the text


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return what a name stands for: one of `toposcope.logs.columns.NAMES`, ``loss``, ``accuracy``; or nothing."""
    found = identify_columns([name, "loss"])
    if any(loss.name == name for loss in found.losses):
        return "loss"
    if found.accuracies:
        return "accuracy"
    return next(iter(found.named), "")


@lru_cache(maxsize=4096)
def is_some_loss(name: str) -> bool:
    """Return whether a name is of a loss, the model's own or another."""
    return "loss" in words_of(name)


def parse_lines(lines: Sequence[str]) -> tuple[list[Line], int]:
    """Return the lines with a number that has a name, and how many were not looked at."""
    ranks = _labels(lines)
    keys: dict[tuple[str, ...], Template] = {}
    found: list[tuple[tuple[str, ...], list[str], str | None, int]] = []
    times: Counter[tuple[str, ...]] = Counter()
    shapes: list[tuple[re.Pattern[str], tuple[str, ...]]] = []  # of the most common lines, which are quicker to match
    left_out = 0
    under = 0  # lines that a heading such as `Test Error:` may still be of
    for i, text in enumerate(lines):
        rank = None
        if ranks and ranks[i]:
            rank, text = ranks[i], text.partition(":")[2]
        if match := RANK.match(text):
            rank, text = match[1], text[match.end() :]
        if match := _TIME.match(text):
            text = f"{match[2] or ''} {text[match.end() :]}"
        text = " ".join(text.split())
        if under <= 0 and (known := next(((m, key) for shape, key in shapes if (m := shape.fullmatch(text))), None)):
            found.append((known[1], list(known[0].groups()), rank, i))
            continue
        parts = _NUMBER.split(text)
        if len(parts) == 1:
            under = MAX_UNDER if _is_heading(parts[0].strip()) else under
            continue
        key = tuple(parts[::2])
        if key not in keys and len(keys) >= MANY_TEMPLATES:  # words with other digits in each line
            key = tuple(part.translate(_ZEROS) for part in key)
        if key not in keys and len(keys) >= MAX_TEMPLATES:
            left_out += 1
            continue
        if key not in keys:
            keys[key] = _template(key, parts[1::2])
        if under > 0 and not keys[key].has_step and any(VALIDATION.isdisjoint(words_of(n)) for n in keys[key].losses):
            key = (f"valid; {key[0]}", *key[1:])
            if key not in keys:
                keys[key] = _template(key, parts[1::2])
        under = MAX_UNDER if keys[key].evaluates else (under - 1) * (not keys[key].losses)
        if keys[key].fields:
            found.append((key, parts[1::2], rank, i))
            times[key] += 1
            if times[key] == MANY_ALIKE and len(shapes) < MAX_SHAPES and not keys[key].evaluates:
                shapes.append((re.compile(_A_NUMBER.join(map(re.escape, key))), key))
    counts = Counter((key, rank) for key, _, rank, _ in found)
    parsed = []
    for key, values, rank, at in found:
        template = keys[key]
        # of a name that a line has twice, the first counts
        said = {name: values[place] + multiple for place, name, multiple in reversed(template.fields)}
        parsed.append(Line(template, said, counts[key, rank], rank, values, at))
    return parsed, left_out


def without_cut_end(lines: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return lines without a last one that was cut in the middle, as in a log that grows, and a remark."""
    *before, last = (_NUMBER.split(" ".join(line.split())) for line in lines[-MAX_BEFORE_END:])
    if len(last) < 2:
        return lines, ()
    texts = tuple(last[:-1:2])
    alike = [parts for parts in before if tuple(parts[: len(last) - 1 : 2]) == texts and len(parts) >= len(last)]
    if len(alike) < MIN_ALIKE:
        return lines, ()
    longer = all(parts[len(last) - 1].startswith(last[-1]) and parts[len(last) - 1] != last[-1] for parts in alike)
    lengths = {len(parts[len(last) - 2]) for parts in alike}
    # steps only get longer; the digits of a loss may vary
    least = len(alike[-1][len(last) - 2]) if last[-2].isdigit() else min(lengths) if len(lengths) == 1 else 0
    shorter = not last[-1] and len(last[-2]) < least
    return (lines[:-1], ("the last line was cut in the middle: ignored",)) if longer or shorter else (lines, ())


def as_whole(text: str) -> tuple[str, float]:
    """Return a number of steps in digits, as 1,000 and 9.000 and 1.2k are, and the last digit that is printed."""
    match = None if text.isdigit() else _COUNT.fullmatch(text)
    if not match:
        return text, 1.0
    multiple = MULTIPLES.get(match[2], 1)
    value = round(float(re.sub("[,_]", "", match[1])) * multiple, 6)
    last = max(1.0, multiple / 10.0 ** len(match[1].partition(".")[2]))
    return (str(int(value)), last) if value.is_integer() else (text, 1.0)


def _is_heading(text: str) -> bool:
    """Return whether a line without numbers says that what follows is of held-out data."""
    return len(text.split()) <= MAX_KEY_WORDS and text[-1:] in ":])=*-." and _held_out(text, "") != ""


def _labels(lines: Sequence[str]) -> list[str] | None:
    """Return the number of a process before each line, empty where there is none; None if few lines have one."""
    labels = [match[1] if (match := LABEL.match(line)) else "" for line in lines]
    few = len(set(labels)) <= max(1, len(lines) // MIN_REPEATS)
    return labels if few and labels.count("") <= MAX_UNLABELLED * len(labels) else None


def _template(parts: tuple[str, ...], values: Sequence[str]) -> Template:
    """Return what the numbers between the parts of a line are; `values` are those of the first such line."""
    line = " ".join(parts)
    known = next((names for pattern, names in _NAMED if pattern.match("#".join(parts))), ())
    fields = [Field(place, name) for place, name in enumerate(known)]
    held_out, evaluates, previous, pair, begin, before_first = "", False, "", "", "", ""
    for place, (before, after) in enumerate(pairwise(parts)):
        if place < len(known):
            continue
        unit = _UNIT.match(after) or (_ATTACHED.match(after) if after[:1] not in "/_" else None)
        multiple = _MULTIPLE.match(after) or _IN_MULTIPLES.search(before)  # Parameters (M): 123.85
        if pair and before.strip() == "/":
            fields.append(Field(place, pair))
            pair = ""
            continue
        if previous and _is_of(before):
            fields.append(Field(place, previous + ALL, multiple[1] if multiple else ""))
            previous = ""
            continue
        text = _ATTACHED.sub("", before) if place else before
        if place and _CLOSED.match(before):  # lr (group 0)=1e-4
            text = _OPENED.sub("", parts[place - 1]) + before.strip(")] ")
        name, rest = _name(text, first=not any(kind_of(field.name) for field in fields))
        if not _is_location(before):
            held_out = _held_out(rest if kind_of(name) else f"{rest} {name}", held_out)
        following = _is_of(after) and place + 2 < len(parts) and not _is_date(parts, place)
        if not name and _AGAIN.fullmatch(before) and (loss := _LOSS_AT.search(begin)) and kind_of(loss[1]):
            name = loss[1]  # loss at step 100: 3.2
        is_progress = following and (not unit or bool(multiple)) and not _UNIT.match(parts[place + 2])
        planned = any(field.name.endswith(ALL) and kind_of(field.name.removesuffix(ALL)) == STEP for field in fields)
        if is_progress and (not name or name.lower() in PARTS) and not planned:
            name = BATCH  # [ 10/5005], Test: [10/78]
        elif not fields and not unit and kind_of(name) == "" and _STEPS_BEHIND.match(after):
            name = STEP  # After 100 steps
        elif not fields and not name and before[-1:] in ("", " ") and _NAMED_AFTER.match(after) and _is_named(after):
            name = STEP  # 100 train 3.2
        elif not fields and _BEFORE_SIZE.search(before) and (size := _SIZE_AFTER.match(after)):
            name = size[1]  # 124 M params
        elif name.lower() in PARTS and after.lstrip()[:1] in ("[", "("):
            name = EPOCH  # Train: 3 [ 50/1251 (4%)]
        multiple = multiple or (_SPACED.match(after) if kind_of(name) in _SIZES else None)
        evaluates |= bool(held_out) and kind_of(name) == STEP and "batch" in name.lower()
        previous = ""
        before_first, begin = (before_first + before, begin + rest) if not fields else (before_first, begin)
        if not name or (
            name.lower() in PARTS and (unit or multiple or _COUNTED.fullmatch(values[place]) or after[:1] == ":")
        ):
            continue
        name = _full_name(name, held_out, line)
        previous = name if following else ""
        head, _, tail = name.rpartition("/")
        if following and kind_of(head) == kind_of(tail) == "loss":  # loss/ppl: 3.2/24.5
            previous, name, pair = "", head, f"{head.rpartition(' ')[0]} {tail}".strip()
        if multiple and kind_of(name) not in ("loss", ""):
            fields.append(Field(place, name, multiple[1]))
        else:
            fields.append(Field(place, f"{name} in {unit[0].strip()}" if unit else name))
    if evaluates or _EPOCH_MEANS.search(line) or _ASIDE.search(begin):
        fields = []
    kinds = {field.name: kind_of(field.name.removesuffix(ALL)) for field in fields}
    fields = [f for f in fields if kinds[f.name] or "loss" in words_of(f.name) or f.name in SUMMARY]
    times = frozenset(name for name, kind in kinds.items() if kind in (STEP, EPOCH))
    losses = frozenset(name for name, kind in kinds.items() if kind == "loss")
    is_bar = BATCH in times and any(sign in part for part in parts for sign in ("%", "it/s", "s/it"))
    is_of_epoch = BATCH + ALL in times and ("s/step" in line or "- ETA:" in line)
    has_step, is_code = any(kinds[name] == STEP for name in times), _CODE.search(before_first) is not None
    return Template(tuple(fields), times, losses, has_step, is_bar, is_of_epoch, evaluates, begin.strip(), is_code)


def _is_of(between: str) -> bool:
    """Return whether the text between two numbers says that the one is of the other: 120/8000, 1k/100k."""
    return _ATTACHED.sub("", _MULTIPLE.sub("", between)).strip() in _OF


def _is_date(parts: tuple[str, ...], place: int) -> bool:
    """Return whether numbers with a stroke between them are of a date: 2024/05/01, 05/01 09:12."""
    before, after, then = parts[place], parts[place + 2], parts[place + 3 : place + 4]
    return "/" in (before[-1:], after) or (after.strip() == "" and then == (":",))


def _is_named(after: str) -> bool:
    """Return whether the text after a number at the beginning of a line is the name of a loss, or of a part."""
    text = _TAIL.sub("", after).strip(" :|,-\t")
    return text.lower() in PARTS or kind_of(text) == "loss"


def _full_name(name: str, held_out: str, line: str) -> str:
    """Return a name with what the rest of its line says of it."""
    if kind_of(name) == EPOCH:
        return EPOCH
    words = words_of(name)
    name = SHORT.get(name.lower(), name) if name.lower() != "s" or re.search(r"\bt[re]l:", line) else name
    if set(words) <= PARTS and len(words) == 1:
        return f"{name} loss" if (words[0][0] in "tv" and words[0] != "test") or "loss" in line.lower() else name
    if held_out and VALIDATION.isdisjoint(words) and kind_of(name) in ("loss", "accuracy"):
        return f"{held_out}/{name}"
    return name


def _is_location(before: str) -> bool:
    """Return whether a number is a line of a program: ``train.py:88``, ``__main__:train:88``."""
    match = _LOCATION.search(before)
    return match is not None and (match[1] in PARTS or not kind_of(match[1] or ""))


def _held_out(text: str, so_far: str) -> str:
    """Return the part of held-out data that what follows in a line is of, by the words that stand alone in it."""
    if "Saving dict for" in text:  # of TensorFlow's estimators, after an evaluation
        return "valid"
    for word in _BRACKETS.split(text.lower()):
        bare = word.strip("[](){}<>:,;|='\"-.")
        part = bare.partition("_")[0] if bare.isidentifier() else bare.replace("held-out", "heldout")
        if bare in VALIDATION or (part in VALIDATION and part != "test"):
            so_far = "test" if bare in ("test", "testing") else so_far or "valid"
        elif bare in ("train", "training"):
            so_far = ""
    return so_far


def _name(before: str, *, first: bool) -> tuple[str, str]:
    """Return the name that the text before a number ends with, and the rest of that text."""
    text = _TAIL.sub("", _CALL.sub("", before)).replace("'s ", " ")
    if text[-1:] in _OPERATORS or _is_location(before):
        return "", before
    unit = ""
    if match := _IN_BRACKETS.search(text):
        inner = match[1].strip().lower()
        text = text[: match.start()]
        if inner in _UNIT_WORDS:
            unit = f" in {inner}"
        elif inner in PARTS and not kind_of(text.split()[-1] if text.split() else ""):
            text = f"{text} {inner}"
        elif kind_of(inner) and not kind_of(text.split()[-1] if text.split() else ""):
            text = inner  # Trainingsverlust (loss)
    start = max((match.end() for match in _SEPARATORS.finditer(text)), default=0)
    words = text[start:].split()[-MAX_KEY_WORDS:]
    words = words[:-1] if len(words) > 1 and words[-1].lower() == "value" else words  # lm loss value: 3.2
    for n in range(len(words)):
        if kind := kind_of(" ".join(words[n:])):
            dropped = set(words_of(" ".join(words[:n])))
            is_free = first and (kind != "loss" or words[n - 1][-1:] in _ENDS)
            words = words[n:] if is_free or dropped <= _FILLERS else words
            break
    name = " ".join(words).strip(".-_#!?*~ ")
    if not any(c.isalpha() for c in name):
        return "", before
    return name + unit, text[: text.rfind(words[0])]
