"""``toposcope backtest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toposcope.extend import EXISTING, json_option, log_options, page_option, workers_option

if TYPE_CHECKING:
    import polars as pl

    from toposcope_experiments.backtest.backtesting import Split
    from toposcope_experiments.backtest.result import BacktestResult

DEFAULT_FRACTIONS = "0.1,0.2,0.3,0.5,0.7"
NOT_PRINTED = ("forecasts", "scores", "skills", "families")
"""Tables that are printed in another form, or are too long to print."""


@click.command()
@click.argument("data", type=EXISTING)
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
    reading: dict[str, Any],
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
    from toposcope.extend import bad_use, print_json, print_lines, print_notes, progress_bars, write_page
    from toposcope.logs import read_logs
    from toposcope_experiments.backtest.backtesting import backtest as forecast_all
    from toposcope_experiments.backtest.backtesting import runs_to_score
    from toposcope_experiments.backtest.page import backtest_page
    from toposcope_experiments.backtest.result import BacktestResult

    shares = _shares(fractions)
    with bad_use():
        complete = runs_to_score(read_logs(data, **reading))
    with progress_bars() as progress:
        rows = forecast_all(complete.runs, split=split, fractions=shares, workers=workers, progress=progress)
        backtested = BacktestResult.of(rows, split, complete.runs[0].log.unit, complete.remarks)
        page = backtest_page(backtested, data, workers=workers, progress=progress)
        tables = page.tables()
    if out is not None:
        write_page(out, "Backtest of forecasts", page)
    if as_json:
        values = {"rows" if name == "forecasts" else name: frame.to_dicts() for name, frame in tables.items()}
        more = {"summary": page.summary(), "remarks": [*backtested.remarks, *page.notes()]}
        print_json({**values, **more, "split": split, "unit": backtested.unit})
    else:
        _print(backtested, tables)
        print_lines(page.summary())
        print_notes([*backtested.remarks, *page.notes()])
    if out is not None:
        click.echo(f"page: {(out / 'index.html').resolve()}", err=as_json)


def _shares(text: str) -> tuple[float, ...]:
    from toposcope.extend import BadUse

    try:
        shares = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError as error:
        raise BadUse(f"--fractions {text}: expected numbers, such as {DEFAULT_FRACTIONS}") from error
    if not all(0 < share < 1 for share in shares):
        raise BadUse(f"--fractions {text}: each must be between 0 and 1")
    return shares


def _print(backtested: BacktestResult, tables: dict[str, pl.DataFrame]) -> None:
    """Print the scores and the other tables of the page."""
    from toposcope.extend import print_table
    from toposcope_experiments.backtest.page import SCORES, families_of, shown

    titles = [title for title, _, _ in SCORES]

    def cells(row: dict[str, Any]) -> list[str]:
        return [shown(row[column], kind) for _, column, kind in SCORES]

    for fraction in backtested.fractions:
        if rows := [(row["forecaster"], *cells(row)) for row in backtested.scores.filter(fraction=fraction).to_dicts()]:
            print_table(("forecaster", *titles), rows, f"{fraction:.3g} seen; MAE and bias in {backtested.unit}")
    if families := [(row["family"], f"{row['fraction']:.3g}", *cells(row)) for row in families_of(backtested)]:
        print_table(("family", "seen", *titles), families, "the default, by family")
    for name, frame in tables.items():
        if name not in NOT_PRINTED and len(frame):
            print_table(frame.columns, frame.iter_rows(), name.replace("_", " "))
