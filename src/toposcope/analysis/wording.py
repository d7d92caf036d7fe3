"""Words that tables and sentences share."""

from collections.abc import Sequence


def joined(parts: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def counted(count: int, one: str, more: str = "") -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"
