"""Words that tables and sentences share."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec

COVERAGE = 0.9  # of the intervals of a predicted final loss; widths of this level: `forecasting/held_out.py`


def described(text: str) -> "msgspec.Meta":
    """Return what a field of an answer means, for its JSON Schema."""
    import msgspec  # most that have words have no schema

    return msgspec.Meta(description=text)


def joined(parts: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def capitalised(text: str) -> str:
    """Write a text with a capital first."""
    return f"{text[:1].upper()}{text[1:]}"


def sentence(text: str) -> str:
    """Make a sentence of a text: a capital first, a full stop last unless it asks; nothing of an empty one."""
    text = capitalised(text.strip().rstrip("."))
    return f"{text}." if text and not text.endswith("?") else text


def loss_words(value: float | None, digits: int = 3) -> str:
    """Write a loss with as many digits as a reader needs."""
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def counted(count: int, one: str, more: str = "") -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def examples(names: Sequence[str], max_named: int = 3) -> str:
    """Name the first few and count the rest: ``a, b, c and 4 more``."""
    if len(names) <= max_named:
        return ", ".join(names)
    return f"{', '.join(names[:max_named])} and {len(names) - max_named} more"


def short(value: float) -> str:
    """Write a count of parameters or tokens to three digits, with k, M, B or T."""
    if not isfinite(value):
        return "unbounded"
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit * 0.9995:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Write a time in words."""
    for unit, size, until in (("second", 1, 90), ("minute", 60, 5400), ("hour", 3600, 172800), ("day", 86400, 0)):
        if seconds < until or not until:
            n = round(seconds / size) if seconds >= size or size > 1 else round(seconds, 1)
            return f"{n:,} {unit}{'' if n == 1 else 's'}"
    raise AssertionError
