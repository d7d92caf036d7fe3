"""``toposcope backtest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.forecast import columns_of, columns_option, finite_or_null
from toposcope.cli.shared import BadUse, bad_use, print_table, progress_bars, workers_option

if TYPE_CHECKING:
    import polars as pl

    from toposcope.forecasting.backtesting import Split
    from toposcope.report.backtest import BacktestResult

FRACTIONS = "0.1,0.2,0.3,0.5,0.7"
SCORED = ("forecasts", "scores", "skills", "families")
"""Tables that are printed in a form of their own, or are too long to print."""


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--split",
    type=click.Choice(["size", "group", "family"]),
    default="size",
    show_default=True,
    help="What is left out with each run: its size, its kind of schedule, or its family.",
)
@click.option(
    "--fractions", default=FRACTIONS, show_default=True, metavar="F,...", help="Shares of a run that are seen."
)
@workers_option
@columns_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables, figures and report.")
def backtest(
    data: Path,
    split: Split,
    fractions: str,
    workers: int | None,
    columns: tuple[str, ...],
    unit: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Tell how well the forecasters would have done on runs whose end is known.

    DATA is a table or a folder of complete training logs, or a study. Each run is forecast from its beginning alone, by
    what was learnt from the others. Of a study it is told as well what topology adds. Files are written when all is
    done; nothing is lost by an interruption but the time.

    \b
    Example:
      toposcope backtest runs
      toposcope backtest curves.parquet --split family --out backtest
    """
    from toposcope.forecasting.backtesting import backtest as run_backtest
    from toposcope.forecasting.siblings import runs_to_score
    from toposcope.logs import read_logs
    from toposcope.report.backtest import BacktestResult, backtest_page
    from toposcope.report.writing import write_page

    shares = _shares(fractions)
    with bad_use():
        collected = runs_to_score(read_logs(data, columns=columns_of(columns), unit=unit))
    with progress_bars() as progress:
        rows = run_backtest(collected.runs, split=split, fractions=shares, workers=workers, progress=progress)
        found = BacktestResult.of(rows, split, collected.runs[0].log.unit, collected.remarks)
        page = backtest_page(found, data, workers=workers, progress=progress)
        tables = page.tables()
    if out is not None:
        write_page(out, "Backtest of forecasts", page, workers=1)
    if as_json:
        told = {
            **{name: frame.to_dicts() for name, frame in tables.items()},
            **{"summary": page.summary(), "notes": [*found.remarks, *page.notes()]},
            **{"split": split, "unit": found.unit},
        }
        click.echo(json.dumps(finite_or_null(told), sort_keys=True))
    else:
        _show(found, tables)
        for sentence in page.summary():
            click.echo(sentence)
        for note in (*found.remarks, *page.notes()):
            click.echo(f"note: {note}", err=True)
    if out is not None:
        click.echo(f"report: {(out / 'report.md').resolve()}", err=as_json)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as error:
        raise BadUse(f"--fractions {text}: expected numbers, such as {FRACTIONS}") from error
    if not all(0 < share < 1 for share in shares):
        raise BadUse(f"--fractions {text}: each must be between 0 and 1")
    return shares


def _show(found: BacktestResult, tables: dict[str, pl.DataFrame]) -> None:
    """Print the scores, and what else the page's sections compute."""
    from toposcope.report.backtest import SCORES, families_of, shown

    titles = [title for title, _, _ in SCORES]
    for fraction in found.fractions:
        rows = found.scores.filter(fraction=fraction).to_dicts()
        if not rows:
            continue
        cells = [(row["forecaster"], *(shown(row, column, kind) for _, column, kind in SCORES)) for row in rows]
        print_table(("forecaster", *titles), cells, f"{fraction:.3g} seen; MAE and bias in {found.unit}")
    families = families_of(found)
    if families:
        cells = [
            (row["family"], f"{row['fraction']:.3g}", *(shown(row, column, kind) for _, column, kind in SCORES))
            for row in families
        ]
        print_table(("family", "seen", *titles), cells, "the default, by family")
    for name, frame in tables.items():
        if name not in SCORED and len(frame):
            print_table(frame.columns, frame.iter_rows(), name.replace("_", " "))
