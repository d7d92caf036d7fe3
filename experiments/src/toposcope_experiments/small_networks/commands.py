"""What the commands of experiments share: running tasks in processes, and what is written and printed."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import polars as pl

from toposcope.engine import Engine, TaskFailure
from toposcope.extend import MaterialType, Page, Progress, ToposcopeError, print_table, silent, write_page

MAX_SHOWN = 200  # characters of both values of an option that differs
Task = TypeVar("Task")
Result = TypeVar("Result")


def run_all(
    engine: Engine,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    name: Callable[[Task], str],
    progress: Progress = silent,
    done: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Return the results of tasks in the order of the tasks, which need not be that in which they finish."""
    results: dict[str, Result] = {}
    for n_done, (task, result) in enumerate(engine.run(function, tasks, progress), start=1):
        if isinstance(result, TaskFailure):
            raise ToposcopeError(f"{name(task)}: {result.message}")
        results[name(task)] = result
        done(n_done)
    return [results[name(task)] for task in tasks]


def refuse_other_design(path: Path, declared: Mapping[str, Any], may_differ: Sequence[str] = ()) -> None:
    """Refuse a folder whose declaration, if there is one, is of another design."""
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        other = [name for name in declared if name not in may_differ and before[name] != declared[name]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ToposcopeError(f"{path}: cannot be read ({error}); choose another folder with --out") from error
    for name in other:
        is_long = len(f"{before[name]}{declared[name]}") > MAX_SHOWN
        what = f"{name} differ" if is_long else f"{name} is {before[name]!r} there and {declared[name]!r} here"
        raise ToposcopeError(f"{path}: {what}; choose another folder with --out")


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
