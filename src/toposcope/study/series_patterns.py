"""Several series in one declaration: braces in a path, as a shell expands them."""

import re
from collections.abc import Iterator

from toposcope.errors import ToposcopeError

MAX_SERIES = 1000
"""Series that one path stands for."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def is_pattern(text: str) -> bool:
    """Return whether a text has braces with a list or a range in them."""
    return any("," in inner or ".." in inner for inner in _BRACES.findall(text))


def expanded(text: str) -> list[str]:
    """Return the texts that one with braces stands for, the last braces varying first.

    Parameters
    ----------
    text : str
        ``{a,b,c}`` stands for each of its parts, ``{1..9}`` for each whole number from 1 to 9, ``{01..12}`` for the
        same with leading zeros. Other braces stay as they are.

    Raises
    ------
    ToposcopeError
        For braces within braces, a range that is not of whole numbers, or more than 1,000 texts.

    Examples
    --------
    >>> expanded("pythia-{14m,31m}-seed{1..2}")
    ['pythia-14m-seed1', 'pythia-14m-seed2', 'pythia-31m-seed1', 'pythia-31m-seed2']
    """
    if re.search(r"\{[^{}]*\{[^{}]*(,|\.\.)", text):
        raise ToposcopeError(
            f"{text!r}: braces within braces; write one list {{a,b}} or range {{1..9}} beside the other"
        )
    texts = [""]
    for literal, inner in _parts(text):
        choices = _choices(text, inner)
        if len(texts) * len(choices) > MAX_SERIES:
            raise ToposcopeError(f"{text!r}: stands for more than {MAX_SERIES:,} series; declare fewer")
        texts = [f"{begun}{literal}{choice}" for begun in texts for choice in choices]
    return texts


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before each pair of braces, and what is in it; at the end, the rest and nothing."""
    end = 0
    for found in _BRACES.finditer(text):
        yield text[end : found.start()], found[1] if is_pattern(found[0]) else f"{{{found[1]}}}"
        end = found.end()
    yield text[end:], ""


def _choices(text: str, inner: str) -> list[str]:
    if inner.startswith("{") or not inner:
        return [inner]
    if "," in inner:
        return [choice.strip() for choice in inner.split(",")]
    found = _RANGE.fullmatch(inner.strip())
    if not found:
        raise ToposcopeError(f"{text!r}: {{{inner}}} is no range of whole numbers, such as {{1..9}}")
    first, last = int(found[1]), int(found[2])
    if abs(last - first) >= MAX_SERIES:
        raise ToposcopeError(f"{text!r}: {{{inner}}} stands for more than {MAX_SERIES:,} series; declare fewer")
    padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-").startswith("0") for end in found.groups())
    width = max(map(len, found.groups())) if padded else 0
    way = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + way, way)]
