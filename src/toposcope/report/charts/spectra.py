"""Topology against spectral measures of the same hidden states: differences of the strength of their correlations."""

import altair as alt
import polars as pl

from toposcope.charts.axes import zero_line
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.report.charts.runs import choose_runs
from toposcope.report.charts.series import run_names
from toposcope.report.headline import CLOUD_STATISTICS, CLOUD_TOPOLOGY, Headline, headlines_of
from toposcope.report.material import Material
from toposcope.report.spectral_comparison import BLOCKS, spectral_comparisons
from toposcope.study.kinds import PUBLISHED, feature_named

MAX_RUNS = 5
ROW = 12
"""Height of the line of one run in pixels."""
DECIDED = "datum.low > 0 || datum.high < 0"
SPECTRA = {
    **{name: CLOUD_STATISTICS[name] for name in ("rankme", "effective_rank", "top_eigenvalue", "anisotropy", "two_nn")},
    "participation_ratio": "Participation ratio",
    "eigenspectrum_decay": "Eigenspectrum decay",
    "stable_rank": "Stable rank",
    "mean_norm": "Mean norm",
}


def topology_against_spectra_charts(material: Material) -> list[Chart]:
    """Draw differences of |rho| with their block bootstrap intervals: a chart for each topological feature."""
    rows = spectral_comparisons(material.tables["comparisons"])
    if not len(rows):
        return []
    measure = pl.col("other").map_elements(lambda name: feature_named(name).statistic, return_dtype=pl.String)
    rows = rows.filter(pl.col("low").is_finite(), test=BLOCKS).with_columns(measure=measure)
    rows = rows.filter(pl.col("measure").is_in(list(SPECTRA)))
    headlines = headlines_of(material.trajectories, CLOUD_TOPOLOGY)
    drawn = [_chart(material, headline, rows.filter(feature=headline.key)) for headline in headlines]
    return [chart for chart in drawn if chart is not None]


def _chart(material: Material, headline: Headline, rows: pl.DataFrame) -> Chart | None:
    if not len(rows):
        return None
    stronger, weaker = (rows.filter(side).height for side in (pl.col("low") > 0, pl.col("high") < 0))
    title = (
        f"{headline.name} correlates more strongly than spectral measures in {stronger}, less in {weaker} of "
        f"{len(rows)} comparisons"
    )
    runs = set(rows.get_column("run"))
    shown, left_out = choose_runs([t for t in material.trajectories if t.run in runs], material.runs, MAX_RUNS)
    caption = f"Lines: 95% intervals of the block bootstrap, filled where they exclude 0.{left_out}"
    alternative = f"Dot chart of differences of the strength of two correlations with the loss. {title}."
    of_states = "published-" if headline.feature.probe == PUBLISHED else ""
    name = f"{of_states}{headline.feature.statistic.lower().replace('.', '-')}-against-spectra"
    return Chart(name, title, caption, alternative, _figure(rows, [t.run for t in shown], run_names(material)))


def _figure(rows: pl.DataFrame, shown: list[str], runs: list[str]) -> alt.LayerChart:
    rows = rows.filter(pl.col("run").is_in(shown)).select(
        "run", "difference", "low", "high", measure=pl.col("measure").replace_strict(SPECTRA)
    )
    measures = [name for name in SPECTRA.values() if name in set(rows.get_column("measure"))]
    x = alt.X("difference:Q", title="|rho| of topology minus |rho| of the spectral measure", axis=alt.Axis(grid=True))
    base = alt.Chart(rows).encode(
        y=alt.Y("measure:N", sort=measures, title=None, axis=alt.Axis(grid=True, tickBand="extent")),
        yOffset=alt.YOffset("run:N", scale=alt.Scale(domain=shown)),
        color=run_colour(runs, legend=len(shown) > 1),
        tooltip=["measure:N", "run:N", *(alt.Tooltip(f"{n}:Q", format="+.3f") for n in ("difference", "low", "high"))],
    )
    layers = [
        zero_line("x"),
        base.mark_rule(strokeWidth=1.4).encode(x="low:Q", x2="high:Q"),
        base.transform_filter(DECIDED).mark_point(size=42, opacity=1).encode(x=x),
        base.transform_filter(f"!({DECIDED})")
        .mark_point(filled=False, size=42, opacity=1, strokeWidth=1.6)
        .encode(x=x),
    ]
    return alt.LayerChart(layer=layers).properties(height=len(measures) * (len(shown) * ROW + 8))
