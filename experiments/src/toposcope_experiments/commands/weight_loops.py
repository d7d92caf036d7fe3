"""``toposcope weight-loops``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import bad_use, progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command("weight-loops")
@experiment_options("weight-loops")
@click.option("--modulus", type=int, default=59, show_default=True, help="Number of residues.")
@click.option("--seeds", type=int, default=6, show_default=True, help="Runs of each network, task and condition.")
@click.option("--steps", type=int, default=1200, show_default=True, help="Updates of each run.")
def weight_loops(out: Path, modulus: int, seeds: int, steps: int, workers: int | None, as_json: bool) -> None:
    """Test whether loops of weight matrices fall when a network generalises, and when.

    Trains two small networks on addition, subtraction and multiplication modulo a number, with true labels and under
    three conditions in which they cannot generalise. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope weight-loops --out weight-loops
    """
    from toposcope_experiments.grokking.design import Design
    from toposcope_experiments.small_networks.commands import write_and_print
    from toposcope_experiments.weight_loops.experiment import run_experiment
    from toposcope_experiments.weight_loops.page import weight_loops_page

    with bad_use():
        design = Design(modulus=modulus, seeds=seeds, steps=steps)
    with progress_bars() as progress:
        measured = run_experiment(design, out, workers=workers, progress=progress)
    page = weight_loops_page(measured)
    shown = page.tables()["timing"].select("architecture", "feature", "n_timed", "lag", "p_adjusted", "verdict")
    printed = ("verdicts", "differences", "timing", "runs")
    write_and_print(out, "Loops of weights", page, shown, "When features change", printed, as_json=as_json)
