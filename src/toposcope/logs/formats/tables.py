"""Tables: CSV, the same with tabs, semicolons or bars, and Parquet."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.raw import MAX_COLUMNS, RawLog, one_line, parse_numbers, plural
from toposcope.logs.table import is_step
from toposcope.logs.texts import decoded

PARQUET = (".parquet", ".pq")
ENDINGS = (".csv", ".tsv", *PARQUET)
SEPARATORS = (",", ";", "\t", "|")
MAGIC = b"PAR1"  # of Parquet
MAX_CELLS = 500_000_000  # rows times columns; a Parquet file of a few bytes can hold any number of equal ones
LARGE, FIRST_BYTES = 1 << 26, 1 << 18  # bytes of a text whose first rows are looked at first, and of these rows
MAX_LINE = 1 << 22  # bytes of a line; with a name of 200 characters, `MAX_COLUMNS` take as many
ROWS_COMPARED = 5  # rows that have as many cells as the header
MIN_UNNAMED_ROWS = 2  # rows by which columns without names may be recognised
HYPERPARAMETERS = "hparams.yaml"
_PLAIN_VALUE = re.compile(r"^([\w./-]+): +([^\s&*!{[|>#][^\n]*)$", re.MULTILINE)
_COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*\n)+")
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?|[+-]?\d*\.\d+|nan|NaN|[+-]?inf")
_CUT_EXPONENT = re.compile(r"([eE][+-]?\d?|[.+-])$")


def looks_like(head: bytes) -> bool:
    """Return whether a file could be a table: Parquet, or text with a separator in its first line."""
    if head.startswith(MAGIC):
        return True
    try:
        first = decoded(head)[0].partition("\n")[0]
    except ToposcopeError:
        return False
    return any(separator in first for separator in SEPARATORS)


def runs(path: Path) -> list[RawLog]:
    """Return the table of a file: of text every column as such."""
    facts = hyperparameters(path.parent)
    found = parse_table(path.read_bytes(), path)
    return [replace(raw, facts=facts) for raw in found] if facts else found


def first_rows(path: Path) -> RawLog | None:
    """Return the first rows of a large table of text, which has all columns of the rest; None of any other file."""
    if path.stat().st_size < LARGE or path.suffix.lower() in PARQUET:
        return None
    with path.open("rb") as file:
        head, newline, _ = file.read(FIRST_BYTES).rpartition(b"\n")
    try:
        return parse_table(head + newline, path)[0]
    except ToposcopeError:  # reading all of it says why
        return None


def hyperparameters(folder: Path) -> dict[str, object]:
    """Return the plain values that Lightning's loggers write next to a log."""
    file = folder / HYPERPARAMETERS
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    return {name: value.strip("'\"") for name, value in _PLAIN_VALUE.findall(text)}


def _of_parquet(content: bytes) -> pl.DataFrame:
    """Return the table in a file of Parquet; nested columns are named as in ``train/loss``."""
    if not content:
        raise ToposcopeError("the file is empty")
    try:
        n_columns = len(pl.read_parquet_schema(io.BytesIO(content)))
        n_rows = int(pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item())
        if n_rows * n_columns > MAX_CELLS:
            raise ToposcopeError(f"{n_rows:,} rows of {n_columns} columns; a training log has fewer")
        table = pl.read_parquet(content)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ToposcopeError(f"truncated or not Parquet ({one_line(error)})") from error
    while nested := [name for name, dtype in table.schema.items() if isinstance(dtype, pl.Struct)]:
        for name in nested:
            fields = table[name].struct.unnest()
            fields = fields.rename({field: f"{name}/{field}" for field in fields.columns})
            table = table.drop(name).hstack(fields.drop(set(fields.columns) & set(table.columns)))
    return table


def parse_table(content: bytes, source: Path) -> list[RawLog]:
    """Return the table in the content of a file, Parquet by its ending or its first bytes."""
    ending = source.suffix.lower()
    if ending in PARQUET or (ending not in ENDINGS and content.startswith(MAGIC)):
        return [RawLog(source, "", _of_parquet(content))]
    if not content.strip():
        raise ToposcopeError("the file is empty")
    for start in range(0, len(content) - MAX_LINE, MAX_LINE):  # a longer line has such a part without an end
        if not any(sign in content[start : start + MAX_LINE] for sign in (b"\n", b"\r")):
            raise ToposcopeError(f"a line of more than {MAX_LINE:,} bytes; a training log has shorter ones")
    text, encoding = decoded(content)
    del content  # of ten million rows, each copy takes half a gigabyte
    text = _in_lines(text)
    if text.startswith("sep="):  # a hint to Excel
        text = text.partition("\n")[2]
    text, remarks = _whole_lines(text)
    separator = _separator(text)
    text, header_remarks = _with_header(text, separator)
    header = text.partition("\n")[0]
    _refuse_longer_rows(text, header, separator)
    remarks = (*encoding, *remarks, *header_remarks)
    try:
        encoded = text.encode()
        del text
        table = pl.read_csv(encoded, separator=separator, infer_schema=False, truncate_ragged_lines=True)
    except pl.exceptions.PolarsError as error:
        raise ToposcopeError(f"not a table with {separator!r} between columns; a quote may not be closed") from error
    if header.count(separator) > MAX_COLUMNS:
        raise ToposcopeError(f"{header.count(separator):,} columns; a training log has fewer")
    counts = Counter(next(csv.reader([header.rstrip("\r")], delimiter=separator), []))
    twice = [name for name, count in counts.items() if count > 1 and name]
    if twice:
        remarks = (*remarks, f"several columns are called {', '.join(map(one_line, twice))}: the first of each is read")
    table, repeated = _without_headers(table)
    if ",".join(table.columns).lower() == "wall time,step,value":  # of TensorBoard, which names the file
        table = table.rename({table.columns[-1]: source.stem.rpartition("tag-")[2]})
    return [RawLog(source, "", table, remarks=(*remarks, *repeated))]


def _refuse_longer_rows(text: str, header: str, separator: str) -> None:
    """Refuse rows with more cells than the header has names: a column was added, or commas are decimal."""
    if '"' in text:
        return
    n = header.rstrip(f"\r{separator}").count(separator)
    for number, line in enumerate(_lines(text)):
        if line.count(separator) > n and (cells := line.rstrip(f"\r {separator}").count(separator)) > n:
            raise ToposcopeError(
                f"row {number} has {cells + 1} cells under {n + 1} names: {one_line(line)}; a column was added, or "
                "commas stand for both decimals and columns"
            )


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, of which a list would take several times its memory."""
    begin = 0
    while (end := text.find("\n", begin)) >= 0:
        yield text[begin:end]
        begin = end + 1
    yield text[begin:]


def _in_lines(text: str) -> str:
    """Return a text with line ends of one kind, separators in its header, and no comments before it."""
    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    comments = _COMMENTS.match(text)
    if comments:
        last = comments.group().rstrip().rpartition("\n")[2].lstrip("# ")
        rest = text[comments.end() :]
        # of `# step loss`, a line of names above numbers, the names are kept
        text = f"{last}\n{rest}" if rest[:1] in "0123456789+-." else rest
    header, _, after = text.partition("\n")
    n = len(header.split())
    if n > 1 and not any(sign in header for sign in SEPARATORS) and len(after.partition("\n")[0].split()) == n:
        text = "\n".join(",".join(line.split()) for line in text.split("\n"))
    return text


def _separator(text: str) -> str:
    """Return the sign between columns: as often in the first rows as in the header, whose names may hold the others."""
    header, *rows = (line.rstrip("\r") for line in text.split("\n", ROWS_COMPARED + 1)[: ROWS_COMPARED + 1])
    signs = SEPARATORS[1:] if not re.search(r"[^\W\d_]", header) and re.search(r"[;\t|]", header) else SEPARATORS
    rows = [row for row in rows if row.strip()]

    def cells(line: str, sign: str) -> int:
        return len(next(csv.reader([line], delimiter=sign), [])) if '"' in line else line.count(sign) + 1

    def fits(sign: str) -> bool:
        n = cells(header, sign)
        return n > 1 and bool(rows) and all(cells(row, sign) == n for row in rows)

    return max(signs, key=lambda sign: (fits(sign), header.count(sign)))


def _with_header(text: str, separator: str) -> tuple[str, tuple[str, ...]]:
    first = [cell.strip().strip('"') for cell in text.partition("\n")[0].split(separator)]
    if not all(_NUMBER.fullmatch(cell) for cell in first):
        return text, ()
    lines = text.split("\n")
    if first == [str(i) for i in range(len(first))] and len(first) > 1:  # names by pandas
        lines = lines[1:]
    table = pl.read_csv("\n".join(lines).encode(), separator=separator, has_header=False, infer_schema=False)
    columns = [parse_numbers(column).values for column in table]
    ascend = [bool(len(values) > 1 and is_step(values).all() and (np.diff(values) > 0).all()) for values in columns]
    names = {(False,): ["loss"], (True, False): ["step", "loss"]}.get(tuple(ascend))
    if len(table) < MIN_UNNAMED_ROWS or (names == ["loss"] and is_step(columns[0]).all()):
        names = None
    if names is None:
        shown = one_line(", ".join(first))
        raise ToposcopeError(
            f"no header: the first line holds numbers ({shown}); write the names of the columns above it, such as "
            f"{separator.join(('step', 'loss', 'lr'))}"
        )
    return "\n".join([separator.join(names), *lines]), (f"no header: read as {' and '.join(names)}",)


def _without_headers(table: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    names = [name for name in table.columns if name]
    first = pl.col(table.columns[0]).str.strip_chars()
    suspects = table.with_row_index("row number").filter(first.is_in(names)) if names else table.clear()
    if not len(suspects):
        return table, ()
    for number, *cells in suspects.iter_rows():
        if [str(cell or "").strip() for cell in cells] != [name.strip() for name in table.columns]:
            other = one_line(", ".join(str(cell) for cell in cells))
            raise ToposcopeError(
                f"row {number + 1} is another header ({other}): write the two tables to a file of their own each"
            )
    n = len(suspects)
    return table.filter(~first.is_in(names) | first.is_null()), (
        f"{plural(n, 'row repeats', 'rows repeat')} the header: ignored",
    )


def _whole_lines(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text without a last line that was cut in the middle."""
    body, _, last = text.rpartition("\n")
    if not body or not last.strip():
        return text, ()
    first = body.partition("\n")[0]
    separator = _separator(first)
    header, fields = (next(csv.reader([line], delimiter=separator), []) for line in (first, last))

    def last_cell(line: str) -> str:
        return line.rstrip("\r").rpartition(separator)[2].strip('"')

    shortest = min((len(last_cell(line)) for line in islice(_lines(body), 1, None)), default=None)
    is_cut = shortest is not None and _is_cut(fields[-1], last_cell(body.rpartition("\n")[2]), shortest)
    if len(fields) < len(header) or last.count('"') % 2 or is_cut:
        return body + "\n", ("the last line was cut in the middle: ignored",)
    return text, ()


def _is_cut(number: str, before: str, shortest: int) -> bool:
    """Return whether a number may have lost its end, next to those above it: 3.1 of 3.1415, 3e-0 of 3e-05, 1 of 10."""
    if before.isdigit():
        return len(number) < len(before)
    return len(number) < shortest or _CUT_EXPONENT.search(number) is not None
