"""``toposcope report``."""

from pathlib import Path

import click

from toposcope.cli.shared import progress_bars


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(directory: Path) -> None:
    """Write the report of a study: one page, and its figures and tables as files.

    \b
    Example:
      toposcope report paper
    """
    write_and_tell(directory)


def write_and_tell(directory: Path) -> None:
    """Write a study's report; print its verdict and its place."""
    from toposcope.report import write_report
    from toposcope.study import Study

    with progress_bars() as progress:
        page, verdict = write_report(Study.load(directory), progress)
    for sentence in verdict:
        click.echo(sentence)
    click.echo(f"report: {page.resolve()}")
