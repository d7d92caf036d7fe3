"""Labels of probes: a name, and the options that differ from their defaults."""

import re

_BETWEEN = re.compile(r",(?![^\[\]]*\])")
"""A comma that is not within a list."""


def split_parts(text: str) -> list[str]:
    """Return the parts of a text such as ``draws=10,scales=[0.5,1.0]``, an option each.

    Examples
    --------
    >>> split_parts("draws=10,scales=[0.5,1.0]")
    ['draws=10', 'scales=[0.5,1.0]']
    """
    return [part for part in _BETWEEN.split(text) if part]


def options_of(label: str) -> dict[str, str]:
    """Return the options a label names, as they are written."""
    return dict(part.split("=", 1) for part in split_parts(label.partition(":")[2]) if "=" in part)
