"""``toposcope grokking``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import bad_use, progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command()
@experiment_options("grokking")
@click.option("--modulus", type=int, default=59, show_default=True, help="Number of residues that are added.")
@click.option("--seeds", type=int, default=8, show_default=True, help="Runs of each network and condition.")
@click.option("--steps", type=int, default=1200, show_default=True, help="Updates of each run.")
def grokking(out: Path, modulus: int, seeds: int, steps: int, workers: int | None, as_json: bool) -> None:
    """Test whether topology of embeddings is a sign of generalisation, or rises without it too.

    Trains two small networks to add modulo a number, with true labels and under three conditions in which they memorise
    but cannot generalise: random labels, no weight decay, too few pairs. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope grokking --out grokking
    """
    from toposcope_experiments.grokking.design import Design
    from toposcope_experiments.grokking.experiment import run_experiment
    from toposcope_experiments.grokking.page_sections import grokking_page
    from toposcope_experiments.small_networks.commands import write_and_print

    with bad_use():
        design = Design(modulus=modulus, seeds=seeds, steps=steps)
    with progress_bars() as progress:
        measured = run_experiment(design, out, workers=workers, progress=progress)
    page = grokking_page(measured)
    columns = ("architecture", "feature", "start", "value", "p", "p_adjusted", "verdict")
    shown = page.tables()["verdicts"].select(columns)
    printed = ("verdicts", "differences", "jumps", "runs")
    write_and_print(out, "Grokking", page, shown, "Signs of generalisation", printed, as_json=as_json)
