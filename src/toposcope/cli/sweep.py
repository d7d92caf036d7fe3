"""``toposcope sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli import options
from toposcope.cli.output import print_lines, print_notes, print_table

if TYPE_CHECKING:
    from toposcope.forecasting.sweeps.rule import Risk


@click.command()
@click.argument("path", metavar="FOLDER|TABLE", type=options.PLACE)
@click.option(
    "--risk", type=click.Choice(["low", "medium", "high"]), default="low", show_default=True,
    help="Of losing the best run; the answer has the measured one.",
)  # fmt: skip
@click.option("--steps", type=options.COUNT, metavar="T", help="Planned steps of the runs whose log does not say.")
@options.json_option
def sweep(path: Path, risk: Risk, steps: int | None, as_json: bool) -> None:
    """Say which runs of a sweep can stop now, and why; it stops none.

    Compares the loss of each run, at shares of its own planned steps, with what the other runs logged there, those that
    were stopped too. Runs whose length is unknown are named and kept; runs that differ in their seed count as one.

    The exit status is 0 if no run can stop, 1 if one can, 2 if there is nothing to read.

    \b
    Example:
      toposcope sweep runs
      toposcope sweep runs --risk medium --json
    """
    import msgspec

    from toposcope.programs.sweep import sweep as answer_on
    from toposcope.wording import loss_words

    with options.bad_use():
        answer = answer_on(path, risk, steps)
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
    else:
        print_lines([answer.answer, *answer.more])
        rows = [
            (run.name, f"{run.share:.0%}", loss_words(run.loss), loss_words(run.cutoff), str(len(run.compared)))
            for run in answer.runs
            if run.stop and run.share is not None
        ]
        if rows:
            print_table(("run", "at", "loss", "stops above", "compared with"), rows, "runs that can stop")
        print_notes(answer.not_read)
    if answer.status:
        raise click.exceptions.Exit(answer.status)
