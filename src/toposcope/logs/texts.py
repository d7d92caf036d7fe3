"""The text in a file, whatever encoding it was saved in, and JSON as people have it."""

import codecs
import json
import re
from typing import Any

from toposcope.errors import ToposcopeError, message_of
from toposcope.logs.raw import plural

MIN_ZERO_SHARE = 0.4  # of every other byte: where more are zero, two bytes make a character
MAX_CONTROL_SHARE = 0.01  # of control characters in a text, besides zero bytes and those of terminals

MAX_CHARACTER_BYTES = 4  # of one character: in a growing file the last may be cut in two
ZERO_BYTES = "zero bytes"  # in the remark on a file that was cut by a crash
HEAD = 4096
_CONTROL = re.compile(b"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
UTF_8 = "utf-8-sig"
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]')
_CLOSING = {"[": "]", "{": "}"}
NO_VALUE = object()


def refuse_pointer(content: bytes) -> None:
    """Refuse what Git LFS keeps in place of a file."""
    if content.startswith(b"version https://git-lfs.github.com/spec/v1"):
        raise ToposcopeError("a Git LFS pointer, the log itself is elsewhere; run git lfs pull")


def decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and remarks if its encoding was guessed or a crash left zero bytes in it."""
    refuse_pointer(content)
    text, remarks = _text(content)
    if "\0" not in text:
        return text, remarks
    if not text.strip("\0\ufeff \r\n\t"):
        raise ToposcopeError(f"it holds {ZERO_BYTES} alone, as a crash leaves")
    whole, lost = _without_zero_bytes(text)
    return whole, (*remarks, lost)


def _without_zero_bytes(text: str) -> tuple[str, str]:
    """Return the lines without the zero bytes of a crash, of other JSON what comes before them; and a remark."""
    number = text.count("\n", 0, text.index("\0")) + 1
    lost = f"{plural(text.count(chr(0)), 'zero byte', ZERO_BYTES)} from line {number} on, as a crash leaves: "
    text = text.lstrip("\0\ufeff")
    lines = [line for line in text.split("\n") if "\0" not in line]
    if text.lstrip()[:1] in ("[", "{"):
        before, _, after = text.partition("\0")
        if not after.strip("\0 \r\n\t") and before.rstrip()[-1:] in ("]", "}"):
            return before, f"{lost}ignored"
        if not any(isinstance(_value(line.strip().strip("[],")), dict) for line in lines[:3]):
            return before, f"{lost}ignored with what comes after"
    return "\n".join(lines), f"{lost}ignored with the lines they are on"


def _text(content: bytes) -> tuple[str, tuple[str, ...]]:
    encoding = _encoding(content)
    try:
        return content.decode(encoding), ()
    except UnicodeDecodeError as error:
        if error.start >= len(content) - MAX_CHARACTER_BYTES:
            return content[: error.start].decode(encoding), ()
    if encoding != UTF_8:
        raise ToposcopeError("damaged UTF-16 text")
    try:
        return content.decode("cp1252"), ("the text is not UTF-8: read as Windows-1252",)
    except UnicodeDecodeError as error:
        raise ToposcopeError("neither UTF-8 nor Windows-1252 text; save it as UTF-8") from error


def _encoding(content: bytes) -> str:
    """Return the encoding by the byte order mark, or by where zero bytes are."""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        high, low = content[first:HEAD:2], content[1 - first : HEAD : 2]
        if high and high.count(0) >= MIN_ZERO_SHARE * len(high) and not low.count(0):
            return encoding
    if b"\0" in content and len(_CONTROL.findall(content)) > MAX_CONTROL_SHARE * len(content.replace(b"\0", b"")):
        raise ToposcopeError(f"not text (it holds {ZERO_BYTES})")
    return UTF_8


def parse_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return the document in a text, a list of the values where each line is one, and remarks."""
    try:
        return json.loads(text), ()
    except (ValueError, RecursionError) as error:
        values, remarks = _lines(text)
        if values:
            return values, remarks
        repaired = None if isinstance(error, RecursionError) else _repaired(text)
        if repaired is None:
            raise ToposcopeError(f"neither JSON nor a JSON object per line ({message_of(error)})") from error
        return repaired


def values_of_lines(text: str) -> list[Any]:
    """Return the JSON value on each line that is not empty, `NO_VALUE` where a line is none."""
    lines = [line for line in text.split("\n") if line.strip()]
    whole = _value(f"[{','.join(lines)}]")  # several times as fast as line by line
    return whole if whole is not NO_VALUE and len(whole) == len(lines) else [_value(line) for line in lines]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return NO_VALUE


def _lines(text: str) -> tuple[list[Any], tuple[str, ...]]:
    """Return the values on lines that are whole, and a remark on the others; no values if those are most."""
    every = values_of_lines(text)
    if not any(value is NO_VALUE for value in every):
        return every, ()
    kind = dict if any(isinstance(value, dict) for value in every) else list
    bad = [number for number, value in enumerate(every) if not isinstance(value, kind)]
    if 2 * len(bad) > len(every):
        return [], ()
    values = [value for value in every if isinstance(value, kind)]
    if bad == [len(every) - 1]:
        return values, ("the last line was cut in the middle: ignored",)
    return values, (f"{plural(len(bad), 'line is', 'lines are')} no JSON object: ignored",) if bad else ()


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
    document = _value(body + closing)
    if document is NO_VALUE:
        return None
    return document, ("the end of the file was cut: its last, incomplete value is ignored",) if closing else ()
