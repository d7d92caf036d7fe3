"""``toposcope demo``."""

from pathlib import Path

import click

from toposcope.cli.options import PLACE, defaulted_option


@click.command()
@defaulted_option("--out", type=PLACE, default=Path("toposcope-demo"), help="Folder to write to.")
def demo(out: Path) -> None:
    """Train five small models, measure them, and write a report: two minutes, no download.

    One of the runs is left unfinished, for `toposcope forecast` and `toposcope show` to look at. If the command was
    interrupted, the same command continues.

    \b
    Example:
      toposcope demo --out my-demo
    """
    from toposcope.cli.study import run_and_report
    from toposcope.study.declaration import shipped_study

    run_and_report(shipped_study("quickstart"), out, workers=1)  # to start others takes as long as they would save
