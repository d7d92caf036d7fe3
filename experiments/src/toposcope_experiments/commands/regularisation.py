"""``toposcope regularisation``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import bad_use, progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command()
@experiment_options("regularisation")
@click.option("--seeds", type=int, default=12, show_default=True, help="Runs of each condition.")
@click.option("--epochs", type=int, default=60, show_default=True, help="Epochs of each run.")
def regularisation(out: Path, seeds: int, epochs: int, workers: int | None, as_json: bool) -> None:
    """Test whether neural persistence orders regularised networks as published, or plain norms do so too.

    Trains small networks on digits with dropout, batch normalisation, other depths, random labels and less data, and
    tries patience on neural persistence as a rule of early stopping. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope regularisation --out regularisation
    """
    from toposcope_experiments.regularisation.design import Design
    from toposcope_experiments.regularisation.experiment import run_experiment
    from toposcope_experiments.regularisation.features import NP
    from toposcope_experiments.regularisation.page_sections import regularisation_page
    from toposcope_experiments.small_networks.commands import write_and_print

    with bad_use():
        design = Design(seeds=seeds, epochs=epochs)
    with progress_bars() as progress:
        measured = run_experiment(design, out, workers=workers, progress=progress)
    page = regularisation_page(measured)
    columns = ("condition", "beside", "view", "mean", "beside_mean", "p_adjusted", "verdict")
    shown = page.tables()["verdicts"].filter(feature=NP).select(columns)
    printed = ("verdicts", "differences", "accuracy", "stopping_rules", "grid", "barycentres", "runs")
    write_and_print(out, "Regularisation", page, shown, "Neural persistence", printed, as_json=as_json)
