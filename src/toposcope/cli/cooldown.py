"""``toposcope cooldown``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toposcope.cli import options
from toposcope.cli.output import print_lines, print_notes, print_report, print_table, save_figure
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    from pathlib import Path

    from toposcope.forecasting.cooldown_report import CoolDownReport


@click.command()
@click.argument("series")
@click.option("--text", default="", metavar="FILE", help="Text that the models read (default: the run's held-out one).")
@click.option("--steps", type=options.COUNT, metavar="K", help="Steps of the cool-down (default: a tenth).")
@options.choice_option("--decay", choices=["linear", "1-sqrt", "cosine"], help="How the rate falls to zero.")
@click.option("--at", type=options.COUNT, metavar="STEP", help="Step to cool down from (default: the last).")
@click.option("--log", type=options.PLACE, help="Log of the run (default: the one with the checkpoints).")
@click.option("--constant", is_flag=True, help="The learning rate was held, where it was not logged.")
@click.option(
    "--tokens",
    type=options.Count(min=2),
    metavar="N",
    help="Tokens of the text (default: 100000, or as many as are read in minutes).",
)
@click.option("--save", type=options.PLACE, metavar="DIR", help="Write the merged model that is in hand.")
@options.tokenizer_option
@options.json_option
@options.figure_option
@click.option("--all", "show_all", is_flag=True, help="Also the losses of all checkpoints and averages that were read.")
@options.log_options
@options.series_options
def cooldown(
    series: str,
    text: str,
    log: Path | None,
    save: Path | None,
    tokenizer: str,
    as_json: bool,
    out: Path | None,
    show_all: bool,
    reading: dict[str, Any],
    opening: options.Opening,
    **settings: Any,
) -> None:
    """Say what the loss would be after a cool-down of the learning rate that starts now.

    SERIES is a run of a language model at constant rate, with at least three checkpoints in a tenth of its steps.
    Averages of the last checkpoints and of earlier ones are read on a text; how they fall, carried on to the end, is
    the answer. An average is itself a better model than the last checkpoint: --save writes it.

    \b
    Example:
      toposcope cooldown runs/small-7k
      toposcope cooldown checkpoints/ --log log.csv --text held_out.txt --steps 600 --save cooled
      toposcope cooldown runs/small-7k --out cooldown.svg
    """
    if log is None and any(reading.values()):
        raise options.BadUse("--column, --unit, --pattern and --every say how a log is read; name it with --log FILE")
    if save is not None and save.exists():
        raise options.BadUse(f"--save {save}: exists; name a new folder")
    from toposcope.forecasting.cooldown_reading import cooldown as cool_down
    from toposcope.logs import read_log

    with options.bad_use():
        source = options.resolved_place(text, "--text", ("python-docs",))
        place = options.resolved_place(tokenizer, "--tokenizer", ("characters",))
        read = None if log is None else read_log(log, **reading)
    with progress_bars() as progress:
        report = cool_down(
            opening.open(series),
            text=source,
            log=read,
            tokenizer=place,
            access=opening.access,
            progress=progress,
            **settings,
        )
    written = [f"merged model: {report.save(save).resolve()}"] if save is not None and report.merged else []
    if out is not None:
        written.append(save_figure(out, report.plot()))
    print_report(report.to_dict, lambda: _print(report, show_all), as_json=as_json, written="\n".join(written))
    if report.answer is None:
        raise SystemExit(options.BadUse.exit_code)


def _print(report: CoolDownReport, show_all: bool) -> None:
    click.echo(report.headline())
    print_lines(f"{what}: {sentence}" for what, sentence in report.inputs().items() if what != "series")
    if report.answers:
        columns, rows = report.table()
        print_table(columns, rows, "by the length of a cool-down that starts now, nats per token")
    print_notes(report.other_refusals())
    if show_all and report.merged:
        steps, losses = report.course.held_out
        raw = [(str(step), "as it is", f"{loss:.{report.digits}f}") for step, loss in zip(steps, losses, strict=True)]
        averages = [
            (f"{each.steps[0]} to {each.steps[-1]}", f"average of {len(each.steps)}", f"{each.loss:.{report.digits}f}")
            for each in report.merged
        ]
        print_table(("steps", "checkpoint", "loss"), raw + averages, "checkpoints that were read")
    print_notes(report.all_remarks())
