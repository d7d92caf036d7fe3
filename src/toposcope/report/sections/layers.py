"""Association with the loss by group of layers: roles, attention and MLP, early and late blocks."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.verdict import VERDICTS
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import primary
from toposcope.report.charts.layers import layer_group_charts, layer_heat_maps
from toposcope.report.document import Block, Picture, csv, details, say
from toposcope.report.headline import headline_features
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, feature_of, headline_rows, interval_of, number_of, table, text_of, whole


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Compare attention with MLP layers, early with late blocks, and roles with one another."""
    rows = primary(material).filter(pl.col("group") != NETWORK, pl.col("rho").is_finite())
    groups = {group: place for place, group in enumerate(rows.get_column("group").unique(maintain_order=True))}
    summed = rows.group_by("group", "feature", maintain_order=True).agg(
        n=pl.len(),
        rho=pl.col("rho").median(),
        low=pl.col("rho").min(),
        high=pl.col("rho").max(),
        given=pl.col("rho_given_step").fill_nan(None).median(),
        verdicts=pl.col("verdict"),
    )
    specs = (
        feature_of(),
        text_of("layers", "group", names_row=True),
        number_of("runs", "n", whole),
        number_of("median", "rho", group="rho with the loss, over runs"),
        interval_of("range", "low", "high", group="rho with the loss, over runs"),
        number_of("median", "given", group="given the step"),
        (Column("verdicts", True), lambda row: _counted(row["verdicts"])),
    )
    order = headline_features(summed.get_column("feature"))
    shown = sorted(headline_rows(summed), key=lambda row: (order.index(row["feature"]), groups[row["group"]]))
    summary_table = table("layers", "Association with the loss by group of layers", specs, shown)
    table_folded = details(f"By role, attention against MLP, early against late ({len(shown)} rows)", summary_table)
    note = (
        say("All features of all groups, run by run: ", csv("association"), ".", note=True) if summary_table else None
    )
    return (*pictures, table_folded, note)


def _counted(verdicts: Sequence[str]) -> str:
    counts = {v: verdicts.count(v) for v in VERDICTS}
    return ", ".join(f"{verdict} {n}" for verdict, n in counts.items() if n)


SECTION = ReportSection(
    anchor="layers",
    title="Layer by layer",
    position=100,
    charts=(layer_heat_maps, layer_group_charts),
    compared_charts=(layer_heat_maps,),
    blocks=_blocks,
)
