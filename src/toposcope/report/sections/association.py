"""Association of every feature with the loss, beside what could explain it; the verdict."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.association import STEP
from toposcope.analysis.table import association_table, comparison_table
from toposcope.analysis.wording import joined
from toposcope.probes.feature import NETWORK
from toposcope.report.association import full_table, legend, primary, short_table
from toposcope.report.document import Block, Picture, csv, details, say
from toposcope.report.figures.correlation import association as draw_association
from toposcope.report.figures.correlation import partial
from toposcope.report.figures.spectra import BLOCKS, Counts, spectral, spectral_against_topology
from toposcope.report.headline import OF_CLOUDS, named, spoken
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
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


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show every feature with the loss, and the trend beside it."""
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
        say(f"The loss is the {targets}. The numbers after the features' own are what they have to beat."),
        short,
        details(
            f"Every feature of the network, all ten items ({len(full.rows):,} rows; sortable)",
            legend(rows),
            say("Every group of layers and target: ", csv("association"), "."),
            full,
        ),
        details(
            "The same against the loss of the checkpoint's one batch, as published",
            say("The loss of one batch is noise around the trend; noise is smaller against a larger model's fall."),
            _renamed(short_table(batch), "association-batch", "Association with the loss of one batch"),
        )
        if len(batch)
        else None,
        *_comparisons(material.tables["comparisons"]),
        *against_spectra(material.tables["comparisons"]),
    )


def _with_target(rows: pl.DataFrame, target: str) -> list[str]:
    return rows.filter(pl.col("target") == target).get_column("run").unique().to_list()


def _renamed(found: Table | None, name: str, caption: str) -> Table | None:
    return None if found is None else Table(name, caption, found.columns, found.rows, found.sortable)


def _comparisons(frame: pl.DataFrame) -> list[Block | None]:
    """Ask whether a feature's correlation is stronger than the step's."""
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
    found = table("comparisons", "Is a feature's correlation with the loss stronger than the step's?", specs, rows)
    if found is None:
        return []
    return [
        details(
            f"Is a feature's correlation stronger than the step's? ({len(found.rows)} comparisons)",
            say(
                "Difference of the absolute values of two correlations that share the loss. Williams' test takes "
                "checkpoints for independent; the block bootstrap does not. All: ", csv("comparisons"), ".",
            ),
            found,
        )
    ]  # fmt: skip


def against_spectra(frame: pl.DataFrame) -> list[Block | None]:
    """Say whether topology correlates with the loss more strongly than spectral measures of the same states do."""
    rows = spectral(frame)
    if not len(rows):
        return []
    # The plain measures of a published study tell that its features are of hidden states.
    beside = rows.get_column("other").unique(maintain_order=True).to_list()
    kept = spoken([*rows.get_column("feature"), *beside])
    plainer = [name for name in beside if feature_named(name).statistic in OF_CLOUDS]
    blocks = rows.filter(pl.col("feature").is_in(kept), pl.col("other").is_in(plainer), test=BLOCKS)
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
    found = table("spectra", "Topology against spectral measures of the same hidden states", specs, shown)
    return [
        details(
            f"Is topology's correlation stronger than that of spectral measures? ({len(shown)} comparisons)",
            say(Counts.of(rows).told(), " All: ", csv("comparisons"), "."),
            found,
        )
    ]


SECTION = ReportSection(
    anchor="association",
    title="Association with the loss",
    position=90,
    tables={
        "association": lambda material: association_table(material.trajectories, material.adjust),
        "comparisons": lambda material: comparison_table(material.trajectories),
    },
    charts=(draw_association, partial, spectral_against_topology),
    compared_charts=(draw_association,),
    blocks=_blocks,
    summary=verdict,
    summary_position=10,
)
