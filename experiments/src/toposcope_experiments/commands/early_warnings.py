"""``toposcope early-warnings``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command("early-warnings")
@experiment_options("early-warnings")
@click.option("--quick", is_flag=True, help="A trial of a minute: a few short runs, from which nothing can be told.")
def early_warnings(out: Path, quick: bool, workers: int | None, as_json: bool) -> None:
    """Test which quantity warns of trouble in training before the loss does, at one false alarm in 100,000 steps.

    Trains small transformers in which training goes wrong in several ways, and quiet ones; measures gradients, updates,
    weights, attention, curvature and topology; tries each on runs and kinds of trouble that set nothing of it; writes
    the page. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope early-warnings --quick --out trial
      toposcope early-warnings --out warnings
    """
    from toposcope_experiments.early_warnings.design import Design, quick_design
    from toposcope_experiments.early_warnings.page import TITLE, early_warning_page
    from toposcope_experiments.early_warnings.population import train_population
    from toposcope_experiments.early_warnings.scoring import score_population
    from toposcope_experiments.small_networks.commands import write_and_print

    population = out / "population"
    with progress_bars() as progress:
        train_population(quick_design() if quick else Design(), population, workers, progress)
        runs = score_population(population, workers, progress)
    page = early_warning_page(runs)
    columns = ("precursor", "warned", "lead", "gained", "gained_low", "gained_high", "rate", "verdict")
    printed = ("precursors", "kinds", "layers", "rules")
    shown = page.tables()["precursors"].select(columns)
    write_and_print(out, TITLE, page, shown, "At one false alarm in 100,000 steps", printed, as_json=as_json)
