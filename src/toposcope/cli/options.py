"""Options that several commands have, and mistakes in them: exit code 2 and a line that names the option."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from toposcope.errors import ToposcopeError

if TYPE_CHECKING:
    from toposcope.checkpoints import Access, Series
    from toposcope.study.declaration import DeclaredSeries

EXISTING, PLACE = click.Path(exists=True, path_type=Path), click.Path(path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
MAX_ROUNDING = 1e-14  # relative, of a number that is whole: 1.1k is 1100.0000000000002
Command = Callable[..., None]
Decorator = Callable[[Command], Command]
INTERRUPTED = 130  # exit code after Ctrl-C, as of shells: 128 and the number of SIGINT
FIGURE_ENDINGS = (".svg", ".png", ".pdf")


class Count(click.IntRange):
    """A whole number, such as a number of steps: also ``12k``, ``1.5M``, ``1e4`` or ``12,000``."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the number; a text that is none is bad use."""
        try:
            return super().convert(whole_number(str(value)), parameter, context)
        except ValueError:
            self.fail(f"{value!r} is not a whole number, such as 12000, 12k or 1.5M.", parameter, context)


def whole_number(text: str) -> int:
    """Return the whole number that a text is, with or without a multiple; raise ValueError if it is none."""
    try:
        return int(text)
    except ValueError:
        from toposcope.logs.raw import size_of

        number = size_of(text)
        if not number < 1 << 63 or abs(number - round(number)) > MAX_ROUNDING * number:
            raise
        return round(number)


COUNT, ABOVE_0 = Count(min=1), click.FloatRange(min=0, min_open=True)


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


def defaulted_option(*flags: str, **settings: Any) -> Decorator:
    """Return an option whose help shows its default."""
    return click.option(*flags, show_default=True, **settings)


def choice_option(*flags: str, choices: Sequence[str], **settings: Any) -> Decorator:
    """Return an option with one of several values, by default the first."""
    return defaulted_option(*flags, type=click.Choice(choices), default=choices[0], **settings)


def repeated_option(*flags: str, help: str, **settings: Any) -> Decorator:
    """Return an option that may be given several times, as its help says."""
    return click.option(*flags, multiple=True, help=f"{help.rstrip('.')}; repeatable.", **settings)


workers_option: Decorator = click.option(
    "--workers", type=COUNT, help="Number of processes (default: all processors). Results do not depend on it."
)


def _engine(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if name not in ("pool", "ray") and not name.startswith("ray://"):
        raise click.BadParameter(f"{name!r}: choose pool, ray or ray://ADDRESS")
    return name


engine_option: Decorator = defaulted_option(
    "--engine",
    default="pool",
    callback=_engine,
    metavar="pool|ray|ray://ADDRESS",
    help="Where tasks run: processes of this machine, or a Ray cluster.",
)


def is_folder(out: Path) -> bool:
    """Return whether ``--out`` names the folder of a page, not a figure."""
    return out.is_dir() or not out.suffix


def _figure(_context: click.Context, _parameter: click.Parameter, out: Path | None) -> Path | None:
    """Refuse an ``--out`` that is no figure."""
    if out is not None and out.suffix.lower() not in FIGURE_ENDINGS:
        raise BadUse(f"--out {out}: a figure ends in {', '.join(FIGURE_ENDINGS)}")
    return out


def _page_or_figure(_context: click.Context, _parameter: click.Parameter, out: Path | None) -> Path | None:
    """Refuse an ``--out`` that is neither the folder of a page nor a figure."""
    if out is None:
        return None
    endings = ", ".join(FIGURE_ENDINGS)
    if not is_folder(out) and out.suffix.lower() not in FIGURE_ENDINGS:
        raise BadUse(f"--out {out}: a figure ends in {endings}; the name of a new folder has no dot")
    if not out.suffix and out.is_file():
        raise BadUse(f"--out {out}: this is a file; name a new folder, or a figure that ends in {endings}")
    return out


json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
page_option: Decorator = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write the page to."
)
page_or_figure_option: Decorator = click.option(
    "--out", type=PLACE, callback=_page_or_figure, help="Folder for the page, or a figure: .svg, .png, .pdf."
)
figure_option: Decorator = click.option(
    "--out", type=PLACE, callback=_figure, help="Figure to write: .svg, .png, .pdf."
)
tokenizer_option: Decorator = click.option(
    "--tokenizer",
    default="",
    metavar="PLACE",
    help="Tokenizer to use instead of the model's: a tokenizer.json, its folder, hf:owner/name, or characters.",
)


def resolved_place(spec: str, option: str, names: tuple[str, ...]) -> str:
    """Return the value of an option, with a path made absolute; refuse a path that does not exist."""
    from toposcope.checkpoints.sources import is_remote

    if not spec or spec in names or is_remote(spec):
        return spec
    path = Path(spec).expanduser()
    if not path.exists():
        raise BadUse(f"{option} {spec}: no such file or folder")
    return str(path.absolute())


def column_option(example: str) -> Decorator:
    """Return ``--column``, whose pairs `columns_of` reads."""
    text = f"Meaning of a column whose name is not recognised, such as {example}."
    return repeated_option("--column", "columns", metavar="WHAT=NAME", help=text)


def log_options(command: Command) -> Command:
    """Add ``--column``, ``--unit``, ``--pattern``, ``--every``; the command takes them as ``reading``."""

    @column_option("loss=ce")
    @click.option("--unit", metavar="UNIT", help="Unit of the losses: nats, bits, 'bits per byte'.")
    @click.option(
        "--pattern",
        default="",
        metavar="REGEX",
        help="How to read the lines of a console log, with groups such as (?P<step>[0-9]+) and (?P<loss>[0-9.]+).",
    )
    @click.option("--every", type=COUNT, metavar="N", help="Steps between two rows, of a log that states no step.")
    @functools.wraps(command)
    def with_reading(
        *arguments: Any, columns: tuple[str, ...], unit: str | None, pattern: str, every: int | None, **options: Any
    ) -> None:
        reading = {"columns": columns_of(columns), "unit": unit, "pattern": pattern, "every": every or 0}
        command(*arguments, reading=reading, **options)

    return with_reading


def columns_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return the names of columns by their meaning."""
    columns = {}
    for pair in pairs:
        what, equals, name = pair.partition("=")
        if not equals or not what.strip() or not name.strip():
            raise BadUse(f"--column {pair}: expected WHAT=NAME, such as loss=ce")
        columns[what.strip()] = name.strip()
    return columns


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
            path=spec, name=name, tokenizer=tokenizer, step_pattern=self.step_pattern, **self._chosen()
        )

    def is_used(self) -> bool:
        """Return whether any option selects checkpoints or reads names."""
        return bool(self.steps or self.every or self.log_spaced or self.step_pattern or self.roles)

    def open(self, spec: str) -> Series:
        """Open a series; a mistake in what the user named is bad use."""
        from toposcope.checkpoints import series

        check_exists(spec)
        chosen = {**self._chosen(), "steps": self.steps or None}
        return series(spec, pattern=self.step_pattern, access=self.access, **chosen)

    def _chosen(self) -> dict[str, Any]:
        """Return what a series and its declaration name alike: the checkpoints to read, and the roles of layers."""
        return {name: getattr(self, name) for name in ("steps", "every", "log_spaced", "roles")}


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
    from toposcope.checkpoints.sources.merged import with_path

    for spec in specs:
        check_exists(spec)
    # A link has its own name, not its target's.
    absolute = [with_path(spec, os.path.abspath) for spec in specs]
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


def access_options(command: Command) -> Command:
    """Add ``--keep`` and ``--offline``; the command takes them as ``access``."""

    @defaulted_option(
        "--keep", default="lru:10GB", metavar="none|lru:SIZE|all", help="Size of the cache of fetched bytes."
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


def series_options(command: Command) -> Command:
    """Add the options with which a series is opened; the command takes them as ``opening``."""

    @click.option("--step-pattern", default="", metavar="REGEX", help="How a name gives its step: one group of digits.")
    @repeated_option("--role", "roles", metavar="REGEX=ROLE", help="Role of the tensors whose names match.")
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


def selection_options(command: Command) -> Command:
    """Add `series_options` and those that select checkpoints."""

    @click.option("--steps", default="", metavar="STEP,...", help="Use only these steps.")
    @click.option("--every", type=COUNT, metavar="N", help="Use only every N-th checkpoint, from the first on.")
    @click.option("--log-spaced", type=COUNT, metavar="N", help="Use only N checkpoints, evenly spaced in log(step).")
    @functools.wraps(command)
    def with_selection(
        *arguments: Any, opening: Opening, steps: str, every: int | None, log_spaced: int | None, **options: Any
    ) -> None:
        try:
            selected = [whole_number(step) for step in steps.split(",") if step.strip()]
        except ValueError as error:
            raise BadUse(f"--steps {steps}: expected whole numbers, such as 0,100,1k") from error
        selection = replace(opening, steps=selected, every=every or 0, log_spaced=log_spaced or 0)
        command(*arguments, opening=selection, **options)

    return series_options(with_selection)


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
