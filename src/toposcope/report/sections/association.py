"""Association of every feature with the loss, with the controls that could explain it; the verdict."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.association import STEP
from toposcope.analysis.table import association_table, comparison_table
from toposcope.analysis.verdict import BEYOND, UNDETERMINED
from toposcope.analysis.wording import counted, joined
from toposcope.probes.feature import NETWORK, TOPOLOGY
from toposcope.report.association_tables import full_table, legend, measured, primary, short_table
from toposcope.report.charts.association import association_heat_map
from toposcope.report.charts.partial import partial_correlation_chart
from toposcope.report.charts.spectra import topology_against_spectra_charts
from toposcope.report.document import Block, Picture, csv, details, say
from toposcope.report.headline import CLOUD_STATISTICS, headline_features, named
from toposcope.report.material import Material
from toposcope.report.outcome import without_power, without_runs
from toposcope.report.section import ReportSection
from toposcope.report.spectral_comparison import BLOCKS, SpectralComparisonCounts, spectral_comparisons
from toposcope.report.tables import (
    Column,
    Table,
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    p_value,
    table,
    text_of,
)
from toposcope.report.verdict import verdict
from toposcope.study.kinds import feature_named

MAX_ROWS = 5_000
"""Of a table on the page; a longer one is only beside it, as CSV. Five sizes with all default probes have 2,000."""


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the association of every feature with the loss, beside that of the step."""
    rows = primary(material).filter(pl.col("group") == NETWORK)
    short = short_table(rows)
    full = full_table("association", "Association of every feature of the network with the loss", rows)
    if full is None:
        return ()
    targets = joined([named(name) for name in rows.get_column("target").unique(maintain_order=True)])
    batch = material.tables["association"].filter(
        pl.col("group") == NETWORK,
        pl.col("target") == "batch_loss",
        ~pl.col("run").is_in(_with_target(rows, "batch_loss")),
    )
    return (
        *pictures,
        say(f"The loss is the {targets}. A feature has to do better than the step and the other clocks beside it."),
        short,
        *_every_feature(rows, full),
        details(
            "The same against the loss of the checkpoint's one batch, as published",
            say("The loss of one batch is noisy; the noise is small relative to the larger fall of a larger model."),
            _retitled(short_table(batch), "association-batch", "Association with the loss of one batch"),
        )
        if len(batch)
        else None,
        *_comparisons(material.tables["comparisons"]),
        *against_spectra(material.tables["comparisons"]),
    )


def _every_feature(rows: pl.DataFrame, full: Table) -> list[Block | None]:
    """Show all ten items of every feature, unless nobody would scroll through them."""
    if len(full.rows) > MAX_ROWS:
        return [
            say(f"All ten items of every feature and run, in {len(full.rows):,} rows: ", csv("association"), "."),
            legend(rows),
        ]
    return [
        details(
            f"Every feature of the network, all ten items ({len(full.rows):,} rows; sortable)",
            legend(rows),
            say("Every group of layers and target: ", csv("association"), "."),
            full,
        )
    ]


def _with_target(rows: pl.DataFrame, target: str) -> list[str]:
    return rows.filter(pl.col("target") == target).get_column("run").unique().to_list()


def _retitled(content: Table | None, name: str, caption: str) -> Table | None:
    return None if content is None else Table(name, caption, content.columns, content.rows, content.sortable)


def _comparisons(frame: pl.DataFrame) -> list[Block | None]:
    """Compare each feature's correlation with the loss with that of the step."""
    if not len(frame):
        return []
    rows = headline_rows(frame.filter(other=STEP), beside=frame.get_column("other").unique())
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        text_of("compared with", "other"),
        text_of("test", "test"),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high"),
        number_of("p", "p", p_value),
    )
    comparisons = table(
        "comparisons", "Is a feature's correlation with the loss stronger than the step's?", specs, rows
    )
    if comparisons is None:
        return []
    return [
        details(
            f"Is a feature's correlation stronger than the step's? ({len(comparisons.rows)} comparisons)",
            say(
                "Difference of the absolute values of two correlations with the same loss. Williams' test assumes "
                "independent checkpoints; the block bootstrap does not. All: ", csv("comparisons"), ".",
            ),
            comparisons,
        )
    ]  # fmt: skip


def against_spectra(frame: pl.DataFrame) -> list[Block | None]:
    """Compare the correlations of topology with those of spectral measures of the same hidden states."""
    rows = spectral_comparisons(frame)
    if not len(rows):
        return []
    # The spectral measures of a published study show that its features are of hidden states.
    beside = rows.get_column("other").unique(maintain_order=True).to_list()
    features = headline_features([*rows.get_column("feature"), *beside])
    measures = [name for name in beside if feature_named(name).statistic in CLOUD_STATISTICS]
    blocks = rows.filter(pl.col("feature").is_in(features), pl.col("other").is_in(measures), test=BLOCKS)
    others = rows.filter(pl.col("test") != BLOCKS).pivot("test", index=["run", "feature", "other"], values="p")
    joined_rows = blocks.join(others, on=["run", "feature", "other"], how="left", maintain_order="left")
    specs = (
        feature_of(),
        (Column("compared with", True, names_row=True), lambda row: named(row["other"])),
        text_of("run", "run", names_row=True),
        number_of("difference of |rho|", "difference"),
        interval_of("95% interval", "low", "high", group="block bootstrap"),
        number_of("p", "p", p_value, group="block bootstrap"),
        number_of("Williams", "Williams", p_value, group="p, checkpoints independent"),
        number_of("Fisher z", "Fisher z", p_value, group="p, checkpoints independent"),
    )
    shown = headline_rows(joined_rows, beside=beside)
    spectra = table("spectra", "Topology against spectral measures of the same hidden states", specs, shown)
    return [
        details(
            f"Is topology's correlation stronger than that of spectral measures? ({len(shown)} comparisons)",
            say(SpectralComparisonCounts.of(rows).sentence(), " All: ", csv("comparisons"), "."),
            spectra,
        )
    ]


def _finding(material: Material) -> str:
    """Count the topological features that are beyond the trend."""
    rows = measured(primary(material).filter(pl.col("group") == NETWORK, pl.col("kind") == TOPOLOGY))
    if not len(rows):
        return ""
    n_all, beyond, tested, open_ = (
        chosen.get_column("feature").n_unique()
        for chosen in (
            rows,
            rows.filter(verdict=BEYOND),
            rows.filter(pl.col("verdict") != UNDETERMINED),
            without_runs(rows),
        )
    )
    features = counted(n_all, "topological feature")
    if beyond:
        return f"{beyond} of {features} {'is' if beyond == 1 else 'are'} beyond the trend in at least one run"
    if open_:
        return f"{open_} of {features} {'passes' if open_ == 1 else 'pass'} every test that so few runs allow"
    if not tested:
        weak = len(without_power(rows))
        return f"No topological feature can be {'told from' if weak else 'tested against'} the trend"
    return f"No topological feature is beyond the trend in any run; {tested} of {n_all} can be told from it"


SECTION = ReportSection(
    anchor="association",
    title="Association with the loss",
    position=90,
    tables={
        "association": lambda material: association_table(material.trajectories, material.adjust, material.progress),
        "comparisons": lambda material: comparison_table(material.trajectories),
    },
    charts=(association_heat_map, partial_correlation_chart, topology_against_spectra_charts),
    compared_charts=(association_heat_map,),
    blocks=_blocks,
    finding=_finding,
    summary=verdict,
    summary_position=10,
)
