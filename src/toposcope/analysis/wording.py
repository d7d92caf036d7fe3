"""Words that tables and sentences share."""

from collections.abc import Sequence


def joined(parts: Sequence[str]) -> str:
    """Join words as a sentence does: ``a, b and c``."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
