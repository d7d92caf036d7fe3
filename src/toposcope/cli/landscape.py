"""``toposcope landscape``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from toposcope.cli import options
from toposcope.cli.output import print_notes, print_report, print_table, save_figure
from toposcope.cli.progress_bars import progress_bars

if TYPE_CHECKING:
    from pathlib import Path

    from toposcope.study.landscape_report import LandscapeReport


@click.command()
@click.argument("checkpoint")
@click.option(
    "--step", type=options.Count(min=0), help="Step of the checkpoint, where a series is named (default: the last)."
)
@options.choice_option("--directions", choices=["random", "hessian", "trajectory"], help="What spans the planes.")
@options.defaulted_option(
    "--resolution", type=click.IntRange(min=5), default=51, help="Points along a side of a plane."
)
@options.defaulted_option(
    "--span", type=options.ABOVE_0, default=1.0, help="Largest coordinate on either side of the checkpoint."
)
@options.defaulted_option("--seeds", type=options.COUNT, default=3, help="Planes of random directions.")
@click.option("--text", default="", metavar="FILE", help="Text that the model reads (default: a built-in one).")
@options.tokenizer_option
@options.json_option
@options.figure_option
@options.series_options
def landscape(
    checkpoint: str,
    step: int | None,
    directions: Literal["random", "hessian", "trajectory"],
    resolution: int,
    span: float,
    seeds: int,
    text: str,
    tokenizer: str,
    as_json: bool,
    out: Path | None,
    opening: options.Opening,
) -> None:
    """Draw the loss on planes around a checkpoint, and describe its basins, each number with its spread.

    CHECKPOINT is one checkpoint, or a series of them. Random directions are normalised filter by filter: at coordinate
    1 each row of a matrix has moved by its own length. Along eigenvectors of the Hessian the quadratic approximation
    changes by one nat at coordinate 1; the components of the path of a series are scaled so that it fits the plane.

    \b
    Example:
      toposcope landscape checkpoints/step_1000.safetensors --json
      toposcope landscape checkpoints/ --step 1000 --directions hessian
      toposcope landscape checkpoints/ --directions trajectory --out path.svg
    """
    if not math.isfinite(span):
        raise options.BadUse(f"--span {span}: it must be finite and above 0")
    given = click.get_current_context().get_parameter_source("seeds") is ParameterSource.COMMANDLINE
    if given and directions != "random":
        raise options.BadUse(
            f"--seeds {seeds}: there is one plane along these directions; leave it out, or take random ones"
        )
    from toposcope.probes.landscape import LandscapeProbe
    from toposcope.study.checkpoint_landscape import landscape_report

    with options.bad_use():
        source = options.resolved_place(text, "--text", ("python-docs",))
        place = options.resolved_place(tokenizer, "--tokenizer", ("characters",))
    with progress_bars() as progress:
        report = landscape_report(
            opening.open(checkpoint),
            step,
            LandscapeProbe(resolution=resolution, span=span, draws=seeds, directions=directions),
            text=source,
            tokenizer=place,
            access=opening.access,
            progress=progress,
        )
    written = "" if out is None else save_figure(out, report.plot())
    print_report(report.to_dict, lambda: _print(report), as_json=as_json, written=written)


def _print(report: LandscapeReport) -> None:
    from toposcope.study.landscape_report import STATISTIC_NAMES

    click.echo(report.headline())
    click.echo(f"loss at the checkpoint: {report.loss:.6g} nats per token, {report.n_tokens:,} tokens of {report.text}")
    click.echo(report.planes_line())
    rows = [
        (STATISTIC_NAMES[name], found.mean, found.planes, found.batches, found.resolution, found.error)
        for name, found in report.statistics().items()
    ]
    columns = ("statistic", "mean", "sd over planes", "sd over texts", "change at half resolution", "numerical error")
    print_table(columns, rows, "nats per token, counts and shares")
    for name, value in () if report.is_one_minimum else report.between.items():
        click.echo(f"between two planes: {name} {value:.3g} nats")
    print_notes(report.remarks())
