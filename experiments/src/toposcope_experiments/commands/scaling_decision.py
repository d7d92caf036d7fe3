"""``toposcope scaling-decision``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command("scaling-decision")
@experiment_options("scaling-decision")
@click.option("--quick", is_flag=True, help="A trial of a few minutes, from which nothing can be told.")
def scaling_decision(out: Path, quick: bool, workers: int | None, as_json: bool) -> None:
    """Test whether topology says when to stop a model and train a larger one, beyond what the loss says.

    Trains small transformers of four sizes under 25 conditions, each decision both ways with a real cool-down;
    predicts the better way for conditions that are left out; writes the page. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope scaling-decision --quick --out trial
      toposcope scaling-decision --out scaling-decision
    """
    from toposcope_experiments.scaling_decision.design import Design, quick_design
    from toposcope_experiments.scaling_decision.experiment import run_experiment
    from toposcope_experiments.scaling_decision.page import TITLE, scaling_decision_page
    from toposcope_experiments.small_networks.commands import write_and_print

    design = quick_design() if quick else Design()
    with progress_bars() as progress:
        decisions = run_experiment(design, out, workers=workers, progress=progress)
    page = scaling_decision_page(design, decisions)
    shown = page.tables()["predictors"].select("predictor", "regret", "saved", "p", "wrong", "point_error")
    printed = ("predictors", "conditions", "calibration")
    write_and_print(out, TITLE, page, shown, "What wrong decisions cost, in mnat", printed, as_json=as_json)
