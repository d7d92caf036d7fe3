"""Tables in a text: a line of names, and lines of as many numbers below it."""

import re
from collections.abc import Sequence

from toposcope.logs.console_lines import kind_of
from toposcope.logs.console_rows import Reading

_CELLS = (re.compile(r"\s*\|\s*"), re.compile(r"\s*\t\s*"), re.compile(r"\s{2,}"), re.compile(r"\s+"))
"""What stands between cells, the surest first."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf|no log", re.IGNORECASE)
_RULE = re.compile(r"[\s|:=+─━-]*")
"""A line drawn between names and numbers."""
_PROGRESS = re.compile(r":\s*\d+%.*$")
MAX_WORDS = 40
"""Of a header whose names have several words."""
MIN_NUMBERS = 0.5
"""Share of the cells of a row that are numbers."""


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
    columns = {name: [_value(row[i]) for row in rows] for i, name in enumerate(best) if name}
    return Reading(columns, {})


def _n_known(names: Sequence[str]) -> int:
    return sum(bool(kind_of(name)) for name in names)


def _value(cell: str) -> str | None:
    return None if cell.lower() in ("no log", "") else cell


def _is_row(cells: Sequence[str]) -> bool:
    return sum(_NUMBER.fullmatch(cell) is not None for cell in cells) > MIN_NUMBERS * len(cells)


def _is_row_of_numbers(line: str) -> int:
    """Return how many cells a line of numbers has; 0 if it is none."""
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
