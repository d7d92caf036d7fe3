"""What commands print and open: tables, JSON, errors, the place of a page or figure."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.options import is_folder

if TYPE_CHECKING:
    from toposcope.charts import Chart
    from toposcope.study.tables import Unit

MAX_ERRORS_SHOWN = 10
TABLE_WIDTH = 200  # characters in a line of a table that goes to a file or another program
MAX_DRAWN_ROWS, MAX_PADDED = 2000, 60
"""Rows of a table with a frame; characters to which a column of a longer one is padded."""
REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """Print a table: numbers with six digits, nothing for None; a long one in plain columns, which takes less time."""
    from rich.console import Console
    from rich.table import Column, Table

    cells = [tuple(f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row) for row in rows]
    if len(cells) > MAX_DRAWN_ROWS:
        widths = [min(max(map(len, column)), MAX_PADDED) for column in zip(columns, *cells, strict=True)]
        for row in (columns, *cells):
            click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    # Names come from files of the user; brackets in them are not markup.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH, markup=False, emoji=False)
    table = Table(*(Column(name, overflow="fold") for name in columns), title=title)
    for row in cells:
        table.add_row(*row)
    console.print(table)


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


def finite_or_null(value: Any) -> Any:
    """Return a value as JSON can hold it, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite_or_null(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_out(out: Path, write_page: Callable[[Path], Path], chart: Callable[[], Chart]) -> str:
    """Write the page into the folder that ``--out`` names, or the chart into a file; return a line that says where."""
    if is_folder(out):
        return f"page: {write_page(out).resolve()}"
    chart().save(str(out))
    return f"figure: {out}"


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
