"""``toposcope study run``, ``plan``, ``init`` and ``status``; further ones come by entry points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli import options
from toposcope.cli.group import Commands
from toposcope.cli.output import print_errors, print_lines, print_notes, print_table
from toposcope.cli.progress_bars import progress_bars
from toposcope.plugins import collect

if TYPE_CHECKING:
    from types import ModuleType

    from toposcope.checkpoints import Access
    from toposcope.study import Declaration


def _commands_of(module: ModuleType) -> dict[str, click.Command]:
    """Return the commands that a module of an entry point adds to the group."""
    return {str(item.name): item for item in vars(module).values() if isinstance(item, click.Command)}


@click.group(cls=Commands, collect=lambda: collect(__name__, "toposcope.study_commands", _commands_of))
def study() -> None:
    """Run a study, write its declaration, or show the status of one."""


@study.command()
@click.argument("places", nargs=-1, required=True, metavar="FILE.toml | SERIES...")
@click.option("--out", type=options.PLACE, help="Folder of the study (default: its name).")
@options.selection_options
@options.engine_option
@options.workers_option
def run(places: tuple[str, ...], out: Path | None, opening: options.Opening, engine: str, workers: int | None) -> None:
    """Train, measure, analyse and report what a TOML file declares, or series of checkpoints.

    Run it again to resume. A series is a folder of checkpoints, a URL, or revisions of a model on the hub, as for
    `toposcope measure`; the default probes measure it, into the folder NAME-study. So is a study's folder, such as the
    FILE.study that `toposcope measure --out FILE` leaves.

    \b
    Example:
      toposcope study run checkpoints/
      toposcope study run studies/quickstart.toml --out mine
    """
    with options.bad_use():
        declaration, directory = _declared(places, opening)
    run_and_report(declaration, out or directory, workers, engine=engine, access=opening.access)


@study.command()
@click.argument("places", nargs=-1, required=True, metavar="FILE.toml | SERIES...")
@options.selection_options
@options.json_option
def plan(places: tuple[str, ...], opening: options.Opening, as_json: bool) -> None:
    """Say what it takes to measure the series of a study: bytes to read, memory and hours, from a header of each.

    \b
    Example:
      toposcope study plan studies/pythia-suite.toml
    """
    from toposcope.study.planning import plan_study
    from toposcope.wording import short

    with options.bad_use():
        rows, notes = plan_study(_declared(places, opening)[0], opening.access)
    if as_json:
        click.echo(json.dumps({"series": [row._asdict() for row in rows], "notes": notes}))
        return
    columns = ("run", "checkpoints", "parameters analysed", "GB to read", "GB of memory", "hours on one core")
    cells = [(r.run, r.n_checkpoints, short(r.n_parameters), r.n_bytes / 1e9, r.memory / 1e9, r.hours) for r in rows]
    if cells:
        print_table(columns, [[*row[:3], *(f"{n:.3g}" for n in row[3:])] for row in cells], "What it takes to measure")
    print_notes(notes)


def _declared(places: tuple[str, ...], opening: options.Opening) -> tuple[Declaration, Path]:
    """Return a declaration and the default folder: of a TOML file, of a study that was begun, or of series."""
    from toposcope.study import load_declaration
    from toposcope.study.new_study import draft

    first = Path(places[0])
    begun = first / "study.toml"
    file = begun if begun.is_file() else first
    if file.suffix != ".toml" or len(places) > 1:
        declaration = draft(options.named_series(places, opening))
        return declaration, Path(declaration.name)
    if opening.is_used():
        raise options.BadUse(f"{file}: it declares which checkpoints are read; write the options of series there")
    declaration = load_declaration(file)
    return declaration, first if file is begun else Path(declaration.name)


@study.command()
@click.argument("series", nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write (default: NAME-study.toml)."
)
@options.selection_options
def init(series: tuple[str, ...], out: Path | None, opening: options.Opening) -> None:
    """Write the TOML file of a study of some series, to edit and run.

    \b
    Example:
      toposcope study init checkpoints/ --out mine.toml
    """
    from toposcope.files import write_text
    from toposcope.study.new_study import draft, draft_toml

    with options.bad_use():
        declaration = draft(options.named_series(series, opening))
        file = out or Path(f"{declaration.name}.toml")
        if file.exists():
            raise options.BadUse(f"{file}: exists already; choose another name with --out")
        for name, declared in declaration.named_series().items():
            opened = declared.open(opening.access)
            steps = f"steps {opened.steps[0]} to {opened.steps[-1]}" if len(opened) > 1 else f"step {opened.steps[0]}"
            click.echo(f"{name}: {len(opened)} checkpoints, {steps}")
    write_text(file, draft_toml(declaration, file))
    click.echo(f"{file}: edit it, or run it: toposcope study run {file}")


def run_and_report(
    declaration: Declaration,
    directory: Path,
    workers: int | None,
    *,
    engine: str = "pool",
    access: Access | None = None,
    measured: bool = True,
) -> None:
    """Run a study, write its report, and print its verdict and its path."""
    from toposcope.checkpoints import Access
    from toposcope.cli.report import is_up_to_date, report_of, write_and_print
    from toposcope.study import Study, run_study
    from toposcope.study.new_study import open_series

    access = access or Access()
    opened = open_series(declaration, directory, access)
    with progress_bars() as progress:
        errors = run_study(
            declaration,
            directory,
            workers=workers,
            engine=engine,
            access=access,
            opened=opened,
            measured=measured,
            progress=progress,
        )
    study = Study.load(directory)
    if errors and study.frame().is_empty():
        click.echo("no report: nothing could be measured")
    elif is_up_to_date(study):
        click.echo("Nothing to do: all that can be measured is measured, and the report is up to date.")
        click.echo(f"report: {report_of(study).resolve()}")
    else:
        write_and_print([directory], workers=workers)
    print_notes(study.notes())
    print_errors(errors, directory)


@study.command()
@click.argument("directory", type=options.FOLDER)
@options.json_option
def status(directory: Path, as_json: bool) -> None:
    """Show how far each run is and what failed. The exit code is 1 if anything did.

    \b
    Example:
      toposcope study status paper
    """
    from toposcope.cli.report import not_made
    from toposcope.study import Study

    opened = Study.load(directory)
    runs, errors = opened.progress(), opened.errors()
    if as_json:
        parts = {"runs": runs.to_dicts(), "errors": errors.to_dicts(), "not_made": not_made(opened)}
        click.echo(json.dumps({**parts, "notes": opened.notes()}))
    else:
        print_table(runs.columns, runs.iter_rows(), f"{opened.declaration.name} in {directory}")
        for error in errors.iter_rows(named=True):
            place = error["run"] if error["step"] < 0 else f"{error['run']} step {error['step']}"
            click.echo(f"Error: {place}: {error['probe']}: {error['message']}")
        print_lines(f"note: {note}" for note in opened.notes())
        print_lines(f"not made: {row['analysis']}: needs {row['lacks']}" for row in not_made(opened))
    if len(errors):
        raise click.exceptions.Exit(1)
