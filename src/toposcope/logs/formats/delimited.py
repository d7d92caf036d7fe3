"""CSV, and the same with tabs or semicolons."""

import csv
import re
from pathlib import Path

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import RawLog

ENDINGS = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t", "|")
_CUT_EXPONENT = re.compile(r"([eE][+-]?\d?|[.+-])$")


def looks_like(head: bytes) -> bool:
    """Return whether a file could be a table: text, with a separator in its first line."""
    try:
        first = head.decode("utf-8-sig", errors="strict" if len(head) < 100 else "ignore").partition("\n")[0]
    except UnicodeDecodeError:
        return False
    return b"\0" not in head and any(separator in first for separator in SEPARATORS)


def runs(path: Path) -> list[RawLog]:
    """Return the table of a file, every column as text."""
    return parse(path.read_bytes(), path)


def parse(content: bytes, source: Path) -> list[RawLog]:
    """Return the table in the content of a file."""
    if not content.strip():
        raise ToposcopeError("the file is empty")
    if b"\0" in content:
        raise ToposcopeError("not a table of text (it holds zero bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # in a growing log, the last character may be cut in two
        if error.start < len(content) - 4:
            raise ToposcopeError("not UTF-8 text; save it as such") from error
        text = content[: error.start].decode("utf-8-sig")
    text, remarks = _whole_lines(text)
    header = text.partition("\n")[0]
    separator = max(SEPARATORS, key=header.count)
    try:
        table = pl.read_csv(text.encode(), separator=separator, infer_schema=False, truncate_ragged_lines=True)
    except pl.exceptions.PolarsError as error:
        raise ToposcopeError(f"not a table with {separator!r} between columns; a quote may not be closed") from error
    if separator == ";":
        # with semicolons between the columns, a comma may stand before the decimals
        table = table.with_columns(pl.all().str.replace(r"^\s*([+-]?\d+),(\d+(?:[eE][+-]?\d+)?)\s*$", "$1.$2"))
    return [RawLog(source, "", table, remarks=remarks)]


def _whole_lines(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text without a last line that was cut in the middle."""
    body, _, last = text.rpartition("\n")
    if not body or not last.strip():
        return text, ()
    lines = body.split("\n")
    separator = max(SEPARATORS, key=lines[0].count)
    header, fields = (next(csv.reader([line], delimiter=separator), []) for line in (lines[0], last))
    before = [line.rstrip("\r").rpartition(separator)[2].strip('"') for line in lines[1:]]
    if len(fields) < len(header) or last.count('"') % 2 or (before and _is_cut(fields[-1], before)):
        return body + "\n", ("the last line was cut in the middle: ignored",)
    return text, ()


def _is_cut(number: str, before: list[str]) -> bool:
    """Return whether a number may have lost its end, beside those above it: 3.1 of 3.1415, 3e-0 of 3e-05, 1 of 10."""
    if before[-1].isdigit():
        return len(number) < len(before[-1])
    return len(number) < min(map(len, before)) or _CUT_EXPONENT.search(number) is not None
