"""``toposcope study run``, ``toposcope study import`` and ``toposcope study status``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.shared import (
    BadUse,
    access_options,
    bad_use,
    engine_option,
    print_errors,
    print_table,
    progress_bars,
    workers_option,
)

if TYPE_CHECKING:
    from toposcope.checkpoints import Access
    from toposcope.study import Declaration


@click.group()
def study() -> None:
    """Run a declared study, import a published one, or show the status of one."""


@study.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the study (default: its name).")
@access_options
@engine_option
@workers_option
def run(file: Path, out: Path | None, access: Access, engine: str, workers: int | None) -> None:
    """Train, measure, analyse and report what a TOML file declares. Run it again to resume.

    \b
    Example:
      toposcope study run studies/paper.toml --out paper
    """
    from toposcope.study import load_declaration

    with bad_use():
        declaration = load_declaration(file)
    run_and_report(declaration, out or Path(declaration.name), workers, engine=engine, access=access)


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
    from toposcope.cli.report import write_and_print
    from toposcope.study import Study, run_study

    with progress_bars() as progress:
        errors = run_study(
            declaration,
            directory,
            workers=workers,
            engine=engine,
            access=access,
            measured=measured,
            progress=progress,
        )
    write_and_print(directory)
    for note in Study.load(directory).notes():
        click.echo(f"note: {note}", err=True)
    print_errors(errors, directory)


@study.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the study (default: FOLDER-study).")
@workers_option
def import_published(folder: Path, out: Path | None, workers: int | None) -> None:
    """Import a published study from its own files, and report its published numbers.

    FOLDER may hold checkpoint folders with their training logs, JSON files of features by step, and a JSON file of
    correlations. Nothing is measured yet; `toposcope study run DIR/study.toml --out DIR` measures the checkpoints too.

    \b
    Example:
      toposcope study import published/ --out again
    """
    from toposcope.study.importing import import_study

    directory = out or Path(f"{folder.resolve().name}-study")
    with bad_use():
        if directory.resolve() == folder.resolve():
            raise BadUse(f"--out {directory}: this is the folder to import; choose another")
        imported = import_study(folder, directory)
    for note in imported.notes:
        click.echo(f"note: {note}", err=True)
    run_and_report(imported.declaration, directory, workers, measured=False)


@study.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(directory: Path, as_json: bool) -> None:
    """Show how far each run is and what failed. The exit code is 1 if anything did.

    \b
    Example:
      toposcope study status paper
    """
    from toposcope.study import Study

    opened = Study.load(directory)
    runs, errors = opened.progress(), opened.errors()
    if as_json:
        click.echo(json.dumps({"runs": runs.to_dicts(), "errors": errors.to_dicts()}))
    else:
        print_table(runs.columns, runs.iter_rows(), f"{opened.declaration.name} in {directory}")
        for error in errors.iter_rows(named=True):
            place = error["run"] if error["step"] < 0 else f"{error['run']} step {error['step']}"
            click.echo(f"error: {place}: {error['probe']}: {error['message']}")
    if len(errors):
        raise click.exceptions.Exit(1)
