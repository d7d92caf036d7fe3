"""``toposcope demo``."""

from pathlib import Path

import click

from toposcope.cli.options import PLACE, BadUse, defaulted_option, workers_option
from toposcope.cli.progress_bars import progress_bars


@click.command()
@defaulted_option("--out", type=PLACE, default=Path("toposcope-demo"), help="Folder to write to.")
@click.option("--live", is_flag=True, help="Train with the monitor attached, and serve the live page meanwhile.")
@workers_option
def demo(out: Path, live: bool, workers: int | None) -> None:
    """Train a small family, measure it, and write a report: about a minute, no download.

    If it was interrupted, the same command continues. With --live, the models train one after
    another with the monitor attached, and the live page shows them side by side; each is a study in the folder.

    \b
    Example:
      toposcope demo --out my-demo
      toposcope demo --live --out my-runs
    """
    if live:
        _train_live(out)
        return
    from toposcope.cli.study import run_and_report
    from toposcope.study.declaration import shipped_study

    run_and_report(shipped_study("quickstart"), out, workers)


def _train_live(out: Path) -> None:
    from toposcope.cli.show import shown_meanwhile
    from toposcope.monitor.demonstration import train_monitored
    from toposcope.study.declaration import shipped_study

    if (out / "study.db").exists():
        raise BadUse(f"--out {out}: has a study that was not trained with --live; choose another folder")
    with shown_meanwhile(out), progress_bars() as progress:
        train_monitored(shipped_study("quickstart"), out, progress)
    click.echo(f"studies: {out.resolve()}")
