"""``toposcope demo``."""

from pathlib import Path

import click

from toposcope.cli.shared import workers_option


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("toposcope-demo"),
    show_default=True,
    help="Folder to write to.",
)
@workers_option
def demo(out: Path, workers: int | None) -> None:
    """Train a small family, measure it, and write a report: a few minutes, no download.

    If it was interrupted, the same command continues.

    \b
    Example:
      toposcope demo --out my-demo
    """
    from toposcope.cli.study import run_and_report
    from toposcope.study.shipped import shipped_study

    run_and_report(shipped_study("quickstart"), out, workers)
