"""What commands print and open: tables, JSON, errors, the place of a page or figure."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.options import is_folder

if TYPE_CHECKING:
    from toposcope.charts import Chart
    from toposcope.study.tables import Unit

MAX_ERRORS_SHOWN = 10
TABLE_WIDTH = 200  # characters in a line of a table that goes to a file or another program, if its words fit
MAX_FRAMED_ROWS = 2000  # of a table with a frame
MAX_PADDED_WIDTH = 60  # to which a column of a longer table is padded
MIN_PROSE_WIDTH = 20  # of a column of sentences
REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """Print a table: numbers with six digits, nothing for None.

    Words are never cut. Where the longest ones do not fit next to each other, short columns go into several tables, and
    rows with sentences or long names become lines. A long table is in plain columns, which takes less time.
    """
    cells = [tuple(f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row) for row in rows]
    by_column = list(zip(columns, *cells, strict=True))
    full_widths = [max(map(_length, column)) for column in by_column]
    min_widths = [
        max(_longest_word(name), *(min(_length(c), max(_longest_word(c), MIN_PROSE_WIDTH)) for c in column), 0)
        for name, *column in by_column
    ]
    # without a terminal a table may be wider than most screens
    width = shutil.get_terminal_size((0, 0)).columns or max(TABLE_WIDTH, _table_width(min_widths))
    _print_wrapped(title, width)
    if len(cells) > MAX_FRAMED_ROWS and _table_width(min_widths) <= width:
        padded = [min(each, MAX_PADDED_WIDTH) for each in full_widths]
        for row in (columns, *cells):
            click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, padded, strict=True)).rstrip())
    elif groups := _column_groups(cells, min_widths, width):
        for group in groups:
            widths = _fitted([min_widths[i] for i in group], [full_widths[i] for i in group], width)
            _print_framed([columns[i] for i in group], [[row[i] for i in group] for row in cells], widths)
    else:
        for row in cells:
            for i, (name, cell) in enumerate(zip(columns, row, strict=True)):
                if cell:
                    _print_wrapped(f"{name}: {cell}", width, indent="  " if i else "")


def _table_width(widths: Sequence[int]) -> int:
    """Return the width of a table with these columns and the lines between them."""
    return sum(widths) + 3 * len(widths) + 1


def _column_groups(cells: Sequence[Sequence[str]], min_widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each table into which a wide one is cut, each with those that name a row; none if too wide.

    A table with sentences is not cut: they stay with what they are about.
    """
    places = list(range(len(min_widths)))
    if _table_width(min_widths) <= width:
        return [places]
    if max(min_widths[1:], default=0) >= MIN_PROSE_WIDTH:
        return []
    n_names = next((n for n in places if len({row[:n] for row in cells}) == len(cells)), len(places))
    names = places[:n_names]
    groups = [list(names)]
    for column in places[n_names:]:
        if len(groups[-1]) > n_names and _table_width([min_widths[i] for i in (*groups[-1], column)]) > width:
            groups.append(list(names))
        groups[-1].append(column)
    fits = all(_table_width([min_widths[i] for i in group]) <= width for group in groups)
    return groups if fits and names and len(groups[0]) > n_names else []


def _length(text: str) -> int:
    """Return the characters of a terminal that the longest line of a text takes; letters of some scripts take two."""
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)


def _longest_word(text: str) -> int:
    return max(map(_length, text.split()), default=0)


def _fitted(min_widths: Sequence[int], full_widths: Sequence[int], width: int) -> list[int]:
    """Narrow the widest columns, to their longest word at most, until the table fits."""
    widths = list(full_widths)
    while _table_width(widths) > width:
        widest = max((i for i in range(len(widths)) if widths[i] > min_widths[i]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _print_framed(columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    # Names come from files of the user: brackets in them are not markup. Without styles there is nothing to turn off.
    console = Console(width=_table_width(widths), color_system=None, markup=False, emoji=False)
    table = Table(*(Column(name, width=width) for name, width in zip(columns, widths, strict=True)))
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _print_wrapped(text: str, width: int, indent: str = "") -> None:
    wrapped = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=f"{indent}  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    click.echo("\n".join(wrapped))


def print_errors(errors: Mapping[Unit, str], directory: Path | None) -> None:
    """Print a line for each error, and exit with 1 if there is any.

    Where the study stays on disk, `directory` is its folder: the first errors are printed, and how to see the rest.
    """
    if not errors:
        return
    # Consequences of another error are not printed.
    causes = {unit: message for unit, message in errors.items() if "not taken over the network" not in message}
    n_shown = MAX_ERRORS_SHOWN if directory else len(causes)
    for unit, message in list(causes.items())[:n_shown]:
        place = unit.run if unit.step < 0 else f"{unit.run} step {unit.step}"
        click.echo(f"Error: {place}: {unit.probe}: {message}", err=True)
    if len(causes) > n_shown:
        more = len(causes) - n_shown
        click.echo(f"Error: and {more} more; to see all: toposcope study status {directory}", err=True)
    raise click.exceptions.Exit(1)


def print_json(values: Any) -> None:
    """Print values as one line of JSON, with null for numbers that are not finite."""
    click.echo(json.dumps(finite_or_null(values), sort_keys=True))


def print_report(to_dict: Callable[[], Any], print_text: Callable[[], None], *, as_json: bool, written: str) -> None:
    """Print a report as JSON or text, then the line that says where its page or figure is."""
    if as_json:
        print_json(to_dict())
    else:
        print_text()
    if written:
        click.echo(written, err=as_json)


def print_lines(lines: Iterable[object]) -> None:
    """Print sentences."""
    for line in lines:
        click.echo(line)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on an answer, on standard error."""
    for note in notes:
        click.echo(f"note: {note}", err=True)


def finite_or_null(value: Any) -> Any:
    """Return a value as JSON can hold it, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite_or_null(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(out: Path, chart: Chart) -> str:
    """Write the figure that ``--out`` names; return a line that says where."""
    chart.save(str(out))
    return f"figure: {out}"


def write_out(out: Path, write_page: Callable[[Path], Path], chart: Callable[[], Chart]) -> str:
    """Write the page into the folder that ``--out`` names, or the chart into a file; return a line that says where."""
    if is_folder(out):
        return f"page: {write_page(out).resolve()}"
    return save_figure(out, chart())


def open_page(page: Path) -> None:
    """Open a page if this machine has a screen and the command was typed at it; otherwise do nothing."""
    if is_at_a_screen():
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def is_at_a_screen() -> bool:
    """Return whether the output goes to a terminal on this machine, which has a screen; never in CI or over SSH."""
    if not sys.stdout.isatty() or os.environ.get("CI") or any(os.environ.get(name) for name in REMOTE):
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)
