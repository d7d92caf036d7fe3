"""The picture of the README: correlations before and after the step is known, and forecasts with their intervals.

``make demo`` gives the first table, ``toposcope backtest CURVES --fractions 0.3 --out backtest`` the second.
"""

from pathlib import Path

import click
import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toposcope.report.figures.chart import STYLE

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUN = "tiny-3k"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8c959f"


@click.command(epilog="Example: python benchmarks/overview.py toposcope-demo backtest")
@click.argument("study", type=click.Path(exists=True, path_type=Path))
@click.argument("backtest", type=click.Path(exists=True, path_type=Path))
def main(study: Path, backtest: Path) -> None:
    """Draw both panels from the tables of a study and of a backtest."""
    association = pl.read_csv(study / "report" / "tables" / "association.csv", infer_schema_length=None)
    forecasts = pl.read_csv(backtest / "tables" / "forecasts.csv", infer_schema_length=None)
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(10, 4.4), facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
        draw_correlations(left, association)
        draw_forecasts(right, forecasts)
        figure.savefig(IMAGES / "overview.png", dpi=160)


def draw_correlations(axes: Axes, association: pl.DataFrame) -> None:
    """Draw a line a feature, from its correlation with the loss to what is left of it given the step.

    A feature that orders the checkpoints exactly as the step does has no correlation given the step: it has no line.
    """
    table = association.filter(
        pl.col("run") == RUN,
        pl.col("group") == "network",
        pl.col("target") == "validation_loss",
        pl.col("kind") == "topology",
        pl.col("rho").is_not_nan() & (pl.col("rho").abs() > 0.5),
    )
    tested = table.filter(pl.col("rho_given_step").is_not_nan())
    for before, after in tested.select(pl.col("rho", "rho_given_step").abs()).iter_rows():
        axes.plot([0, 1], [before, after], "o-", color=BLUE, alpha=0.55, linewidth=1.2, markersize=4)
    untested = table.filter(pl.col("rho_given_step").is_nan()).get_column("rho").abs()
    axes.plot([0] * len(untested), untested, "o", color=GREY, markersize=4)
    step = float(table.get_column("rho_step").abs().max())  # type: ignore[arg-type]
    axes.plot([-0.12, 0.12], [step, step], color=ORANGE, linewidth=2)
    axes.annotate("the step number alone", (0.15, step), va="center", color=ORANGE, fontsize=10)
    note = f"not tested: {len(untested)} features\nthat order the checkpoints\nexactly as the step does"
    axes.annotate(note, (1.07, 0.02), va="bottom", color=GREY, fontsize=9)
    axes.set(xlim=(-0.25, 1.75), ylim=(-0.03, 1.03), xticks=(0, 1), ylabel="strength of the correlation with the loss")
    axes.set_xticklabels(["alone", "once the step\nis known"])
    title = f"Correlations fade: {len(tested)} topological features"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")


def draw_forecasts(axes: Axes, forecasts: pl.DataFrame) -> None:
    """Draw the interval of every run beside its final loss."""
    table = forecasts.filter(forecaster="default", fraction=0.3).drop_nulls("predicted")
    low, middle, high = (
        100 * (table.get_column(name) / table.get_column("final") - 1) for name in ("low", "predicted", "high")
    )
    table = pl.DataFrame({"low": low, "middle": middle, "high": high}).sort("middle")
    holds = (table.get_column("low") <= 0) & (table.get_column("high") >= 0)
    places = range(len(table))
    colours = [BLUE if inside else ORANGE for inside in holds]
    axes.vlines(places, table.get_column("low"), table.get_column("high"), colors=colours, alpha=0.35, linewidth=1.6)
    axes.scatter(places, table.get_column("middle"), c=colours, s=5, zorder=3)
    axes.axhline(0, color="black", linewidth=1)
    axes.set(ylim=(-12, 12), xlim=(-3, len(table) + 2), xticks=(), ylabel="predicted − final loss, %")
    axes.set_xlabel(f"{len(table)} public training runs, each predicted from its first 30%")
    hits = int(holds.sum())
    share = f"Forecasts hold: {hits / len(table):.0%} of the 90% intervals are right"
    axes.set_title(share, loc="left", fontsize=11, fontweight="bold")


if __name__ == "__main__":
    main()
