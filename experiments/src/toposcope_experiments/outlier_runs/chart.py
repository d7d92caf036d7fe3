"""How far each run lies from its replicates: heat maps of run by step, for a few quantities."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import StudyData, examples, headline_features, joined, named, spread
from toposcope_experiments.outlier_runs.outlier_runs import APART, apart_runs

MAX_FAMILIES, MAX_QUANTITIES, MAX_RUNS, MAX_STEPS = 3, 6, 16, 30
"""Groups of replicates, quantities, runs and steps that are drawn."""
KINDS_DRAWN = ("loss", "norm", "spectrum", "topology")
MAX_DISTANCE = 10.0  # colours go no further
PANEL_WIDTH, ROW_HEIGHT = 300, 16


def outlier_run_charts(data: StudyData) -> list[Chart]:
    """Draw the distance of each run from its replicates over the steps: a chart a group, those with outliers first."""
    table, standings = (data.tables[name] for name in ("outlier_runs", "outlier_standings"))
    if not len(table):
        return []
    with_outliers = table.filter(verdict=APART).get_column("family").unique(maintain_order=True).to_list()
    largest_first = table.get_column("family").unique(maintain_order=True).to_list()[::-1]
    families = list(dict.fromkeys([*with_outliers, *largest_first]))[:MAX_FAMILIES]
    charts = [
        _chart(number, family, table.filter(family=family), standings.filter(family=family))
        for number, family in enumerate(families, 1)
    ]
    return [chart for chart in charts if chart]


def drawn_quantities(table: pl.DataFrame) -> list[str]:
    """Choose quantities of a group of replicates: a loss, what sets runs apart first, and one of each other kind."""
    compared = table.filter(pl.col("n_steps") > 0)
    first = [rows.item(0, "feature") for rows in apart_runs(compared).values()]
    features = compared.select("feature", "kind").unique(maintain_order=True)
    headlines = headline_features(features.get_column("feature"))
    of_kinds = []
    for kind in KINDS_DRAWN:
        names = features.filter(kind=kind).get_column("feature").to_list()
        of_kinds += [name for name in [*headlines, *names] if name in names][:1]
    return list(dict.fromkeys([*of_kinds[:1], *first, *of_kinds[1:]]))[:MAX_QUANTITIES]


def _chart(number: int, family: str, table: pl.DataFrame, standings: pl.DataFrame) -> Chart | None:
    quantities = drawn_quantities(table)
    rows = standings.filter(pl.col("feature").is_in(quantities), pl.col("distance").is_finite())
    if not len(rows):
        return None
    apart = table.filter(verdict=APART).get_column("run").unique(maintain_order=True).to_list()
    everyone = table.get_column("run").unique(maintain_order=True).to_list()
    runs = [run for run in everyone if run in set([*apart, *everyone][:MAX_RUNS])]
    steps = rows.get_column("step").unique().sort()
    drawn = steps.gather(spread(len(steps), MAX_STEPS))
    rows = rows.filter(pl.col("run").is_in(runs), pl.col("step").is_in(drawn.implode()))
    names = {quantity: named(quantity) for quantity in quantities}
    rows = rows.select("run", "step", "distance", "value", "rank", quantity=pl.col("feature").replace_strict(names))
    title = f"{family}: {_outcome(apart)}"
    cut = f" {len(runs)} of {len(everyone)} runs." if len(runs) < len(everyone) else ""
    caption = (
        "Distance from the others at the same step, in their standard deviations; colours end at "
        f"{MAX_DISTANCE:g}.{cut} White: too few different values to compare."
    )
    text = f"Heat maps of run by training step for {joined(list(names.values()))}. {title}."
    return Chart(f"outlier-runs-{number}", title, caption, text, _figure(rows, runs, list(names.values())))


def _outcome(apart: Sequence[str]) -> str:
    if not apart:
        return "no run stands apart"
    return f"{examples(apart)} {'stands' if len(apart) == 1 else 'stand'} apart"


def _figure(rows: pl.DataFrame, runs: Sequence[str], quantities: Sequence[str]) -> alt.FacetChart:
    scale = alt.Scale(range="diverging", domain=[-MAX_DISTANCE, MAX_DISTANCE], domainMid=0, clamp=True)
    cells = alt.Chart(rows).mark_rect().encode(
        x=alt.X("step:O", title="training step", axis=alt.Axis(format="~s", labelAngle=0, labelOverlap=True)),
        y=alt.Y("run:N", title=None, sort=list(runs), axis=alt.Axis(labelLimit=120, grid=False)),
        color=alt.Color(
            "distance:Q", title="distance", scale=scale, legend=alt.Legend(gradientLength=160, orient="top")
        ),
        tooltip=[
            "run:N", "quantity:N", alt.Tooltip("step:O", format=",d"), alt.Tooltip("value:Q", format=".4~g"),
            alt.Tooltip("rank:Q", format=".1~f"), alt.Tooltip("distance:Q", format="+.1f"),
        ],
    ).properties(width=PANEL_WIDTH, height=ROW_HEIGHT * len(runs))  # fmt: skip
    panels = cells.facet(alt.Facet("quantity:N", sort=list(quantities), title=None), columns=2)
    figure: alt.FacetChart = panels.resolve_axis(x="independent", y="independent")
    return figure
