"""``toposcope intervene``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from toposcope.extend import bad_use, progress_bars, workers_option
from toposcope_experiments.commands.options import out_option

if TYPE_CHECKING:
    from toposcope.extend import Progress
    from toposcope_experiments.interventions.design import Design

QUICK: dict[str, Any] = {"size": "tiny-3k", "seeds": 6, "steps": 80}


@click.command()
@out_option("intervene")
@click.option(
    "--statistic",
    "statistics",
    multiple=True,
    default=("scale_free_h0",),
    show_default=True,
    help="What is pushed: scale_free_h0, neural_persistence or scale_free_h1. Repeatable.",
)
@click.option(
    "--arm",
    "kinds",
    multiple=True,
    help="A placebo to train: permuted_twin, pairwise_spread, effective_rank, nearest_neighbour_spread, random_tangent "
    "or chaos. Repeatable. Default: all, as a verdict needs.",
)
@click.option("--size", default="small-7k", show_default=True, help="tiny-3k, small-7k, med-21k, ...")
@click.option("--context", type=int, default=64, show_default=True, help="Characters of a sequence.")
@click.option("--optimizer", default="adamw", show_default=True, help="adamw or sgd.")
@click.option("--steps", type=int, default=800, show_default=True, help="Updates of each run.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Sequences of an update.")
@click.option("--seeds", type=int, default=91, show_default=True, help="Runs of each push, up and down.")
@click.option(
    "--push-until", type=float, default=1.0, show_default=True, help="Share of the steps after which pushes end."
)
@click.option("--initial-scale", type=float, default=1.0, show_default=True, help="Factor of the initial weights.")
@click.option("--corpus", default="python-docs", show_default=True, help="Text: python-source, a file, a folder, ...")
@click.option(
    "--conditions",
    is_flag=True,
    help="Also train other sizes, six times as long, by SGD, from larger weights, pushed for half of the time, with up "
    "to 24 seeds each, in folders within --out: hours.",
)
@click.option("--quick", is_flag=True, help="A trial of a minute: tiny-3k, 6 seeds, 80 steps, unless given.")
@workers_option
@click.pass_context
def intervene(
    ctx: click.Context, /, out: Path, conditions: bool, quick: bool, workers: int | None, **options: Any
) -> None:
    """Push the topology of weights while networks train, and test whether the loss follows.

    Trains small networks with a push on a topological statistic, up and down, and with placebos that change it as much
    by plain means, all paired by seed; writes results.csv, pushes.csv and the page. The default trains 1,274 runs,
    some 20 minutes on two cores. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope intervene --quick --out trial
      toposcope intervene --out causal
      toposcope intervene --out causal --conditions
    """
    from toposcope_experiments.interventions.experiment import run_experiment
    from toposcope_experiments.interventions.page import first_line
    from toposcope_experiments.interventions.page_sections import write_intervention_page

    if quick:
        given = {name for name in QUICK if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
        options |= {name: value for name, value in QUICK.items() if name not in given}
    with bad_use():
        design = _design(**options)
    with progress_bars() as progress:
        run_experiment(design, out, workers=workers, progress=progress)
        for name, other in design.conditions().items() if conditions else ():
            run_experiment(other, out / name, workers=workers, progress=_within(progress, name))
    page = write_intervention_page(out)
    click.echo(first_line(out))
    click.echo(f"page: {page.resolve()}")


def _within(progress: Progress, condition: str) -> Progress:
    """Return progress whose stages bear the name of a condition."""
    return lambda stage, done, total: progress(f"{stage} {condition}", done, total)


def _design(kinds: tuple[str, ...], **options: Any) -> Design:
    from toposcope_experiments.interventions.design import KINDS, Design
    from toposcope_experiments.interventions.results import BASE, STATISTIC

    return Design(kinds=tuple(dict.fromkeys((BASE, STATISTIC, *kinds))) if kinds else KINDS, **options)
