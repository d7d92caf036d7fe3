"""``toposcope downstream``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toposcope.extend import (
    EXISTING,
    BadUse,
    bad_use,
    column_option,
    columns_of,
    defaulted_option,
    json_option,
    page_or_figure_option,
    print_lines,
    print_notes,
    print_report,
    print_table,
    progress_bars,
    repeated_option,
    write_out,
)

if TYPE_CHECKING:
    from pathlib import Path

    from toposcope_downstream.prediction import DownstreamReport


SCORES = ("score", "low", "high", "own", "chance", "largest_score")
DIFFERENCES = ("largest_noise", "error")
COLUMNS = {
    **{name: name for name in ("task", "score", "low", "high")},
    "own": "so far",
    "chance": "chance",
    "largest_score": "largest ladder model",
    "largest_noise": "± noise",
    "method": "method",
    "error": "held-out error",
}
"""What is printed of each prediction; a column without any value is left out."""


@click.command()
@click.argument("evaluations", type=EXISTING)
@repeated_option(
    "--model",
    "models",
    required=True,
    metavar="[NAME,]N=7B,D=4T",
    help="A model to predict, or the name of a run and the tokens it will end at.",
)
@repeated_option("--task", "tasks", metavar="NAME", help="A task to predict (default: all).")
@click.option("--ladder", multiple=True, metavar="RUN,...", help="Use these runs, as one recipe; * is any characters.")
@click.option("--exclude", multiple=True, metavar="RUN,...", help="Leave out these runs; * is any characters.")
@click.option("--recipe", metavar="NAME", help="The recipe of the ladder, where the evaluations hold several.")
@click.option("--loss", default="", metavar="NAME", help="Loss to predict scores from: a metric or a corpus.")
@click.option("--method", default="pooled", metavar="NAME", help="One method, in place of the mean of all.")
@repeated_option("--chance", "chances", metavar="TASK=SHARE", help="Score of guessing.")
@column_option("N=size")
@defaulted_option("--seed", type=click.IntRange(min=0), default=0, help="Of the resampling.")
@json_option
@page_or_figure_option
def downstream(
    evaluations: Path,
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    ladder: tuple[str, ...],
    exclude: tuple[str, ...],
    recipe: str | None,
    loss: str,
    method: str,
    chances: tuple[str, ...],
    columns: tuple[str, ...],
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Predict the scores of a larger or unfinished model on tasks, from evaluations of small ones.

    EVALUATIONS is a folder of results of lm-evaluation-harness, OLMES or Inspect, or a table (CSV, Parquet, JSON lines)
    with the columns run, N, D, task, metric, value.

    \b
    Example:
      toposcope downstream results/ --model N=7B,D=4T
      toposcope downstream scores.csv --model N=7e9,D=4e12 --task hellaswag --out prediction
      toposcope downstream scores.csv --model run-7,D=1T --ladder 'small-*'
    """
    if ladder and recipe is not None:
        raise BadUse("--recipe and --ladder: give one of them; the runs of --ladder count as one recipe")
    from toposcope_downstream import downstream as predict
    from toposcope_downstream.evaluations import read_evaluations
    from toposcope_downstream.selection import models_of, select_runs

    with bad_use(), progress_bars() as progress:
        read = read_evaluations(evaluations, columns=columns_of(columns), chance=_chances(chances))
        asked = models_of(models, read)
        runs = select_runs(read, _split(ladder), _split(exclude), asked)
        report = predict(
            runs, asked, tasks=tasks or None, loss=loss, method=method, recipe=recipe, seed=seed, progress=progress
        )
    written = ""
    if out is not None:
        from toposcope_downstream.page import write_downstream

        written = write_out(out, lambda folder: write_downstream(folder, report), report.plot)
    print_report(report.to_dict, lambda: _print(report), as_json=as_json, written=written)


def _chances(pairs: tuple[str, ...]) -> dict[str, float]:
    chances = {}
    for pair in pairs:
        task, _, value = pair.rpartition("=")
        try:
            chances[task.strip()] = float(value)
        except ValueError:
            task = ""
        if not task.strip() or not 0 <= chances[task.strip()] < 1:
            raise BadUse(f"--chance {pair}: expected TASK=SHARE with a share from 0 to 1, such as piqa=0.5")
    return chances


def _split(texts: tuple[str, ...]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _print(report: DownstreamReport) -> None:
    import polars as pl

    from toposcope_downstream.predicted import basis, cannot_be_told, headline, points, predictions_table, written

    print_lines((*headline(report.predictions), *basis(report.predictions)))
    targets = {each.task: each.target for each in report.predictions}
    frame = predictions_table(report.predictions)
    shown = [name for name in COLUMNS if frame[name].is_not_null().any()]
    for (model,), rows in frame.group_by("model", maintain_order=True):
        cells = []
        for row in rows.iter_rows(named=True):
            target = targets[row["task"]]
            row |= {name: written(row[name], target) for name in SCORES}
            row |= {name: points(row[name], target) for name in DIFFERENCES}
            cells.append([row[name] for name in shown])
        title = f"scores of {model}" + (", with 90% intervals; noise and error in points" if "score" in shown else "")
        print_table([COLUMNS[name] for name in shown], cells, title)
        refused = (
            rows.filter(pl.col("refused") != "") if frame.height > 1 else rows.clear()
        )  # else the first line says it
        for task, refusal in refused.select("task", "refused").rows():
            click.echo(f"{task} {cannot_be_told(refusal)}")
    print_notes(report.remarks)
