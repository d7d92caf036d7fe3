"""What ``toposcope downstream --to`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toposcope.cli.shared import finite_or_null, print_report, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from toposcope.forecasting.downstream.translations import TranslationReport

COLUMNS = ("model", "of", "what", "predicted", "low", "high", "method", "left-out error", "intervals held")


def print_translations(report: TranslationReport, as_json: bool, out: Path | None = None) -> None:
    """Print losses and scores of a new recipe with their intervals, or what refuses them; write the page."""
    written = ""
    if out is not None:
        from toposcope.report.translation import write_translations

        written = f"page: {write_translations(out, report).resolve()}"
    print_report(report.to_dict, lambda: _print(report), as_json=as_json, written=written)


def _print(report: TranslationReport) -> None:
    for sentence in (*report.headline, *report.basis):
        click.echo(sentence)
    rows = finite_or_null(report.rows)
    cells = [_cells(row) for row in rows if not row["refused"]]
    if cells:
        print_table(COLUMNS, cells, f"predictions for {report.recipe}, with 90% intervals")
    for row in rows:
        if row["refused"]:
            click.echo(f"{row['what']} on {row['of']} of {row['model']}: {row['refused']}")
    for remark in report.remarks:
        click.echo(f"note: {remark}", err=True)


def _cells(row: dict[str, Any]) -> list[str]:
    """Return a prediction as it is printed: scores and relative errors in percent, errors of scores in points."""
    is_score, held = row["what"] == "score", row["held"]
    ends = [row[name] for name in ("predicted", "low", "high")]
    values = ["" if value is None else f"{value:.1%}" if is_score else f"{value:.3f}" for value in ends]
    error = "" if row["error"] is None else f"{100 * row['error']:.2g}{' points' if is_score else '%'}"
    share = "" if held is None else f"{held:.0%}"
    return [row["model"], row["of"], row["what"], *values, row["method"], error, share]
