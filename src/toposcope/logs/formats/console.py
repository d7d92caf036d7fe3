"""Console logs: what a training script or the cells of a notebook printed, line by line or as tables."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import COLUMN_NAMES, LOSSES, identify_columns
from toposcope.logs.console_lines import EPOCH, LABEL, RANK, STEP, kind_of, without_cut_end
from toposcope.logs.console_rows import Reading, read_lines
from toposcope.logs.formats import tables
from toposcope.logs.raw import RawLog, join_names, one_line, plural
from toposcope.logs.texts import decoded

MIN_NUMBERS = 0.5  # share of the cells of a row of a table that are numbers
MIN_LOSSES = 5  # rows with a loss; with fewer in sentences, there may be more in a table
MAX_STRANGE = 0.1  # share of characters that cannot be printed, in a text; those of another encoding are among them

_CELLS = (re.compile(r"\s*\|\s*"), re.compile(r"\s*\t\s*"), re.compile(r"\s{2,}"), re.compile(r"\s+"))
"""What stands between cells, the surest first."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf|no log", re.IGNORECASE)
_RULE = re.compile(r"[\s|:=+─━-]*")  # a line drawn between names and numbers
_PROGRESS = re.compile(r":\s*\d+%.*$")
MAX_WORDS = 40  # of a header whose names have several words
ENDINGS = (".ipynb",)
TEXTS = (".log", ".out", ".txt", ".err")
"""Endings of the files of a folder that are looked into, where it has no other log."""
SURE = True
PATTERN_HINT = "; say where it is with --pattern 'REGEX' with groups (?P<step>...) and (?P<loss>...)"
HEAD = 100  # lines by which a table without names is recognised
MAX_LINE = 50_000  # characters of a line; what takes longer to match than to print is none of a log
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
"""Colours, movements of the cursor and titles of a terminal."""
_AFTER_BAR = re.compile(r"(?<=(?:it/s|s/it)\])(?=\{)")  # between a bar and what was printed into its line
_BACK = re.compile(r"\x08+")
_BAR = re.compile(r"(?<=%)\|[^|\n]*\||\[[=>.\- #]{3,}\]|[━╸╺─█▉▊▋▌▍▎▏]{2,}")  # what a progress bar draws
_NOTEBOOK_BAR = re.compile(r"\[ *\d+/(\d+) [\d:]+ *[,<]")
_ROW_END, _CELL_END = re.compile(r"</tr>", re.IGNORECASE), re.compile(r"</t[dh]>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_BAR_SIGNS = ("%|", "[=", "[>", "[.", "[-", "━", "█")


def read_tables(lines: Sequence[str]) -> Reading:
    """Return the table of the text whose header names most quantities that are known; its header may be repeated."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    header: tuple[str, ...] = ()
    above = ""
    for line in lines:
        line = _PROGRESS.sub("", line)
        if _RULE.fullmatch(line):
            continue
        cells = _cells(line, len(header)) if header else []
        if len(cells) == len(header) > 1 and _is_row(cells):
            tables[header].append(cells)
            continue
        if (first := _is_row_of_numbers(line)) and above and (names := _header(above, first)):
            header = names
            cells = _cells(line, len(header))
            if len(cells) == len(header):
                tables.setdefault(header, []).append(cells)
        else:
            header = ()
        above = line
    best = max(tables, key=lambda names: (_n_known(names), len(tables[names])), default=())
    rows = tables.get(best, [])
    missing = ("", "no log")
    columns = {
        name: [None if row[i].lower() in missing else row[i] for row in rows] for i, name in enumerate(best) if name
    }
    return Reading(columns, {})


def _n_known(names: Sequence[str]) -> int:
    return sum(bool(kind_of(name)) for name in names)


def _is_row(cells: Sequence[str]) -> bool:
    return sum(_NUMBER.fullmatch(cell) is not None for cell in cells) > MIN_NUMBERS * len(cells)


def _is_row_of_numbers(line: str) -> int:
    cells = _cells(line, 0)
    return len(cells) if len(cells) > 1 and _is_row(cells) else 0


def _cells(line: str, n: int) -> list[str]:
    """Return the cells of a line: in the first way that gives `n`, if any; else in the surest that gives several."""
    text = line.strip()
    text = text[1:-1].strip() if text.startswith("|") and text.endswith("|") and len(text) > 1 else text
    splits = [separator.split(text) for separator in _CELLS if separator.search(text)]
    return next((cells for cells in splits if len(cells) == n), splits[0] if splits else [text])


def _header(line: str, n: int) -> tuple[str, ...]:
    """Return the `n` names of a line; nothing if it is no header with a name that is known."""
    cells = _cells(line, n)
    if len(cells) != n and len(line.split()) <= MAX_WORDS:
        cells = _grouped(line.split(), n)
    names = tuple(cell.strip("*_` ") for cell in cells)
    letters = all(any(c.isalpha() for c in name) or not name for name in names)
    return names if len(set(names)) == len(names) == n and letters and _n_known(names) else ()


def _grouped(words: list[str], n: int) -> list[str]:
    """Return words as `n` names of one word or several, of which as many as possible are known."""
    best: dict[tuple[int, int], tuple[int, list[str]]] = {(0, 0): (0, [])}
    for k in range(1, n + 1):
        for end in range(k, len(words) + 1):
            options = [
                (best[k - 1, start][0] + bool(kind_of(name)), [*best[k - 1, start][1], name])
                for start in range(k - 1, end)
                if (k - 1, start) in best and (name := " ".join(words[start:end]))
            ]
            if options:
                best[k, end] = max(options, key=lambda option: option[0])
    return best.get((n, len(words)), (0, []))[1]


def looks_like(head: bytes) -> bool:
    """Return whether a file could be a console log: text that begins neither as JSON nor as a table."""
    text = _decoded(head)[0].strip()
    strange = sum(not (c.isprintable() or c.isspace() or c in "\x1b\x08") or c == "\ufffd" for c in text)
    return bool(text) and strange <= MAX_STRANGE * len(text) and not _is_json(text) and not _is_table(text)


def _is_json(text: str, *, first: bool = True) -> bool:
    """Return whether a text is the beginning of JSON, or of values of it: whole, or in order up to where it was cut."""
    if text[:1] not in ("{", "["):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        # cut inside a string, the error is where the string begins
        return not rest.strip() or (error.msg.startswith("Unterminated") and "\n" not in rest)
    except RecursionError:
        return True
    line, _, more = text[end:].partition("\n")
    return not line.strip(" \r,") and (
        first is False or not more.strip() or _is_json(more.lstrip(" \r\n,"), first=False)
    )


def _is_table(text: str) -> bool:
    """Return whether the first lines are a header with a name that is known, and a row of as many cells."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) < 2:
        return False
    separator = max(tables.SEPARATORS, key=lines[0].count)
    header, row = next(csv.reader([lines[0]], delimiter=separator)), next(csv.reader([lines[1]], delimiter=separator))
    if len(header) < 2 or len(row) != len(header) or any(re.search(r"[:=]\s*\S|(?<![\w.])\d", c) for c in header):
        return False
    found = identify_columns(name for name in header if name.strip())
    return bool(found.losses or found.named.get("step"))


def runs(path: Path, columns: Mapping[str, str] | None = None) -> list[RawLog]:
    """Return what a file says of its run; `columns` are names of one's own by what they stand for."""
    content = path.read_bytes()
    content = _printed_in_cells(content) if path.suffix.lower() in ENDINGS else content
    if not columns:
        return parse(content, path)
    text = _decoded(content)[0]
    own: dict[str, str] = {}  # by the known names that they are read under
    for quantity, name in columns.items():
        if kind_of(name) != quantity and quantity in ("loss", *COLUMN_NAMES):
            known = LOSSES if quantity == "loss" else COLUMN_NAMES[quantity]
            alias = next((one for one in known if one not in text and len(one) > 1), known[0])
            text, n = re.subn(rf"(?<![\w/]){re.escape(name)}(?![\w/])", alias, text)
            own |= {alias: name} if n else {}
    raws = parse(text.encode(), path)
    own |= {quantity: name for quantity, name in columns.items() if quantity in (STEP, EPOCH)}  # as rows have them
    tables = [
        raw.table.rename({n: own[n] for n in raw.table.columns if n in own and own[n] not in raw.table.columns})
        for raw in raws
    ]
    return [replace(raw, table=table) for raw, table in zip(raws, tables, strict=True)]


def _printed_in_cells(content: bytes) -> bytes:
    """Return what the cells of a notebook printed and showed, a table with a tab after each of its cells."""
    notebook = json.loads(content)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ToposcopeError("no cells in it, which a notebook has")
    texts = []
    for output in (output for cell in cells if isinstance(cell, dict) for output in cell.get("outputs") or []):
        data = output.get("data") or {}
        if "text/html" in data:
            html = _joined(data["text/html"]).replace("\n", " ").replace("<table", "\n<table")
            texts.append(unescape(_TAG.sub("", _ROW_END.sub("\n", _CELL_END.sub("\t", html)))))
        else:
            texts.append(_joined(output.get("text") or data.get("text/plain") or ""))
    return "\n".join(texts).encode()


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def parse(content: bytes, source: Path) -> list[RawLog]:
    """Return what the content of a file says of its run."""
    text, lost = _decoded(content)
    if not text.strip():
        raise ToposcopeError("the file is empty")
    every = list(_lines(text))
    lines = [line for line in every if len(line) <= MAX_LINE]
    if len(lines) < len(every):
        lost = (
            *lost,
            f"{plural(len(every) - len(lines), 'line', 'lines')} of more than {MAX_LINE:,} characters: ignored",
        )
    if not lines:
        raise ToposcopeError(lost[-1])
    lines, cut = without_cut_end(lines) if text[-1] not in "\r\n" else (lines, ())
    found = read_lines(lines)
    if _n_losses(found) < MIN_LOSSES:
        table = read_tables(lines)
        if _n_losses(table) > _n_losses(found) or not found.columns:
            bar = _NOTEBOOK_BAR.search(text)  # above the table, it counts to the planned steps
            found = table._replace(facts=found.facts | ({"max_steps": bar[1]} if bar else {}))
    if not found.columns:
        without_words = [line for line in lines[:HEAD] if not any(c.isalpha() and c not in "eE" for c in line)]
        if len(without_words) > len(lines[:HEAD]) / 2:
            return tables.parse_table(content, source)
        n = plural(len(lines), "line", "lines")
        raise ToposcopeError(f"no loss, as in 'step 10: loss 4.2', and no table with a header in its {n}{PATTERN_HINT}")
    if _n_losses(found) == 1 and len(lines) > 1:
        raise ToposcopeError(f"at most one of its {len(lines)} lines states a loss; a log states several")
    remarks = (*lost, *cut, *found.remarks)
    return [
        RawLog(
            source,
            "",
            pl.DataFrame(found.columns),
            found.facts,
            remarks,
            one_run=True,
            axis=found.axis,
            evidence=found.evidence,
        )
    ]


def _n_losses(found: Reading) -> int:
    columns = [found.columns[loss.name] for loss in identify_columns(found.columns).losses]
    return max((len(column) - column.count(None) for column in columns), default=0)


def parse_pattern(content: bytes, source: Path, pattern: str) -> list[RawLog]:
    """Return the groups of a pattern in the lines that match it, a column each, in time linear in the text."""
    lines = pl.Series("line", list(_lines(_decoded(content)[0])), dtype=pl.String)
    try:
        groups = lines.str.extract_groups(pattern).struct.unnest()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ToposcopeError(
            f"--pattern is no regular expression that can be used ({one_line(error)}); look-around and references to "
            "groups are not supported"
        ) from error
    names = [name for name in groups.columns if not name.isdigit()]
    if not names:
        raise ToposcopeError("--pattern names no group; write them as (?P<step>[0-9]+) and (?P<loss>[0-9.]+)")
    rows = groups.select(names).filter(~pl.all_horizontal(pl.all().is_null()))
    if rows.is_empty():
        raise ToposcopeError(f"--pattern matches none of the {len(lines)} lines (groups {join_names(names)})")
    return [RawLog(source, "", rows)]


def _decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the text, with a sign for each character that cannot be read: no number is one; and remarks."""
    try:
        return decoded(content)
    except ToposcopeError:
        return content.decode("utf-8-sig", errors="replace"), ()


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text as a terminal would have shown them one after the other, without empty ones."""
    if "\x1b" in text or "\x08" in text:
        text = _ESCAPES.sub("", _BACK.sub("\n", text))
    for line in _parts(text):
        if line and not line.isspace():
            yield _BAR.sub(" | ", line) if any(map(line.__contains__, _BAR_SIGNS)) else line


def _parts(text: str) -> Iterator[str]:
    """Yield lines, and what stood in a line one after the other, each with the process before it."""
    for line in _AFTER_BAR.sub("\n", text.replace("\r\n", "\n")).split("\n"):
        if "\r" not in line:
            yield line
            continue
        rank = RANK.match(line) or LABEL.match(line)
        first, *rest = line.split("\r")
        yield first
        yield from (f"{rank[0]} {part}" if rank else part for part in rest)
