"""Shared by the commands: options, progress bars, tables, and the two kinds of failure."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from toposcope.checkpoints import Access, Series
    from toposcope.progress import Progress
    from toposcope.study.declaration import DeclaredSeries
    from toposcope.study.tables import Unit

workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Number of processes (default: all processors). Results do not depend on it.",
)


def _engine(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if name not in ("pool", "ray") and not name.startswith("ray://"):
        raise click.BadParameter(f"{name!r}: choose pool, ray or ray://ADDRESS")
    return name


engine_option = click.option(
    "--engine",
    default="pool",
    show_default=True,
    callback=_engine,
    metavar="pool|ray|ray://ADDRESS",
    help="Where tasks run: processes of this machine, or a Ray cluster.",
)
BYTE_STAGES = ("read", "examine")  # stages whose progress is in bytes
TIMED_STAGES = ("compile", "measure")  # stages whose progress is in milliseconds of expected work
PACED_STAGES = ("landscape", "eigenvectors")  # stages of few long parts: their pace is known soon after the first
SECONDS_BETWEEN_LINES = 30
INTERRUPTED = 130  # exit code after Ctrl-C, as of shells: 128 and the number of SIGINT
MAX_ERRORS_SHOWN = 10
MAX_SUMMARY = 200  # characters of the sentence that describes a command in a list
FIGURE_ENDINGS = (".svg", ".png", ".pdf")
TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""With one of them, Rich may find a terminal where the system finds none."""
TABLE_WIDTH = 200  # characters in a line of a table that goes to a file or another program
EXPERIMENTS = {"toposcope": ("grokking", "regularisation", "stopping"), "study": ("import",)}
"""Commands of the other distribution, by their group."""
MAX_DRAWN_ROWS, MAX_PADDED = 2000, 60
"""Rows of a table with a frame; characters to which a column of a longer one is padded."""


@dataclass(frozen=True)
class Opening:
    """The options with which a command opens its series."""

    step_pattern: str
    roles: dict[str, str]
    access: Access
    steps: list[int] = field(default_factory=list)
    every: int = 0
    log_spaced: int = 0

    def declared(self, spec: str, name: str, tokenizer: str = "") -> DeclaredSeries:
        """Return a series as a study declares it."""
        from toposcope.study.declaration import DeclaredSeries

        return DeclaredSeries(
            path=spec,
            name=name,
            steps=self.steps,
            every=self.every,
            log_spaced=self.log_spaced,
            step_pattern=self.step_pattern,
            roles=self.roles,
            tokenizer=tokenizer,
        )

    def is_used(self) -> bool:
        """Return whether any option selects checkpoints or reads names."""
        return bool(self.steps or self.every or self.log_spaced or self.step_pattern or self.roles)

    def open(self, spec: str) -> Series:
        """Open a series; a mistake in what the user named is bad use."""
        from toposcope.checkpoints import series

        check_exists(spec)
        return series(
            spec,
            steps=self.steps or None,
            every=self.every,
            log_spaced=self.log_spaced,
            pattern=self.step_pattern,
            roles=self.roles,
            access=self.access,
        )


def check_exists(spec: str) -> None:
    """Refuse a path that does not exist, with or without the key of one of several models."""
    from toposcope.checkpoints.series import split_key
    from toposcope.checkpoints.sources import is_remote, local_path

    with bad_use():
        path, _ = split_key(spec)
        if not is_remote(path) and not local_path(path).exists():
            raise BadUse(f"{spec}: no such file or folder")


def named_series(specs: tuple[str, ...], opening: Opening, tokenizer: str = "") -> list[DeclaredSeries]:
    """Name each series by the last parts of its path or address, as many as make the names differ."""
    from toposcope.checkpoints.sources import is_remote, local_path

    for spec in specs:
        check_exists(spec)
    # A link has its own name, not its target's.
    absolute = [spec if is_remote(spec) else os.path.abspath(local_path(spec)) for spec in specs]  # noqa: PTH100
    parts = [[unquote(part) for part in spec.replace("*", "").split("/") if part] for spec in absolute]
    longest = max(map(len, parts))
    for depth in range(1, longest + 1):
        names = ["-".join(names_of_spec[-depth:]).replace(":", "-") or "root" for names_of_spec in parts]
        if len(set(names)) == len(names):
            break
    else:
        raise click.BadParameter("the same series is given twice; drop one")
    from toposcope.study.declaration import shortened_name

    names = [shortened_name(name) for name in names]
    return [opening.declared(spec, name, tokenizer) for name, spec in zip(names, absolute, strict=True)]


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--keep`` and ``--offline``; the command takes them as ``access``."""

    @click.option(
        "--keep",
        default="lru:10GB",
        show_default=True,
        metavar="none|lru:SIZE|all",
        help="Size of the cache of fetched bytes.",
    )
    @click.option("--offline", is_flag=True, help="Use only the cache, not the network.")
    @functools.wraps(command)
    def with_access(*arguments: Any, keep: str, offline: bool, **options: Any) -> None:
        from toposcope.checkpoints.sources import Access
        from toposcope.checkpoints.sources.range_cache import parse_keep

        with bad_use():
            access = Access(keep=parse_keep(keep), offline=offline)
        command(*arguments, access=access, **options)

    return with_access


def series_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options with which a series is opened; the command takes them as ``opening``."""

    @click.option("--step-pattern", default="", metavar="REGEX", help="How a name gives its step: one group of digits.")
    @click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="REGEX=ROLE",
        help="Role of the tensors whose names match; repeatable.",
    )
    @access_options
    @functools.wraps(command)
    def with_opening(
        *arguments: Any, step_pattern: str, roles: tuple[str, ...], access: Access, **options: Any
    ) -> None:
        from toposcope.checkpoints.roles import checked
        from toposcope.checkpoints.steps import step_pattern as compiled

        pairs = [text.rpartition("=") for text in roles]
        for text, (pattern, _, _) in zip(roles, pairs, strict=True):
            if not pattern:
                raise BadUse(f"--role {text}: expected REGEX=ROLE, such as 'mixer.*weight=mlp.in'")
        roles_by_pattern = {pattern: role for pattern, _, role in pairs}
        with bad_use():
            checked(roles_by_pattern)
            if step_pattern:
                compiled(step_pattern)
        command(*arguments, opening=Opening(step_pattern, roles_by_pattern, access), **options)

    return with_opening


def selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `series_options` and those that select checkpoints."""

    @click.option("--steps", default="", metavar="STEP,...", help="Use only these steps.")
    @click.option(
        "--every", type=click.IntRange(min=1), metavar="N", help="Use only every N-th checkpoint, from the first on."
    )
    @click.option(
        "--log-spaced",
        type=click.IntRange(min=1),
        metavar="N",
        help="Use only N checkpoints, evenly spaced in log(step).",
    )
    @functools.wraps(command)
    def with_selection(
        *arguments: Any, opening: Opening, steps: str, every: int | None, log_spaced: int | None, **options: Any
    ) -> None:
        try:
            selected = [int(step) for step in steps.split(",") if step.strip()]
        except ValueError as error:
            raise BadUse(f"--steps {steps}: expected whole numbers, such as 0,100,1000") from error
        selection = replace(opening, steps=selected, every=every or 0, log_spaced=log_spaced or 0)
        command(*arguments, opening=selection, **options)

    return series_options(with_selection)


class Commands(click.Group):
    """A group of commands that lists each with the whole of its first sentence.

    Those that `collect` returns join it when a command is asked for: a module with one can be imported by itself.
    """

    def __init__(
        self, *arguments: Any, collect: Callable[[], Mapping[str, click.Command]] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._collect = collect

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        self._complete()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        self._complete()
        return super().get_command(ctx, cmd_name)

    def _complete(self) -> None:
        if self._collect is not None:
            self.commands.update(self._collect())
            self._collect = None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one of the experiments that is not installed says how to install it."""
        name = args[0]
        if self.get_command(ctx, name) is None and name in EXPERIMENTS.get(self.name or "", ()):
            raise BadUse(f"{name}: this command comes with the experiments; pip install toposcope-experiments")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        listed = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(MAX_SUMMARY)) for name, command in listed])


def is_folder(out: Path) -> bool:
    """Return whether ``--out`` names the folder of a page, not a figure."""
    return out.is_dir() or not out.suffix


def check_out(out: Path | None) -> None:
    """Refuse an ``--out`` that is neither the folder of a page nor a figure."""
    if out is None:
        return
    endings = ", ".join(FIGURE_ENDINGS)
    if not is_folder(out) and out.suffix.lower() not in FIGURE_ENDINGS:
        raise BadUse(f"--out {out}: a figure ends in {endings}; the name of a new folder has no dot")
    if not out.suffix and out.is_file():
        raise BadUse(f"--out {out}: this is a file; name a new folder, or a figure that ends in {endings}")


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
    """Show a bar for each stage, on standard error, with its remaining time.

    Without a terminal, print a line when a stage starts and ends, and every half minute in between.
    """
    # Rich takes long to import. A process that was started without a standard error has none.
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (has_terminal or any(os.environ.get(name) for name in TERMINAL_VARIABLES)):
        yield _progress_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _progress_lines()
        return
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        TextColumn("{task.fields[progress]:>17}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as display:
        stages: dict[str, _Stage] = {}
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if _begins(stages, what, done, total):
                if what in tasks:
                    display.remove_task(tasks[what])
                tasks[what] = display.add_task(what, total=total, progress="", left="")
            stage = stages[what]
            display.update(tasks[what], completed=done, progress=stage.progress(done), left=stage.left(done))

        yield progress


def _progress_lines() -> Progress:
    """Return what prints a line when a stage starts, when it ends, and every half minute in between."""
    stages: dict[str, _Stage] = {}

    def progress(what: str, done: int, total: int) -> None:
        if _begins(stages, what, done, total):
            click.echo(f"{what}: started, {stages[what].to_do()}", err=True)
        if stages[what].is_due(done):
            click.echo(f"{what}: {stages[what].line(done)}", err=True)

    return progress


def _begins(stages: dict[str, _Stage], what: str, done: int, total: int) -> bool:
    """Return whether a stage starts, or one of the same name starts again, as a second wave of measuring does."""
    if what in stages and stages[what].total == total:
        return False
    stages[what] = _Stage(what, total)
    return True


@dataclass
class _Stage:
    """One stage of the work, and the words for its progress."""

    what: str
    total: int
    started: float = field(default_factory=monotonic)
    last_line: float = field(default_factory=monotonic)
    is_done: bool = False
    first: tuple[float, int] | None = None
    """When its first part was done, and how much that was."""
    is_paced: bool = False

    def to_do(self) -> str:
        """Return the amount of work, or for a timed stage how long it takes."""
        return (_duration(self.total / 1000) if self.what in TIMED_STAGES else self._amount(self.total)) + " to do"

    def progress(self, done: int) -> str:
        """Return the share or the amount that is done."""
        if self.what in TIMED_STAGES:
            return f"{100 * done // max(self.total, 1)}%"
        return f"{self._amount(done)}/{self._amount(self.total)}"

    def left(self, done: int) -> str:
        """Return the remaining time: as expected until a tenth is done, then from the speed so far."""
        if done >= self.total:
            return ""
        if self.what in PACED_STAGES:
            pace = self._pace(done)
            return f"{_duration(pace * (self.total - done))} left" if pace else ""
        if 10 * done >= self.total:
            return f"{_duration((monotonic() - self.started) * (self.total - done) / done)} left"
        return f"{_duration((self.total - done) / 1000)} left" if self.what in TIMED_STAGES else ""

    def _pace(self, done: int) -> float | None:
        """Return the seconds for each unit since the first part, in which all threads start, and none has ended."""
        now = monotonic()
        if self.first is None and done:
            self.first = now, done
        if self.first is None or done == self.first[1] or now - self.first[0] < self.first[0] - self.started:
            return None
        return (now - self.first[0]) / (done - self.first[1])

    def is_due(self, done: int) -> bool:
        """Return whether to print a line: at intervals, once at the end, and as soon as there is a pace."""
        if self.what in PACED_STAGES and done < self.total and not self.is_paced and self._pace(done):
            self.is_paced, self.last_line = True, monotonic()
            return True
        if done < self.total and monotonic() - self.last_line <= SECONDS_BETWEEN_LINES:
            return False
        was_done, self.last_line, self.is_done = self.is_done, monotonic(), done >= self.total
        return not was_done

    def line(self, done: int) -> str:
        """Return the progress and the remaining time."""
        return "done" if done >= self.total else ", ".join(filter(None, (self.progress(done), self.left(done))))

    def _amount(self, n: int) -> str:
        from rich.filesize import decimal

        return decimal(n) if self.what in BYTE_STAGES else str(n)


def _duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


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


def parse_options(text: str, what: str) -> dict[str, Any]:
    """Read ``a=1,b=true,c=[0.5,1]`` with TOML values; a value that is not TOML is taken as text."""
    import tomllib

    from toposcope.probes.feature import split_options

    options: dict[str, Any] = {}
    for part in split_options(text):
        key, equals, value = part.partition("=")
        if not equals:
            raise click.BadParameter(f"{what}: expected option=value, got {part!r}")
        try:
            options[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = value
    return options


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
