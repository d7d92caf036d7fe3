"""The text in a file, whatever encoding it was saved in."""

import codecs
import json
import re

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import plural

MAX_CHARACTER_BYTES = 4
"""Of one character: in a growing file the last may be cut in two."""
MIN_ZERO_SHARE = 0.4
"""Of every other byte: where more are zero, two bytes make a character."""
MAX_CONTROL_SHARE = 0.01
"""Of control characters in a text, besides zero bytes and those of terminals."""
ZERO_BYTES = "zero bytes"
"""In the remark on a file that was cut by a crash."""
HEAD = 4096
_CONTROL = re.compile(b"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
UTF_8 = "utf-8-sig"


def decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and remarks if its encoding was guessed or a crash left zero bytes in it.

    Raises
    ------
    ToposcopeError
        If it is no text.
    """
    text, remarks = _text(content)
    if "\0" not in text:
        return text, remarks
    if not text.strip("\0\ufeff \r\n\t"):
        raise ToposcopeError(f"it holds {ZERO_BYTES} alone, as a crash leaves")
    whole, lost = _without_zero_bytes(text)
    return whole, (*remarks, lost)


def _without_zero_bytes(text: str) -> tuple[str, str]:
    """Return the lines without zero bytes, which a crash leaves for what it had not written, and a remark.

    Of a document of JSON whose lines are no records, only what comes before the first zero byte is left.
    """
    number = text.count("\n", 0, text.index("\0")) + 1
    lost = f"{plural(text.count(chr(0)), 'zero byte', ZERO_BYTES)} from line {number} on, as a crash leaves: "
    text = text.lstrip("\0\ufeff")
    lines = [line for line in text.split("\n") if "\0" not in line]
    if text.lstrip()[:1] in ("[", "{"):
        before, _, after = text.partition("\0")
        if not after.strip("\0 \r\n\t") and before.rstrip()[-1:] in ("]", "}"):
            return before, f"{lost}ignored"
        if not any(_is_record(line) for line in lines[:3]):
            return before, f"{lost}ignored with what comes after"
    return "\n".join(lines), f"{lost}ignored with the lines they are on"


def _is_record(line: str) -> bool:
    """Return whether a line is a value of JSON of its own, or one in a list."""
    try:
        return isinstance(json.loads(line.strip().strip("[],")), dict)
    except (ValueError, RecursionError):
        return False


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
