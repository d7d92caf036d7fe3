"""``toposcope demo``."""

from pathlib import Path

import click

from toposcope.cli.shared import workers_option


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("toposcope-demo"), show_default=True, help="Folder."
)
@workers_option
def demo(out: Path, workers: int | None) -> None:
    """Train a small family, measure it, and report: a few minutes, no download.

    Killed or interrupted, the same command goes on where it stopped.

    \b
    Example:
      toposcope demo --out my-demo
    """
    from toposcope.cli.study import run_and_report
    from toposcope.study.shipped import shipped_study

    run_and_report(shipped_study("quickstart"), out, workers)
