"""The text in a file, whatever encoding it was saved in."""

import codecs

from toposcope.errors import ToposcopeError

MAX_CHARACTER_BYTES = 4
"""Of one character: in a growing file the last may be cut in two."""
MIN_ZERO_SHARE = 0.4
"""Of every other byte: where more are zero, two bytes make a character."""
HEAD = 4096
UTF_8 = "utf-8-sig"


def decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file and a remark if its encoding was guessed.

    Raises
    ------
    ToposcopeError
        If it is no text.
    """
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
    if b"\0" in content:
        raise ToposcopeError("not text (it holds zero bytes)")
    return UTF_8
