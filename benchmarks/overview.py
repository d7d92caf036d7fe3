"""The picture of the README: correlations before and after the step is known, and forecasts with their intervals.

``make demo`` gives the first table, ``toposcope backtest CURVES --fractions 0.3 --out backtest`` the second.
"""

from pathlib import Path

import altair as alt
import click
import polars as pl

from toposcope.charts.chart import Chart

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RUN = "tiny-3k"
HEIGHT = 320
LEVELS = ("alone", "once the step is known")


@click.command(epilog="Example: python benchmarks/overview.py toposcope-demo backtest")
@click.argument("study", type=click.Path(exists=True, path_type=Path))
@click.argument("backtest", type=click.Path(exists=True, path_type=Path))
def main(study: Path, backtest: Path) -> None:
    """Draw both panels from the tables of a study and of a backtest."""
    association = pl.read_csv(study / "report" / "tables" / "association.csv", infer_schema_length=None)
    forecasts = pl.read_csv(backtest / "tables" / "forecasts.csv", infer_schema_length=None)
    both = alt.HConcatChart(hconcat=[correlations(association), intervals(forecasts)], spacing=50).resolve_scale(
        color="independent"
    )
    text = "Correlations of topological features with the loss, and forecasts with their intervals."
    Chart("overview", "", "", text, both).save(str(IMAGES / "overview.svg"))


def correlations(association: pl.DataFrame) -> alt.LayerChart:
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
    rows = pl.concat([
        tested.select("feature", when=pl.lit(when), rho=pl.col(column).abs())
        for when, column in zip(LEVELS, ("rho", "rho_given_step"), strict=True)
    ])  # fmt: skip
    n_untested = len(table) - len(tested)
    step = pl.DataFrame({"when": LEVELS[:1], "rho": [float(table["rho_step"].abs().to_numpy().max())]})
    x = alt.X("when:N", sort=list(LEVELS), title=None, axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.4))
    y = alt.Y("rho:Q", title="strength of the correlation with the loss", scale=alt.Scale(domain=[0, 1]))
    second = alt.ColorDatum("b", scale=alt.Scale(domain=["a", "b"]), legend=None)
    by_step = alt.Chart(step).encode(x, y, color=second)
    return alt.LayerChart(
        layer=[
            alt.Chart(rows).mark_line(opacity=0.5, strokeWidth=1.2, point=True).encode(
                x, y, detail="feature", color=alt.ColorDatum("a", legend=None)),
            by_step.mark_tick(thickness=3, size=40),
            by_step.mark_text(align="left", dx=24, text="the step alone"),
        ],
        title=alt.Title(
            f"Correlations fade: {len(tested)} topological features",
            subtitle=f"{n_untested} more move exactly as the step does: no test",
        ),
    ).properties(width=340, height=HEIGHT)  # fmt: skip


def intervals(forecasts: pl.DataFrame) -> alt.LayerChart:
    """Draw the interval of every run beside its final loss."""
    final = pl.col("final")
    table = forecasts.filter(forecaster="default", fraction=0.3).drop_nulls("predicted").select(
        holds=(pl.col("low") <= final) & (pl.col("high") >= final),
        **{name: 100 * (pl.col(name) / final - 1) for name in ("low", "predicted", "high")},
    ).sort("predicted").with_row_index("place")  # fmt: skip
    x = alt.X("place:Q", title=f"{len(table)} public training runs, each predicted from its first 30%",
              axis=alt.Axis(labels=False, ticks=False), scale=alt.Scale(nice=False, padding=4))  # fmt: skip
    y = alt.Y("predicted:Q", title="predicted − final loss, %", scale=alt.Scale(domain=[-12, 12]))
    colour = alt.Color("holds:N", scale=alt.Scale(domain=[True, False]), legend=None)
    base = alt.Chart(table).encode(x, color=colour)
    low = alt.Y("low:Q", title=y["title"], scale=y["scale"])
    zero = alt.Chart(pl.DataFrame({"predicted": [0]}))
    return alt.LayerChart(
        layer=[
            base.mark_rule(opacity=0.35, clip=True).encode(low, y2="high:Q"),
            zero.mark_rule().encode(y=y),
            base.mark_point(filled=True, opacity=1, size=8, clip=True).encode(y=y),
        ],
        title=alt.Title(
            f"Forecasts hold: {table['holds'].sum() / len(table):.0%} of the 90% intervals are right",
            subtitle="Blue: the interval holds the final loss; orange: it does not",
        ),
    ).properties(width=480, height=HEIGHT)  # fmt: skip


if __name__ == "__main__":
    main()
