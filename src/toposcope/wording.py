"""Words that tables and sentences share."""

from collections.abc import Sequence


def joined(parts: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def counted(count: int, one: str, more: str = "") -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def examples(names: Sequence[str], max_named: int = 3) -> str:
    """Name the first few and count the rest: ``a, b, c and 4 more``."""
    if len(names) <= max_named:
        return ", ".join(names)
    return f"{', '.join(names[:max_named])} and {len(names) - max_named} more"
