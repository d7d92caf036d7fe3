"""``toposcope report``."""

from __future__ import annotations

import gc
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.cli.options import FOLDER, PLACE, BadUse, choice_option, repeated_option
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toposcope.analysis.adjustment import Method
    from toposcope.charts.vega import Kind
    from toposcope.study import Study

MAX_FINDINGS = 6  # that are printed; the page has all
MAX_LINE, MIN_INDENT = 110, 2  # characters
REPORTED = "reported.sha256"  # in a study's folder: the digest of what its report was written of


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIRECTORY [DIRECTORY]...", type=FOLDER)
@click.option("--out", type=PLACE, help="Folder for the report of several studies (default: A-and-B).")
@choice_option(
    "--adjust", choices=["holm", "bonferroni", "bh"], help="How p-values are adjusted for the number of rows."
)
@repeated_option(
    "--figures", "kinds", type=click.Choice(["png", "pdf"]), help="Further formats of the figures' files, besides SVG."
)
def report(directories: tuple[Path, ...], out: Path | None, adjust: Method, kinds: tuple[Kind, ...]) -> None:
    """Write the report of a study, or of all runs of several: a page, with its figures and tables as files.

    The report of one study is written into its folder report/. The page is opened in the browser if the command is
    typed at a machine with a screen.

    \b
    Example:
      toposcope report paper
      toposcope report paper --figures pdf --figures png
      toposcope report paper replication --out both
    """
    kinds = ("svg", *kinds)
    if len(directories) == 1 and out is not None:
        raise BadUse(f"--out {out}: only for several studies; the report of one is written into its folder")
    places = [directory.resolve() for directory in directories]
    if twice := next((each for each in directories if places.count(each.resolve()) > 1), None):
        raise BadUse(f"{twice}: the same study is given twice; give different ones")
    if len(directories) > 1:
        out = out or Path("-and-".join(place.name for place in places))
        if (out / "study.toml").exists():
            raise BadUse(f"--out {out}: the folder holds a study; choose another")
    write_and_print(directories, adjust, kinds, out=out)


def write_and_print(
    directories: Sequence[Path],
    adjust: Method = "holm",
    kinds: tuple[Kind, ...] = ("svg",),
    workers: int | None = None,
    out: Path | None = None,
) -> None:
    """Write the report of studies; print the verdict and the path, and open the page where there is a screen."""
    from toposcope.cli.output import open_page, print_lines
    from toposcope.engine.pool import processors
    from toposcope.files import write_text
    from toposcope.report import write_report
    from toposcope.study import Study
    from toposcope.study.joined import JoinedStudy

    studies = [Study.load(directory) for directory in directories]
    study = studies[0] if len(studies) == 1 else JoinedStudy(studies)
    gc.freeze()  # modules remain to the end: the collector need not look through them again and again
    with progress_bars() as progress:
        page, answer = write_report(study, progress, adjust, kinds, workers or processors(), out)
    if len(studies) == 1:
        digest = study.digest() if adjust == "holm" and kinds == ("svg",) else ""
        write_text(study.directory / REPORTED, digest)
    click.echo(answer.first)
    click.echo(f"{answer.second} {answer.command}".strip())
    print_lines(in_two_columns(answer.findings[:MAX_FINDINGS]))
    n = MAX_FINDINGS if len(study.run_names()) > 1 or study.declaration.published else 0  # few concern one's own run
    print_lines(answer.notes[:n])
    if len(answer.notes) > n:
        click.echo(
            f"not made: {len(answer.notes) - n} more, with what they need: {page.parent / 'tables' / 'not_made.csv'}"
        )
    click.echo(f"report: {page.resolve()}")
    open_page(page)


def in_two_columns(rows: Sequence[tuple[str, str]], width: int = 0) -> list[str]:
    """Return lines of at most so many characters, by default those of the terminal: a title, and text next to it."""
    width = width or min(shutil.get_terminal_size().columns, MAX_LINE)
    first = max((len(title) for title, _ in rows), default=0) + 2
    if first > width / 2:
        first = MIN_INDENT
    lines = []
    for title, text in rows:
        start = f"{title:<{first}}" if len(title) < first else ""
        lines += [] if start else [title]
        lines += textwrap.wrap(text, width, initial_indent=start or " " * first, subsequent_indent=" " * first)
    return lines


def report_of(study: Study) -> Path:
    """Return the path of a study's report."""
    return study.directory / "report" / "index.html"


def not_made(study: Study) -> list[dict[str, str]]:
    """Return which analyses the last report of a study lacks, and why; empty without a report."""
    import polars as pl

    file = study.directory / "report" / "tables" / "not_made.csv"
    return pl.read_csv(file, infer_schema=False).to_dicts() if file.is_file() else []


def is_up_to_date(study: Study) -> bool:
    """Return whether a study's report was written of all that the study holds now."""
    file = study.directory / REPORTED
    return report_of(study).is_file() and file.is_file() and file.read_text() == study.digest()
