"""``toposcope check``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.cli.options import PLACE, bad_use, json_option
from toposcope.cli.output import print_notes

MAX_NOTES = 5  # on what was not read, which are printed; JSON has all


@click.command()
@click.argument("path", metavar="RUN|FOLDER", type=PLACE)
@json_option
@click.option("--watch", is_flag=True, help="Wait until the answer changes, then print it.")
def check(path: Path, as_json: bool, watch: bool) -> None:
    """Say whether runs are healthy, where their losses end, and which of them need a person.

    Takes what `toposcope show` takes, and gives the same answer. Of a folder it prints that first, then a line for each
    run, those that need a person first, with a ! before them. With --json it prints one object: of each of its runs the
    name, needs_person, health, reason, end (loss, low, high) and more, as docs/check.md lists them.

    The exit status is 0 if every run is healthy or finished, or it is too early to say; 1 if a run needs a person: it
    diverged, failed, is silent, stalled, or another check failed; 2 if there is nothing to read.

    With --watch the answer is printed once it changes: a run comes to need a person or no longer does, ends or appears.
    Where no run goes on, that is at once. A path that does not exist yet is waited for.

    \b
    Example:
      toposcope check runs/mine
      toposcope check runs --json
      toposcope check runs/mine --watch && echo finished
    """
    import msgspec

    from toposcope.programs.check import Checks
    from toposcope.wording import counted

    checks = Checks(path)
    if watch and not path.exists():
        print_notes([f"{path} does not exist yet; waiting for it"])
    with bad_use():
        answer = checks.changed() if watch else checks.now()
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
    elif len(answer.runs) == 1:
        click.echo(f"{answer.runs[0].name}: {answer.answer}")
    else:
        n = sum(run.needs_person for run in answer.runs)
        needing = f"{n or 'None'} of {counted(len(answer.runs), 'run')} {'needs' if n == 1 else 'need'} a person"
        click.echo(f"{needing}. {answer.answer}")
        for run in answer.runs:
            why = run.no_forecast.partition(". ")[0].rstrip(".")
            click.echo(f"{'!' if run.needs_person else ' '} {run.name}: {run.answer}{f' {why}.' if why else ''}")
    if not as_json:
        print_notes(answer.not_read[:MAX_NOTES])
        if len(answer.not_read) > MAX_NOTES:
            print_notes([f"and {len(answer.not_read) - MAX_NOTES} more that are not read; --json has all"])
    if answer.status:
        raise click.exceptions.Exit(answer.status)
