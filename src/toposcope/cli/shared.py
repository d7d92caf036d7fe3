"""What several commands use: progress bars, the two kinds of failure, probes from text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from toposcope.progress import Progress
    from toposcope.study.store import Unit

workers_option = click.option(
    "--workers", type=click.IntRange(min=1), help="Processes; all processors if left out. Results do not depend on it."
)
FIRST_ERRORS = 10
WIDE = 200
"""Columns of a table that goes to a file or another program."""


class BadUse(click.ClickException):
    """A mistake in what the user declared."""

    exit_code = 2


@contextmanager
def bad_use() -> Iterator[None]:
    """Turn an error in what the user declared into exit code 2."""
    try:
        yield
    except ToposcopeError as error:
        raise BadUse(str(error)) from error


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show a bar for each thing under way, on standard error; without a terminal, a line as it begins and ends."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:
        tasks: dict[str, Any] = {}
        totals: dict[str, int] = {}
        begun: set[str] = set()

        def progress(what: str, done: int, total: int) -> None:
            if totals.get(what) != total:
                # A later stage of the same name (a second wave of measuring) begins anew.
                if what in tasks:
                    display.remove_task(tasks[what])
                tasks[what], totals[what] = display.add_task(what, total=total), total
                begun.add(what)
                if not console.is_terminal:
                    click.echo(f"{what}: begun, {total} to do", err=True)
            display.update(tasks[what], completed=done)
            if done == total and not console.is_terminal and what in begun:
                begun.remove(what)
                click.echo(f"{what}: done", err=True)

        yield progress


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """Print a table; numbers to six digits, what is absent as nothing."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row))
    console.print(table)


def tell_errors(errors: Mapping[Unit, str], directory: Path | None) -> None:
    """Print what failed, a line each, and exit with 1 if anything did; `directory` is that of a study that stays."""
    if not errors:
        return
    # What follows from another line is not told again.
    causes = {unit: message for unit, message in errors.items() if "not taken over the network" not in message}
    shown = FIRST_ERRORS if directory else len(causes)
    for unit, message in list(causes.items())[:shown]:
        place = unit.run if unit.step < 0 else f"{unit.run} step {unit.step}"
        click.echo(f"error: {place}: {unit.probe}: {message}", err=True)
    if len(causes) > shown:
        more = len(causes) - shown
        click.echo(f"error: and {more} more; all of them: toposcope study status {directory}", err=True)
    raise click.exceptions.Exit(1)


def parse_options(text: str, what: str) -> dict[str, Any]:
    """Read ``a=1,b=true`` with TOML values; a value that is none is taken as text."""
    import tomllib

    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise click.BadParameter(f"{what}: expected option=value, got {part!r}")
        try:
            options[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = value
    return options
