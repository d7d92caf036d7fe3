"""The training step a checkpoint's name tells."""

import re

# The most telling word wins: an epoch beside a step is not the step. A unit (step_10k) is not guessed at.
_PATTERNS = [
    re.compile(r"step[-_=]?(\d+)(?![\da-z])", re.IGNORECASE),
    re.compile(r"(?:checkpoint|ckpt|iter|model|global)[-_=]?(\d+)(?![\da-z])", re.IGNORECASE),
    re.compile(r"^(\d+)$"),
]


def step_of(stem: str) -> int | None:
    """Return the step in a file or folder name without its ending, or None.

    Examples
    --------
    >>> step_of("step_000100"), step_of("checkpoint-500"), step_of("epoch=3-step=120"), step_of("config")
    (100, 500, 120, None)
    """
    for pattern in _PATTERNS:
        found = pattern.search(stem)
        if found:
            return int(found.group(1))
    return None
