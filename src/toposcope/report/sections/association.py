"""Association of every feature with the loss, with the controls that could explain it; the verdict."""

from collections.abc import Iterable, Sequence

import altair as alt
import polars as pl

from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.given_covariates import STEP
from toposcope.analysis.table import association_table, comparison_table
from toposcope.analysis.topology_verdict import SCALED, has_scales
from toposcope.analysis.trajectory import SCALE as SCALE_STATISTIC
from toposcope.analysis.verdict import verdict_sentence
from toposcope.charts.chart import Chart
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report import association_tables as tables
from toposcope.report import formats
from toposcope.report.charts.series import choose_runs, runs_in
from toposcope.report.document import Block, Picture, details, linked, paragraph
from toposcope.report.headline import (
    CLOUD_STATISTICS,
    HEADLINES,
    headline_features,
    headlines_of,
    named,
)
from toposcope.report.not_made import needs_checkpoints, needs_features, needs_loss
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import (
    Column,
    Table,
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    numbers,
    table,
    text_of,
)
from toposcope.report.verdict import association_sentences, study_verdict
from toposcope.study.kinds import PUBLISHED, feature_named
from toposcope.wording import joined

MAX_TABLE_ROWS = 5_000
"""Rows of a table on a page; a longer one is only a file. Five sizes with all default probes have 2,000."""

MAX_PANELS = 4
COLUMNS = {"rho": "alone", "rho_step": "the step", "rho_given_step": "given step", "rho_given_all": "given covariates"}
SCALE = {"rho_given_scale": "given scale"}
"""For features of hidden states: given the step and the top eigenvalue of the same states."""
INK = {"paper": "datum.rho < -0.76", "black": "datum.rho > 0.6"}
"""Where a number in a cell is not in the page's ink: purple cells come as dark as it, on any page, and orange
ones are lighter than black."""


def association_heat_map(data: StudyData) -> Chart | None:
    """Draw rank correlations of the headline features, alone and given the covariates: a panel for each run."""
    rows = tables.measured(tables.primary(data)).filter(pl.col("group") == NETWORK)
    of_states = headlines_of(data.trajectories, CLOUD_STATISTICS)
    names = {h.key: h.name for h in HEADLINES}
    names |= {h.key: f"{h.axis}, {'published' if h.feature.probe == PUBLISHED else 'hidden'}" for h in of_states}
    present = set(rows.get_column("feature"))
    names = {feature: name for feature, name in names.items() if feature in present}
    if not names:
        return None
    shown, left_out = choose_runs(runs_in(data, rows), data.runs, MAX_PANELS)
    columns = COLUMNS | (SCALE if has_scales(rows) else {})
    in_shown = pl.col("run").is_in([t.run for t in shown])
    cells = _cells(rows.filter(in_shown), names, columns)
    title = _heat_map_title(rows.filter(pl.col("kind") == TOPOLOGY))
    scale = "; scale: the step and the states' top eigenvalue" if len(columns) > len(COLUMNS) else ""
    caption = (
        "Rank correlation with the loss of the feature alone, of the step, and of the feature given the step or all "
        f"covariates{scale}. “–”: not defined, as feature or loss follows a covariate exactly.{left_out}"
    )
    figure = _heat_map(cells, [t.run for t in shown], list(names.values()), list(columns.values()))
    alternative = f"Heat map of rank correlations with the loss, a row for each feature. {title}."
    return Chart("association", title, caption, alternative, figure)


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


def _heat_map(cells: pl.DataFrame, runs: list[str], features: list[str], columns: list[str]) -> alt.FacetChart:
    above = alt.Axis(orient="top", labelAngle=0, labelFontSize=11, domain=False, ticks=False)
    base = alt.Chart(cells).encode(
        x=alt.X("given:N", sort=columns, title=None, axis=above),
        y=alt.Y("feature:N", sort=features, title=None, axis=alt.Axis(labelLimit=190)),
        tooltip=[*(f"{n}:N" for n in ("run", "feature", "given")), alt.Tooltip("rho:Q", format="+.3f")],
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
    panel = alt.LayerChart(layer=layers).properties(width=64 * len(columns), height=22 * len(features))
    panels = panel.facet(alt.Facet("run:N", sort=runs, title=None), columns=2)
    figure: alt.FacetChart = panels.resolve_axis(x="independent")
    return figure


def _heat_map_title(topology: pl.DataFrame) -> str:
    """Say what becomes of the correlations of topology once the step is given."""
    both = topology.filter(pl.col("rho_given_step").is_finite())
    if not len(both):
        return "No correlation of topology with the loss is defined once the step is given"
    before, after = (float(both.select(pl.col(name).abs().median()).item()) for name in ("rho", "rho_given_step"))
    changes = f"{'falls' if after < before else 'rises'} from {before:.2f} to"
    moves = "stays at" if round(before, 2) == round(after, 2) else changes
    return f"The median |rho| of topology {moves} {after:.2f} once the step is given"


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the association of every feature with the loss, next to that of the step."""
    rows = tables.primary(data).filter(pl.col("group") == NETWORK)
    short = tables.short_table(rows)
    full = tables.full_table("association", "Association of every feature of the network with the loss", rows)
    if full is None:
        return ()
    targets = joined([named(name) for name in rows.get_column("target").unique(maintain_order=True)])
    return (
        *pictures,
        paragraph(f"The loss is the {targets}. A feature has to do better than the step and the other covariates."),
        short,
        *_every_feature(rows, full),
        *_comparisons(data.tables["comparisons"]),
        *against_spectra(data.tables["comparisons"]),
    )


def _every_feature(rows: pl.DataFrame, full: Table) -> list[Block | None]:
    """Show all ten items of every feature, unless nobody would scroll through them."""
    if len(full.rows) > MAX_TABLE_ROWS:
        return [
            linked(f"All ten items of every feature and run, in {len(full.rows):,} rows: association.csv."),
            tables.legend(rows),
        ]
    return [
        details(
            f"Every feature of the network, all ten items ({len(full.rows):,} rows; sortable)",
            tables.legend(rows),
            linked("Every group of layers and target: association.csv."),
            full,
        )
    ]


def _comparisons(frame: pl.DataFrame) -> list[Block | None]:
    """Compare each feature's correlation with the loss with that of the step."""
    if not len(frame):
        return []
    rows = headline_rows(frame.filter(other=STEP), others=frame.get_column("other").unique())
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        text_of("compared with", "other"),
        text_of("test", "test"),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high"),
        number_of("p-value", "p", formats.p_value),
    )
    comparisons = table(
        "comparisons", "Is a feature's correlation with the loss stronger than the step's?", specs, rows
    )
    if comparisons is None:
        return []
    return [
        details(
            f"Is a feature's correlation stronger than the step's? ({len(comparisons.rows)} comparisons)",
            linked(
                "Difference of the absolute values of two correlations with the same loss. Williams' test assumes "
                "independent checkpoints; the block bootstrap does not. All: comparisons.csv.",
            ),
            comparisons,
        )
    ]  # fmt: skip


def against_spectra(frame: pl.DataFrame) -> list[Block | None]:
    """Compare the correlations of topology with those of spectral measures of the same hidden states."""
    rows = tables.spectral_comparisons(frame)
    if not len(rows):
        return []
    # The spectral measures of a published study show that its features are of hidden states.
    measured_with = rows.get_column("other").unique(maintain_order=True).to_list()
    features = headline_features([*rows.get_column("feature"), *measured_with])
    measures = [name for name in measured_with if feature_named(name).statistic in CLOUD_STATISTICS]
    blocks = rows.filter(pl.col("feature").is_in(features), pl.col("other").is_in(measures), test=tables.BLOCKS)
    others = rows.filter(pl.col("test") != tables.BLOCKS).pivot("test", index=["run", "feature", "other"], values="p")
    joined_rows = blocks.join(others, on=["run", "feature", "other"], how="left", maintain_order="left")
    specs = (
        feature_of(),
        (Column("compared with", True, names_row=True), lambda row: named(row["other"])),
        text_of("run", "run", names_row=True),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high", group="block bootstrap"),
        *numbers("block bootstrap", p_value={"p-value": "p"}),
        *numbers("p, checkpoints independent", p_value={"Williams": "Williams", "Fisher z": "Fisher z"}),
    )
    shown = headline_rows(joined_rows, others=measured_with)
    spectra = table("spectra", "Topology against spectral measures of the same hidden states", specs, shown)
    return [
        details(
            f"Is topology's correlation stronger than that of spectral measures? ({len(shown)} comparisons)",
            linked(f"{tables.SpectralComparisonCounts.of(rows).sentence()} All: comparisons.csv."),
            spectra,
        )
    ]


def _finding(data: StudyData) -> str:
    """Say what the first screen says."""
    within = study_verdict(data)
    return verdict_sentence(within.verdict, figures=within.reason) if len(within.rows) else ""


SECTION = ReportSection(
    anchor="association",
    title="Association with the loss",
    position=90,
    tables={
        "association": lambda data: association_table(data.trajectories, data.adjust, data.progress),
        "comparisons": lambda data: comparison_table(data.trajectories),
    },
    charts=(association_heat_map,),
    blocks=_blocks,
    finding=_finding,
    summary=association_sentences,
    summary_position=10,
    needs=dict.fromkeys(
        ("association", "comparisons"), (needs_loss, needs_features, needs_checkpoints(MIN_CHECKPOINTS))
    ),
)
