"""Trained layers beside random matrices of their shape."""

import altair as alt
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.report.charts.layer_names import short_names
from toposcope.report.charts.series import largest_run, spread
from toposcope.report.material import Material

STATISTICS = {
    "np_mean": ("neural-persistence", "neural persistence", "mean neural persistence"),
    "H0.total": ("h0", "H0 total", "H0 total / weight norm"),
}
MAX_LAYERS = 18
MIN_UNUSUAL_Z = 3.0
"""Standard deviations from an ensemble's mean above which the ensemble does not explain a layer."""


def random_matrix_charts(material: Material) -> list[Chart]:
    """Draw the first and the last value of every layer of the largest run beside random matrices."""
    table = material.tables["references"]
    trajectories = [t for t in material.trajectories if t.run in set(table.get_column("run"))] if len(table) else []
    if not trajectories:
        return []
    run = largest_run(trajectories, material.runs)
    layers = table.filter(run=run.run).get_column("layer").unique(maintain_order=True).to_list()
    kept = [layers[i] for i in spread(len(layers), MAX_LAYERS)]
    names = dict(zip(kept, short_names(kept, run.roles), strict=True))
    left_out = f" ({len(kept)} of its {len(layers)} layers)" if len(kept) < len(layers) else ""
    charts = []
    for statistic, (stem, what, axis) in STATISTICS.items():
        rows = table.filter(pl.col("layer").is_in(kept), run=run.run, statistic=statistic)
        if len(rows):
            title = f"By {what}, {unusual(table.filter(statistic=statistic))}"
            caption = (
                f"{run.run}{left_out}; circle: first checkpoint, dot: last. Coloured: random matrices of its shape, "
                "mean and 2 standard deviations."
            )
            text = f"Dot chart of layers beside random matrices. {title}."
            charts.append(Chart(f"references-{stem}", title, caption, text, _figure(rows, names, axis)))
    return charts


def unusual(rows: pl.DataFrame) -> str:
    """Count the layers of all runs that no ensemble explains at the last checkpoint, of those with a known distance."""
    known = rows.with_columns(pl.col("z_last").fill_nan(None)).drop_nulls("z_last")
    far = (pl.col("z_last").abs() > MIN_UNUSUAL_Z).all()
    layers = known.group_by("run", "layer").agg(far=far).get_column("far")
    if not len(layers):
        return "no layer can be compared with random matrices at the end"
    return f"{layers.sum()} of {len(layers)} layers end unlike every kind of random matrix"


def _figure(rows: pl.DataFrame, names: dict[str, str], axis: str) -> alt.LayerChart:
    rows = rows.with_columns(
        pl.col("layer").replace_strict(names), pl.col("ensemble").str.replace_all("_", " "),
        low=pl.col("mean") - 2 * pl.col("sd"), high=pl.col("mean") + 2 * pl.col("sd"),
    )  # fmt: skip
    layer = alt.Y("layer:N", title=None, sort=list(names.values()), axis=alt.Axis(labelLimit=160))
    random = alt.Chart(rows.select("layer", "ensemble", "mean", "low", "high")).encode(
        y=layer, yOffset="ensemble:N", color=alt.Color("ensemble:N", title=None),
        tooltip=["layer:N", "ensemble:N", "mean:Q", "low:Q", "high:Q"],
    )  # fmt: skip
    own = alt.Chart(rows.select("layer", "first", "last").unique("layer", maintain_order=True)).encode(
        y=layer, tooltip=["layer:N", "first:Q", "last:Q"]
    )
    x = alt.X("mean:Q", title=axis, scale=alt.Scale(zero=False))
    return alt.LayerChart(
        layer=[
            random.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=axis), x2="high:Q"),
            random.mark_point(filled=True, size=26, opacity=1).encode(x=x),
            own.mark_rule().encode(x="first:Q", x2="last:Q"),
            own.mark_point(filled=False, size=60, color="#888").encode(x="first:Q"),
            own.mark_point(filled=True, size=60, color="#888", opacity=1).encode(x="last:Q"),
        ]
    ).properties(height=34 * len(names))
