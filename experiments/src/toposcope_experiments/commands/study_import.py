"""``toposcope study import``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import BadUse, bad_use, workers_option


@click.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the study (default: FOLDER-study).")
@workers_option
def study_import(folder: Path, out: Path | None, workers: int | None) -> None:
    """Import a published study from its own files, and report its published numbers.

    FOLDER may hold checkpoint folders with their training logs, JSON files of features by step, and a JSON file of
    correlations. Nothing is measured yet; `toposcope study run DIR/study.toml --out DIR` measures the checkpoints too.

    \b
    Example:
      toposcope study import published/ --out again
    """
    from toposcope.extend import run_and_report
    from toposcope_experiments.published_study.importing import import_study

    directory = out or Path(f"{folder.resolve().name}-study")
    with bad_use():
        if directory.resolve() == folder.resolve():
            raise BadUse(f"--out {directory}: this is the folder to import; choose another")
        imported = import_study(folder, directory)
    for note in imported.notes:
        click.echo(f"note: {note}", err=True)
    run_and_report(imported.declaration, directory, workers, measured=False)
