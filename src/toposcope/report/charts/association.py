"""Correlation of the headline features with the loss, alone and given the clocks, as cells of a heat map."""

import altair as alt
import polars as pl

from toposcope.analysis.trajectories import SCALE as SCALE_STATISTIC
from toposcope.charts.chart import Chart
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import SCALED, has_scales, measured, primary
from toposcope.report.charts.runs import choose_runs
from toposcope.report.headline import CLOUD_STATISTICS, HEADLINES, Headline, headlines_of
from toposcope.report.material import Material
from toposcope.study.kinds import PUBLISHED

MAX_RUNS = 4
COLUMNS = {"rho": "alone", "rho_step": "the step", "rho_given_step": "given step", "rho_given_all": "given clocks"}
SCALE = {"rho_given_scale": "given scale"}
"""For features of hidden states: given the step and the top eigenvalue of the same states."""
INK = {"paper": "datum.rho < -0.76", "black": "datum.rho > 0.6"}
"""Where a number in a cell is not in the page's ink: purple cells come as dark as it, on any page, and orange
ones are lighter than black."""
CELL = 22
"""Height of a cell in pixels."""


def association_heat_map(material: Material) -> Chart | None:
    """Draw rank correlations of the headline features, alone and given the clocks: a panel for each run."""
    rows = measured(primary(material)).filter(pl.col("group") == NETWORK)
    of_states = headlines_of(material.trajectories, CLOUD_STATISTICS)
    names = {h.key: h.name for h in HEADLINES} | {h.key: _short(h) for h in of_states}
    present = set(rows.get_column("feature"))
    names = {feature: name for feature, name in names.items() if feature in present}
    if not names:
        return None
    runs = set(rows.get_column("run"))
    shown, left_out = choose_runs([t for t in material.trajectories if t.run in runs], material.runs, MAX_RUNS)
    columns = COLUMNS | (SCALE if has_scales(rows) else {})
    in_shown = pl.col("run").is_in([t.run for t in shown])
    cells = _cells(rows.filter(in_shown), names, columns)
    title = _title(rows.filter(pl.col("kind") == TOPOLOGY))
    scale = "; scale: the step and the states' top eigenvalue" if len(columns) > len(COLUMNS) else ""
    caption = (
        "Rank correlation with the loss of the feature alone, of the step, and of the feature given the step or all "
        f"clocks{scale}. “–”: not defined, as a clock orders the checkpoints like the feature or the loss.{left_out}"
    )
    figure = _figure(cells, [t.run for t in shown], list(names.values()), list(columns.values()))
    alternative = f"Heat map of rank correlations with the loss, a row for each feature. {title}."
    return Chart("association", title, caption, alternative, figure)


def _short(headline: Headline) -> str:
    return f"{headline.axis}, {'published' if headline.feature.probe == PUBLISHED else 'hidden'}"


def _cells(rows: pl.DataFrame, names: dict[str, str], columns: dict[str, str]) -> pl.DataFrame:
    """Return ``run, feature, given, rho``; rho is null where a correlation is not defined."""
    of_scale = pl.col("given").is_in(list(SCALE))
    has_scale = pl.col("scaled") & ~pl.col("feature").str.ends_with(f" {SCALE_STATISTIC}")
    scaled = pl.col(SCALED).is_finite() if SCALED in rows.columns else pl.lit(value=False)
    return (
        rows.filter(pl.col("feature").is_in(list(names)))
        .select("run", "feature", *columns, scaled=scaled)
        .unpivot(list(columns), index=["run", "feature", "scaled"], variable_name="given")
        .filter(~of_scale | has_scale)
        .select(
            "run",
            pl.col("feature").replace_strict(names),
            pl.col("given").replace_strict(columns),
            rho=pl.col("value").fill_nan(None),
        )
    )


def _figure(cells: pl.DataFrame, runs: list[str], features: list[str], columns: list[str]) -> alt.FacetChart:
    above = alt.Axis(orient="top", labelAngle=0, labelFontSize=11, domain=False, ticks=False)
    base = alt.Chart(cells).encode(
        x=alt.X("given:N", sort=columns, title=None, axis=above),
        y=alt.Y("feature:N", sort=features, title=None, axis=alt.Axis(labelLimit=190)),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("feature:N"),
            alt.Tooltip("given:N"),
            alt.Tooltip("rho:Q", format="+.3f"),
        ],
    )
    scale, legend = alt.Scale(domain=[-1, 1], domainMid=0), alt.Legend(title="rho", gradientLength=160)
    number = base.mark_text(fontSize=11).encode(text=alt.Text("rho:Q", format="+.2f"))
    layers = [
        base.transform_filter("isValid(datum.rho)")
        .mark_rect()
        .encode(color=alt.Color("rho:Q", scale=scale, legend=legend)),
        number.transform_filter(f"isValid(datum.rho) && !({INK['paper']}) && !({INK['black']})"),
        number.transform_filter(INK["paper"]).encode(color=alt.ColorDatum(0, scale=scale)),
        number.transform_filter(INK["black"]).encode(color=alt.ColorValue("black")),
        base.transform_filter("!isValid(datum.rho)").mark_text().encode(text=alt.TextValue("–")),
    ]
    panel = alt.LayerChart(layer=layers).properties(width=64 * len(columns), height=CELL * len(features))
    panels = panel.facet(alt.Facet("run:N", sort=runs, title=None), columns=2)
    figure: alt.FacetChart = panels.resolve_axis(x="independent")
    return figure


def _title(topology: pl.DataFrame) -> str:
    """Say what becomes of the correlations of topology once the step is given."""
    both = topology.filter(pl.col("rho_given_step").is_finite())
    if not len(both):
        return "No correlation of topology with the loss is defined once the step is given"
    before, after = (float(both.select(pl.col(name).abs().median()).item()) for name in ("rho", "rho_given_step"))
    moves = (
        "stays at"
        if round(before, 2) == round(after, 2)
        else f"{'falls' if after < before else 'rises'} from {before:.2f} to"
    )
    return f"The median |rho| of topology {moves} {after:.2f} once the step is given"
