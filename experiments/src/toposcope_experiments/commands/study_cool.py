"""``toposcope study cool``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import bad_use, progress_bars, workers_option


@click.command("cool")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@workers_option
def study_cool(directory: Path, workers: int | None) -> None:
    """Measure the cooled twins of a study's runs: averages of their last checkpoints at constant learning rate.

    They stand for a cool-down. The probes are the study's; the report of the study then has the section "The cooled
    loss". What is measured already is not measured again.

    \b
    Example:
      toposcope study cool DIR
    """
    from toposcope.study import Study
    from toposcope_experiments.cooled_twins.twins import FOLDER, measure_twins

    with bad_use():
        study = Study.load(directory)
    with progress_bars() as progress:
        said = list(measure_twins(study, workers, progress))
    for note in said:
        click.echo(f"note: {note}", err=True)
    if (directory / FOLDER / "study.db").exists():
        click.echo(f"measured: {directory / FOLDER}; write the page anew with: toposcope report {directory}")
