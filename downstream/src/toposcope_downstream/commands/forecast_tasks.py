"""``toposcope forecast-tasks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toposcope.extend import (
    COUNT,
    EXISTING,
    FILE,
    bad_use,
    column_option,
    columns_of,
    json_option,
    page_option,
    print_lines,
    print_notes,
    print_report,
    repeated_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from toposcope.extend import ForecastReport
    from toposcope_downstream.score_link import TaskScores


@click.command()
@click.argument("log", type=EXISTING)
@click.argument("evaluations", type=EXISTING)
@click.option("--siblings", type=EXISTING, help="Folder or table of complete logs of similar runs.")
@click.option("--schedule", default="", metavar="TEXT", help="Learning-rate schedule, such as cosine:steps=20000.")
@click.option("--steps", type=COUNT, metavar="T", help="Last planned step, if log and siblings lack it.")
@column_option("loss=ce")
@click.option("--unit", metavar="UNIT", help="Unit of the losses: nats, bits, 'bits per byte'.")
@click.option("--run", "run_name", metavar="NAME", help="The run to forecast, where the log holds several.")
@click.option("--measured", type=FILE, help="What `toposcope cooldown --json` wrote: the gain of a cool-down.")
@repeated_option("--task", "tasks", metavar="NAME", help="A task (default: all).")
@click.option("--loss", default="", metavar="NAME", help="The loss of the evaluations that the log is of.")
@click.option("--recipe", metavar="NAME", help="The recipe of the ladder, where the evaluations hold several.")
@json_option
@page_option
def forecast_tasks(
    log: Path,
    evaluations: Path,
    siblings: Path | None,
    schedule: str,
    steps: int | None,
    columns: tuple[str, ...],
    unit: str | None,
    run_name: str | None,
    measured: Path | None,
    tasks: tuple[str, ...],
    loss: str,
    recipe: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Predict the scores of tasks that a run ends with: its final loss, as `toposcope forecast` predicts it, in scores.

    EVALUATIONS of other runs, in any form that `toposcope downstream` reads, link the loss to scores. The log of a run
    that diverged has no final loss: the exit status is 1.

    \b
    Example:
      toposcope forecast-tasks log.csv scores.csv --schedule cosine:steps=20000
      toposcope forecast-tasks runs/now scores.csv --siblings runs --task hellaswag --out scores
    """
    from toposcope import forecast
    from toposcope_downstream.in_scores import forecast_in_tasks

    with bad_use():
        report = forecast(
            log, siblings=siblings, schedule=schedule, last_step=steps, run=run_name, columns=columns_of(columns),
            unit=unit, measured=measured or (),
        )  # fmt: skip
        found = forecast_in_tasks(report, evaluations, tasks=tasks or None, loss=loss, recipe=recipe)
    written = ""
    if out is not None and found:
        from toposcope_downstream.scores_page import OF_FORECAST, ScoresToShow, write_scores

        shown = ScoresToShow(found, OF_FORECAST, (report.headline(),), report.remarks)
        written = f"page: {write_scores(out, shown).resolve()}"
    print_report(lambda: _as_dict(report, found), lambda: _print(report, found), as_json=as_json, written=written)
    if report.log.diverged is not None:
        raise SystemExit(1)


def _as_dict(report: ForecastReport, found: tuple[TaskScores, ...]) -> dict[str, Any]:
    from toposcope_downstream.score_link import scores_dicts

    return report.to_dict() | {"tasks": scores_dicts(found)}


def _print(report: ForecastReport, found: tuple[TaskScores, ...]) -> None:
    from toposcope_downstream.score_link import score_sentences

    print_lines((report.headline(), *score_sentences(found)))
    print_notes(report.remarks)
