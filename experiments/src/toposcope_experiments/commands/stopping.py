"""``toposcope stopping``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toposcope.extend import print_table

if TYPE_CHECKING:
    from toposcope_experiments.early_stopping.early_stopping import EarlyStopping, Gain


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write the tables to, as CSV.")
def stopping(directory: Path, as_json: bool, out: Path | None) -> None:
    """Show what rules of early stopping would have saved and cost the runs of a study.

    The rules: patience on neural persistence (Rieck et al. 2019), patience on the loss, a forecast gain below a price.
    Each is compared with stopping every run at the one fraction of its steps that saves as much.

    \b
    Example:
      toposcope stopping paper --out stopping
    """
    from toposcope.analysis import trajectories
    from toposcope.study import Study
    from toposcope_experiments.early_stopping.early_stopping import early_stopping

    study = Study.load(directory)
    log = study.log()
    runs = trajectories(study.frame(), study.labels(), log)
    found = early_stopping(runs, log, study.runs(), _gain(directory))
    written = _write(found, out) if out is not None else []
    if as_json:
        tables = {name: getattr(found, name).fill_nan(None).to_dicts() for name in ("rules", "matched", "stops")}
        click.echo(json.dumps({**tables, "summary": found.summary(), "notes": found.notes}, sort_keys=True))
        return
    print_table(found.rules.columns, found.rules.iter_rows(), f"{study.declaration.name} in {directory}")
    for sentence in found.summary():
        click.echo(sentence)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    for path in written:
        click.echo(path)


def _gain(directory: Path) -> Gain | None:
    """Forecast with a law that knows the schedule; None where nothing was logged."""
    from toposcope.extend import Pool, ToposcopeError
    from toposcope.logs import read_logs
    from toposcope_experiments.early_stopping.early_stopping import gain_by

    try:
        logs = read_logs(directory).logs
    except ToposcopeError:  # losses on a text can be known all the same
        return None
    return gain_by(Pool(), logs)


def _write(found: EarlyStopping, folder: Path) -> list[Path]:
    """Write the tables."""
    from toposcope.extend import to_csv, write_bytes

    tables = {f"{name}.csv": to_csv(getattr(found, name)) for name in ("rules", "matched", "stops")}
    for name, content in tables.items():
        write_bytes(folder / name, content)
    return [folder / name for name in tables]
