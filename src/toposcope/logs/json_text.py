"""JSON as people have it: a document, a value a line, with commas too many, or cut at its end."""

import json
import re
from typing import Any

from toposcope.errors import ToposcopeError, message_of
from toposcope.logs.raw import plural

_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]')
_CLOSING = {"[": "]", "{": "}"}


def parse_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return the document in a text, a list of the values where each line is one, and remarks.

    Raises
    ------
    ToposcopeError
        If it is no JSON, nor the beginning of it.
    """
    try:
        return json.loads(text), ()
    except (ValueError, RecursionError) as error:
        values, remarks = _lines(text)
        if values:
            return values, remarks
        repaired = None if isinstance(error, RecursionError) else _repaired(text)
        if repaired is None:
            raise ToposcopeError(f"neither JSON nor a JSON object a line ({message_of(error)})") from error
        return repaired


def _lines(text: str) -> tuple[list[Any], tuple[str, ...]]:
    """Return the values on lines that are whole, and a remark on the others; no values if those are most."""
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        whole: list[Any] = json.loads(f"[{','.join(lines)}]")  # several times as fast as line by line
    except (ValueError, RecursionError):
        whole = []
    if len(whole) == len(lines):
        return whole, ()
    values = [_value(line) for line in lines]
    kind = dict if any(isinstance(value, dict) for value in values) else list
    bad = [number for number, value in enumerate(values) if not isinstance(value, kind)]
    if 2 * len(bad) > len(lines):
        return [], ()
    values = [value for value in values if isinstance(value, kind)]
    if bad == [len(lines) - 1]:
        return values, ("the last line was cut in the middle: ignored",)
    return values, (f"{plural(len(bad), 'line is', 'lines are')} no JSON object: ignored",) if bad else ()


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _repaired(text: str) -> tuple[Any, tuple[str, ...]] | None:
    """Return a document without commas before a closing bracket, and without what was cut at its end."""
    pieces: list[str] = []
    opened: list[str] = []
    start, comma = 0, -1
    end, closing = 0, ""
    for token in _TOKENS.finditer(text):
        sign, place = token[0], token.start()
        if sign == '"':  # of a string that never ends
            break
        if sign in "]}":
            if not opened or _CLOSING[opened.pop()] != sign:
                return None
            if comma >= 0 and not text[comma + 1 : place].strip():
                pieces.append(text[start:comma])
                start = place
        if sign in "[{":
            opened.append(sign)
        elif sign in "]}" or (sign == "," and opened[-2:] != ["[", "["]):  # a list in a list is a row: all of it counts
            end, closing = place + (sign != ","), "".join(_CLOSING[sign] for sign in reversed(opened))
        comma = place if sign == "," else -1
    if not closing and text[end:].strip():
        return None
    body = "".join(pieces) + (text[start:end] if end > start else "")
    try:
        document = json.loads(body + closing)
    except (ValueError, RecursionError):
        return None
    return document, ("the end of the file was cut: its last, incomplete value is ignored",) if closing else ()
