"""``toposcope induction``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import print_json, print_table, progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command()
@experiment_options("induction")
@click.option("--quick", is_flag=True, help="A trial of under a minute, from which nothing can be told.")
def induction(out: Path, quick: bool, workers: int | None, as_json: bool) -> None:
    """Test whether the topology of attention maps says more of induction heads than plain quantities of them do.

    Trains transformers of two layers on sequences with a rule of their own, and on ones with one rule for all, and
    predicts each head's prefix matching in runs that are left out. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope induction --quick --out trial
      toposcope induction --out induction
    """
    from toposcope_experiments.induction.experiment import conclusion, run_experiment
    from toposcope_experiments.induction.training import Design

    design = Design(seeds=2, steps=60, every=20, texts=4) if quick else Design()
    with progress_bars() as progress:
        tables = run_experiment(design, out, workers=workers, progress=progress)
    if as_json:
        print_json({name: table.to_dicts() for name, table in tables.items() if name != "heads"})
    else:
        print_table(tables["gains"].columns, tables["gains"].iter_rows(), "Error of prefix matching, taken off")
        click.echo(conclusion(tables["gains"]))
