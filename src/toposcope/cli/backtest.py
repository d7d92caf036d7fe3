"""``toposcope backtest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.options import BadUse, bad_use, columns_of, json_option, log_options, page_option, workers_option
from toposcope.cli.output import print_json, print_table
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    import polars as pl

    from toposcope.forecasting.backtesting import Split
    from toposcope.report.backtest import BacktestResult

DEFAULT_FRACTIONS = "0.1,0.2,0.3,0.5,0.7"
NOT_PRINTED = ("forecasts", "scores", "skills", "families")
"""Tables that are printed in another form, or are too long to print."""


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--split",
    type=click.Choice(["size", "group", "family"]),
    default="size",
    show_default=True,
    help="Which runs are held out with each run: those of its size, its kind of schedule, or its family.",
)
@click.option(
    "--fractions",
    default=DEFAULT_FRACTIONS,
    show_default=True,
    metavar="F,...",
    help="Shares of a run that are seen before forecasting.",
)
@workers_option
@log_options
@json_option
@page_option
def backtest(
    data: Path,
    split: Split,
    fractions: str,
    workers: int | None,
    columns: tuple[str, ...],
    unit: str | None,
    pattern: str,
    as_json: bool,
    out: Path | None,
) -> None:
    """Measure how well the forecasters predict runs whose end is known.

    DATA is a table or a folder of complete training logs, or a study. Each run is forecast from its beginning and from
    the other runs. For a study the report also says what topology adds. Files are written at the end.

    \b
    Example:
      toposcope backtest runs
      toposcope backtest curves.parquet --split family --out backtest
    """
    from toposcope.forecasting import backtest as forecast_all
    from toposcope.forecasting.siblings import runs_to_score
    from toposcope.logs import read_logs
    from toposcope.report.backtest import BacktestResult, backtest_page
    from toposcope.report.writing import PAGE, write_page

    shares = _shares(fractions)
    with bad_use():
        complete = runs_to_score(read_logs(data, columns=columns_of(columns), unit=unit, pattern=pattern))
    with progress_bars() as progress:
        rows = forecast_all(complete.runs, split=split, fractions=shares, workers=workers, progress=progress)
        backtested = BacktestResult.of(rows, split, complete.runs[0].log.unit, complete.remarks)
        page = backtest_page(backtested, data, workers=workers, progress=progress)
        tables = page.tables()
    if out is not None:
        write_page(out, "Backtest of forecasts", page)
    if as_json:
        values = {
            **{"rows" if name == "forecasts" else name: frame.to_dicts() for name, frame in tables.items()},
            **{"summary": page.summary(), "remarks": [*backtested.remarks, *page.notes()]},
            **{"split": split, "unit": backtested.unit},
        }
        print_json(values)
    else:
        _print(backtested, tables)
        for sentence in page.summary():
            click.echo(sentence)
        for note in (*backtested.remarks, *page.notes()):
            click.echo(f"note: {note}", err=True)
    if out is not None:
        click.echo(f"page: {(out / PAGE).resolve()}", err=as_json)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as error:
        raise BadUse(f"--fractions {text}: expected numbers, such as {DEFAULT_FRACTIONS}") from error
    if not all(0 < share < 1 for share in shares):
        raise BadUse(f"--fractions {text}: each must be between 0 and 1")
    return shares


def _print(backtested: BacktestResult, tables: dict[str, pl.DataFrame]) -> None:
    """Print the scores and the other tables of the page."""
    from toposcope.report.backtest import SCORES, families_of, shown

    titles = [title for title, _, _ in SCORES]
    for fraction in backtested.fractions:
        rows = backtested.scores.filter(fraction=fraction).to_dicts()
        if not rows:
            continue
        cells = [(row["forecaster"], *(shown(row[column], kind) for _, column, kind in SCORES)) for row in rows]
        print_table(("forecaster", *titles), cells, f"{fraction:.3g} seen; MAE and bias in {backtested.unit}")
    families = families_of(backtested)
    if families:
        cells = [
            (row["family"], f"{row['fraction']:.3g}", *(shown(row[column], kind) for _, column, kind in SCORES))
            for row in families
        ]
        print_table(("family", "seen", *titles), cells, "the default, by family")
    for name, frame in tables.items():
        if name not in NOT_PRINTED and len(frame):
            print_table(frame.columns, frame.iter_rows(), name.replace("_", " "))
