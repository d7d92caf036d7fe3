"""Copies of a model's weights beside it: targets, teachers, moving averages, one module under two names."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from toposcope.checkpoints.formats import Entry

_AVERAGE = r"(?:n_)?averaged?|avg|emas?|swa"
_WORD = re.compile(
    rf"(?:^|_)(?:{_AVERAGE}|bar|best|teacher|shadow|momentum|slow|old|frozen|reference|ref|lagged|delayed|polyak|target|targ|copy)"
    r"(?:_(?:model|module|network|net|layers|params))?(?=_|$)",
    re.IGNORECASE,
)
"""Words of a module that follows another one."""
_LETTER = re.compile(r"(?:(?<=encoder)|(?<=backbone)|(?<=model)|(?<=net))_[km]$|(?<=proj)_m$")
"""Of MoCo, encoder_k of encoder_q, and ALBEF."""
_AVERAGED = re.compile(rf"(?:^|_)(?:{_AVERAGE})(?:_|$)", re.IGNORECASE)
_TRANSLATED = re.compile(r"(?:^|[._])(?:source|src)|emb", re.IGNORECASE)  # a translation has a target of its own
MIN_LISTED = 4  # tensors of a list that are known for copies by their shapes: fewer may agree by chance
Tail = tuple[str, tuple[int, ...]]  # the rest of a name behind a module, and the shape


@dataclass(frozen=True)
class Copy:
    """A module that is a copy of another one in the same file."""

    module: str
    original: str
    names: tuple[str, ...]  # of its tensors


def copies(entries: Sequence[Entry], *, by_numbers: bool = True) -> list[Copy]:
    """Find the copies of other tensors.

    Two modules of equal tails and shapes are an original and its copy if the name of one says so, or, `by_numbers`, if
    they hold the same ones.
    """
    modules: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.is_float:
            modules.setdefault(_copied(entry.name), []).append(entry)
    others = modules.pop("", [])
    ends: dict[Tail, set[str]] = {}
    for entry in others:
        for outer, tail in _cuts(entry.name):
            ends.setdefault((tail, entry.shape), set()).add(outer)
    found = []
    for module, inside in modules.items():
        original = _original(module, inside, ends)
        original = _beside(module, inside, others) if original is None else original
        if original is not None:
            found.append(Copy(module, original or "the model", tuple(entry.name for entry in inside)))
    return found + (_listed_twice(others) if by_numbers else [])


def _plain(part: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part)


@lru_cache(maxsize=1 << 16)
def _copied(name: str) -> str:
    """Return the outermost module or tensor around a tensor whose name says that it is a copy, or an empty text."""
    parts = name.split(".")
    at = next((k for k, part in enumerate(parts) if _WORD.search(_plain(part)) or _LETTER.search(part)), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """Yield each module around a tensor with the rest of the name, without dots as some averages are stored."""
    parts = name.split(".")
    for k in range(len(parts)):
        yield ".".join(parts[:k]), "".join(parts[k:])


def _without_word(module: str) -> set[str]:
    """Return what the original of a copy may be called."""
    outer, dot, last = module.rpartition(".")
    plain = _LETTER.sub("", _WORD.sub("", _plain(last))).strip("_")
    return {f"{outer}{dot}{plain}".strip(".").lower(), f"{outer}{dot}{plain}_q".lower()}


def _original(module: str, inside: Sequence[Entry], ends: dict[Tail, set[str]]) -> str | None:
    """Return the module that holds every tensor of a copy under the same tail; empty for the whole model."""
    tails = [(entry.name[len(module) + 1 :].replace(".", ""), entry.shape) for entry in inside]
    found = set.intersection(*(ends.get(tail, set()) for tail in tails)) if all(tail for tail, _ in tails) else set()
    plain = _without_word(module)
    if _LETTER.search(module) or sum(len(entry.shape) > 1 for entry in inside) < 2:
        # One matrix, or a letter, proves little.
        own = {name.replace("_", "") for name in plain}
        found = {name for name in found if not name or name.replace("_", "").lower() in own}
    found = {name for name in found if not _TRANSLATED.search(name)}
    return min(found, key=lambda name: (name.lower() not in plain, len(name), name), default=None)


def _beside(module: str, inside: Sequence[Entry], others: Sequence[Entry]) -> str | None:
    """Return of what a single tensor is the average, or a list that says nothing but its shapes."""
    outer = module.rpartition(".")[0]
    if len(inside) == 1 and inside[0].name == module:
        alike = [e.name for e in others if e.shape == inside[0].shape and e.name.startswith(outer)]
        plain = {name.rpartition(".")[2] for name in _without_word(module)}
        named = [n for n in alike if not _TRANSLATED.search(n) and n.lower().endswith(tuple(plain))]
        return next(iter(named or (alike if outer and _AVERAGED.search(module.rpartition(".")[2]) else ())), None)
    is_list = all(entry.name.rpartition(".")[2].isdecimal() for entry in inside)
    counts = Counter(entry.shape for entry in inside)
    return "" if is_list and len(inside) >= MIN_LISTED and counts <= Counter(e.shape for e in others) else None


_WORDS = r"grads?|mom(?:entum)?|vel(?:ocity)?|cache|mem|prev(?:ious)?|init(?:ial)?|backup|saved|delta|fisher"
_BEFORE = re.compile(rf"(?:[mvsg]|{_WORDS})?_?(?:d|grad)?_?", re.IGNORECASE)
_AFTER = re.compile(rf"_(?:[mvsd]|{_WORDS})", re.IGNORECASE)  # one more letter may be that of a gate


def states(entries: Sequence[Entry]) -> set[str]:
    """Return what lies beside weights by hand, gradients, averages, first values: ``v_dW1``, ``W1/m``, ``W1_init``.

    One letter proves little: it must stand beside two of them.
    """
    shapes = {entry.name: entry.shape for entry in entries}
    found: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        outer, dot, leaf = name.rpartition(".")
        if shapes.get(outer) == shape:
            found.setdefault("inside", []).append(name)
        for k in range(1, len(leaf)):
            before, after = leaf[:k], leaf[k:]
            if _BEFORE.fullmatch(before) and shapes.get(f"{outer}{dot}{after}") == shape:
                found.setdefault(before, []).append(name)
            elif _AFTER.fullmatch(after) and shapes.get(f"{outer}{dot}{before}") == shape:
                found.setdefault(after, []).append(name)
    return {name for affix, names in found.items() if len(names) > 1 or len(affix.strip("_")) > 2 for name in names}


def _listed_twice(entries: Sequence[Entry]) -> list[Copy]:
    """Return the modules that hold the same tensors as another one, as a policy lists what its parts share."""
    modules: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = entry.name.split(".")
        for depth in range(1, min(3, len(parts))):
            if not parts[depth - 1].isdecimal():
                modules.setdefault(".".join(parts[:depth]), []).append(entry)
    alike: dict[frozenset[Tail], list[str]] = {}
    for module, inside in modules.items():
        if sum(len(entry.shape) > 1 for entry in inside) > 1:
            alike.setdefault(frozenset((e.name.removeprefix(module), e.shape) for e in inside), []).append(module)
    found: list[Copy] = []
    for first, *rest in alike.values():
        for module in rest:
            within = any(module.startswith(f"{copy.module}.") for copy in found)
            pairs = list(zip(modules[first], modules[module], strict=True))
            # Numbers that are all one are what training begins with.
            if not within and all(same_numbers(*pair) for pair in pairs) and any(_varies(e) for e in modules[module]):
                found.append(Copy(module, first, tuple(entry.name for entry in modules[module])))
    return found


def _varies(entry: Entry) -> bool:
    row = entry.numbers(0, 1) if len(entry.shape) > 1 else np.zeros(1)
    return bool((row != row.flat[0]).any())


def same_numbers(one: Entry, other: Entry) -> bool:
    """Return whether two tensors are one stored twice, judged by three of their rows."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    rows = {0, one.shape[0] // 2, one.shape[0] - 1} if one.shape else {0}
    return all(one.read(k, k + 1).tobytes() == other.read(k, k + 1).tobytes() for k in rows)
