"""``toposcope decide-tasks``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toposcope.extend import (
    EXISTING,
    advice_options,
    bad_use,
    json_option,
    page_option,
    print_lines,
    print_notes,
    print_report,
    print_table,
    repeated_option,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from toposcope.extend import Advice
    from toposcope_downstream.in_scores import AdviceInTasks

COLUMNS = ("model", "parameters", "tokens", "loss, nats")


@click.command()
@click.argument("evaluations", type=EXISTING)
@advice_options
@repeated_option("--task", "tasks", metavar="NAME", help="A task (default: all).")
@click.option("--loss", default="", metavar="NAME", help="The loss of the evaluations that the points are of.")
@click.option("--recipe", metavar="NAME", help="The recipe of the ladder, where the evaluations hold several.")
@json_option
@page_option
def decide_tasks(
    evaluations: Path,
    advise: Callable[[], Advice],
    tasks: tuple[str, ...],
    loss: str,
    recipe: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Say in scores of tasks what `toposcope decide` says in losses: the planned model, or a run continued or replaced.

    A scaling law is fitted to losses of earlier runs, as `decide` does. EVALUATIONS of earlier runs, in any form that
    `toposcope downstream` reads, link these losses to scores.

    \b
    Example:
      toposcope decide-tasks scores.csv --points points.csv --budget 1e21
      toposcope decide-tasks scores.csv --points points.csv --parameters 1e9 --tokens 2e10 --extra 1e20 --task hellaswag
    """
    from toposcope_downstream.in_scores import in_tasks

    advice = advise()
    with bad_use():
        found = in_tasks(advice, evaluations, tasks=tasks or None, loss=loss, recipe=recipe)
    notes = (*advice.notes, *found.remarks)
    written = ""
    if out is not None:
        from toposcope_downstream.scores_page import OF_DECISION, ScoresToShow, write_scores

        shown = ScoresToShow(found.tasks, OF_DECISION, advice.warnings, notes)
        written = f"page: {write_scores(out, shown).resolve()}"
    print_report(
        lambda: {"tasks": found.to_dicts(), "warnings": advice.warnings, "notes": notes},
        lambda: _print(found, advice.warnings, notes),
        as_json=as_json,
        written=written,
    )


def _print(found: AdviceInTasks, warnings: tuple[str, ...], notes: tuple[str, ...]) -> None:
    from toposcope_downstream.score_link import score_sentences

    print_lines(score_sentences(found.tasks))
    models = dict.fromkeys((arm.name, short(arm.N), short(arm.D), f"{arm.loss:.3f}") for arm in found.arms)
    print_table(COLUMNS, list(models), "by the scaling law of these runs")
    print_lines(warnings)
    print_notes(notes)
