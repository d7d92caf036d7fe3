"""Error of the published forecasts of the final loss."""

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import StudyData
from toposcope_experiments.published_study.reproduction import BLEND_OF_LOSSES

BLEND, WITHOUT = "paper_combined", f"paper_{BLEND_OF_LOSSES}"
LINES = {
    "paper_loss_only": "loss only",
    "paper_tda_only": "topology only",
    BLEND: "loss and topology",
    WITHOUT: "the same blend without topology",
    "last": "last window",
}
PROTOCOLS = {"published": "On one batch's loss, as published", "exact": "On the validation or mean loss"}


def prediction_charts(data: StudyData) -> list[Chart]:
    """Draw the error of each forecaster by the share of training seen: a chart for each protocol."""
    claims = data.declaration.published
    table = comparable(data.tables["predictions"], list(claims.final_loss) if claims else [])
    published = claims.prediction_errors if claims else {}
    return [
        _chart(table.filter(protocol=protocol), protocol, published if protocol == "published" else {})
        for protocol in PROTOCOLS
        if len(table.filter(protocol=protocol))
    ]


def comparable(predictions: pl.DataFrame, named: list[str]) -> pl.DataFrame:
    """Keep the runs for which every forecast was made, so that means are over the same runs; of these those published.

    Without persistence, for example, there is no forecast from topology.
    """
    table = predictions.filter(pl.col("error").is_finite(), pl.col("forecaster").is_in(list(LINES)))
    of_published = table.filter(pl.col("run").is_in(named))
    table = of_published if len(of_published) else table
    made = pl.col("forecaster").n_unique()
    return table.filter(made.over("run", "protocol", "fraction") == made.over("protocol", "fraction"))


def _chart(table: pl.DataFrame, protocol: str, published: dict[str, dict[str, float]]) -> Chart:
    errors = table.group_by("forecaster", "fraction", maintain_order=True).agg(pl.col("error").mean())
    title = f"{PROTOCOLS[protocol]}: {_title(errors)}"
    marks = pl.DataFrame(
        [(f"paper_{name}", float(at), error) for name, errs in published.items() for at, error in errs.items()],
        schema=dict(errors.schema), orient="row",
    ).filter(pl.col("forecaster").is_in(list(LINES)))  # fmt: skip
    hollow = "; squares: published errors" if len(marks) else ""
    n_runs = table.get_column("run").n_unique()
    caption = f"Mean absolute error over {n_runs} run{'s'[: n_runs > 1]}, in nats{hollow}."
    alternative = f"Line chart of the error of forecasts of the final loss by the share of training seen. {title}."
    return Chart(f"predictions-{protocol}", title, caption, alternative, _figure(errors, marks))


def _figure(errors: pl.DataFrame, marks: pl.DataFrame) -> alt.LayerChart:
    def layer(rows: pl.DataFrame) -> alt.Chart:
        shares = sorted(rows.get_column("fraction").unique())
        chart: alt.Chart = alt.Chart(rows.with_columns(pl.col("forecaster").replace(LINES))).encode(
            x=alt.X("fraction:Q", title="share of training seen", axis=alt.Axis(values=shares, format="%")),
            y=alt.Y("error:Q", title="mean error (nats)"),
            color=alt.Color(
                "forecaster:N", title=None, scale=alt.Scale(domain=list(LINES.values())), legend=alt.Legend(columns=3)
            ),
            tooltip=[alt.Tooltip("forecaster:N"), alt.Tooltip("fraction:Q"), alt.Tooltip("error:Q", format=".3f")],
        )
        return chart

    lines = layer(errors).mark_line(point={"size": 30})
    if not len(marks):
        return alt.LayerChart(layer=[lines])
    published = layer(marks).mark_point(shape="square", filled=False, size=110, strokeWidth=1.6)
    return alt.LayerChart(layer=[lines, published])


def _title(errors: pl.DataFrame) -> str:
    """Give the error of the blend, with topology and with the last value in its place, at the middle share."""
    wide = errors.filter(pl.col("forecaster").is_in([BLEND, WITHOUT])).pivot(
        "forecaster", index="fraction", values="error"
    )
    pairs = wide.drop_nulls().sort("fraction")
    if not len(pairs) or not {BLEND, WITHOUT} <= set(wide.columns):
        best = errors.sort("error").row(0, named=True)
        return f"the least error is that of {LINES[best['forecaster']]}"
    row = pairs.row(len(pairs) // 2, named=True)
    return f"at {row['fraction']:.0%} seen the blend errs by {row[BLEND]:.2f}, without topology by {row[WITHOUT]:.2f}"
