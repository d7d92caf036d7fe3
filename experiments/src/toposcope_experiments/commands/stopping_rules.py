"""``toposcope stopping-rules``."""

from __future__ import annotations

from pathlib import Path

import click

from toposcope.extend import FILE, bad_use, print_json, print_table, progress_bars
from toposcope_experiments.commands.options import experiment_options


@click.command("stopping-rules")
@experiment_options("stopping-rules")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Sweeps of each network and kind."
)
@click.option("--runs", type=click.IntRange(2), default=32, show_default=True, help="Runs of each sweep.")
@click.option("--steps", type=click.IntRange(60), default=600, show_default=True, help="Updates of the longest runs.")
@click.option("--taskset", type=FILE, help="Curves of TaskSet: a Parquet file with task, run and valid_loss.")
@click.option("--given", type=FILE, multiple=True, help="A sweep trained elsewhere: an .npz file; as often as needed.")
def stopping_rules(
    out: Path, repeats: int, runs: int, steps: int, taskset: Path | None, given: tuple[Path, ...],
    workers: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Test which rule loses the best run of a sweep least often, and what each saves.

    Trains sweeps of three networks in nine ways, and replays each, in twenty random orders, under `toposcope sweep`'s
    rules and those that people use. Interrupted, it goes on where it was.

    \b
    Example:
      toposcope stopping-rules --out stopping-rules
      toposcope stopping-rules --repeats 1 --runs 8 --steps 120
    """
    from toposcope_experiments.sweeps.design import Design
    from toposcope_experiments.sweeps.experiment import run_experiment

    with bad_use(), progress_bars() as progress:
        design = Design(repeats=repeats, runs=runs, steps=steps, longer=4 * steps)
        tables = run_experiment(design, out, taskset, given, workers=workers, progress=progress)
    if as_json:
        print_json({name: table.to_dicts() for name, table in tables.items() if name != "replays"})
        return
    eight = tables["rules"].filter(workers="8").drop("workers")
    rows = [[str(x) if isinstance(x, str | int) else f"{x:.3f}" for x in row] for row in eight.iter_rows()]
    print_table(
        eight.columns, rows, "Eight workers: the best run lost by more than 1%, its 95% interval, regret, saved"
    )
    click.echo(f"tables: {out.resolve()}")
