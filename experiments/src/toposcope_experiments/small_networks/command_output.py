"""What the commands of experiments write and print."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import polars as pl

from toposcope.extend import MaterialType, Page, print_table, write_page


def write_and_print(
    out: Path,
    title: str,
    page: Page[MaterialType],
    shown: pl.DataFrame,
    caption: str,
    printed: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Write the page; print a table and the sentences at its top, or JSON."""
    summary = write_page(out, title, page)
    if as_json:
        tables = page.tables()
        values = {name: tables[name].fill_nan(None).to_dicts() for name in printed}
        click.echo(json.dumps({**values, "summary": summary, "notes": page.notes()}, sort_keys=True))
    else:
        print_table(shown.columns, shown.fill_nan(None).iter_rows(), caption)
        for sentence in summary:
            click.echo(sentence)
        for note in page.notes():
            click.echo(f"note: {note}", err=True)
    click.echo(f"page: {(out / 'index.html').resolve()}", err=as_json)
