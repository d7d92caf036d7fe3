"""Layer by layer: which move, and first; groups of layers and the loss; layers beside random matrices."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.moves import onset_table
from toposcope.analysis.references import reference_table
from toposcope.analysis.verdict import VERDICTS
from toposcope.analysis.wording import examples
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import primary
from toposcope.report.charts.layers import layer_group_charts, layer_heat_maps
from toposcope.report.charts.references import random_matrix_charts
from toposcope.report.charts.series import runs_of
from toposcope.report.document import Block, Picture, csv, details, folded, say
from toposcope.report.headline import H0, NP, headline_features, named
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    Column,
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    share,
    table,
    tenths,
    text_of,
    whole,
)

WITHIN = 2.0
"""Standard deviations within which a value is that of a random matrix."""


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show which layers move and which do first, the groups, and the layers beside random matrices."""
    return (*pictures, *_moved_first(material), *_groups(material), *_beside_random(material))


def _moved_first(material: Material) -> Iterable[Block | None]:
    """List the layers that left their first value first."""
    frame = material.tables["layer_onsets"]
    if not len(frame):
        return ()
    rows = (
        frame.filter("moves")
        .group_by("feature", "run", maintain_order=True)
        .agg(
            layers=pl.col("layer").filter("is_first"), first=pl.col("step").min(), last=pl.col("step").max(), n=pl.len()
        )
        .with_columns(pl.col("layers").map_elements(examples, return_dtype=pl.String))
    )
    specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        text_of("first to move", "layers"),
        number_of("by step", "first", whole),
        number_of("last layer by step", "last", whole),
        number_of("layers that move", "n", whole),
    )
    caption = "Which layers move first"
    return (
        say(
            "A layer has moved when it is more than half of its largest departure away from its first value, at two "
            "checkpoints in a row. Every layer: ", csv("layer_onsets"), ".",
        ),
        folded(table("layer-onsets", caption, specs, headline_rows(rows)), caption),
    )  # fmt: skip


def _groups(material: Material) -> Iterable[Block | None]:
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
    return (table_folded, note)


def _beside_random(material: Material) -> Iterable[Block | None]:
    """Compare layers with random matrices of the same shapes."""
    frame = material.tables["references"]
    if not len(frame):
        return ()
    specs = (
        text_of("ensemble", "ensemble", names_row=True),
        text_of("statistic", "statistic", names_row=True),
        number_of("values", "n", whole),
        number_of("median |z|", "first", tenths, group="first checkpoint"),
        number_of(f"within {WITHIN:g} sd", "first_within", share, group="first checkpoint"),
        number_of("median |z|", "last", tenths, group="last checkpoint"),
        number_of(f"within {WITHIN:g} sd", "last_within", share, group="last checkpoint"),
    )
    z = {when: pl.col(f"z_{when}").fill_nan(None).abs() for when in ("first", "last")}
    summed = frame.group_by("ensemble", "statistic", maintain_order=True).agg(
        n=pl.len(),
        **{when: value.median() for when, value in z.items()},
        **{f"{when}_within": (value <= WITHIN).mean() for when, value in z.items()},
    )
    return (
        say(
            "z: the distance of a layer from random matrices of its shape and scale in standard deviations, one value "
            "per run and layer. All: ", csv("references"), ".",
        ),
        table("references", "Layers compared with random matrices of their shape", specs, summed.to_dicts()),
    )  # fmt: skip


def _finding(material: Material) -> str:
    """Say which role of layers, or layer without a role, moves first in most runs, by the first quantity measured."""
    frame = material.tables["layer_onsets"]
    if not len(frame):
        return ""
    first = frame.filter("is_first", feature=frame.item(0, "feature")).with_columns(
        role=pl.when(pl.col("role").is_in(["", "other"])).then("layer").otherwise("role")
    )
    roles = first.group_by("role").agg(n=pl.col("run").n_unique()).sort("n", "role", descending=[True, False])
    role, n = roles.row(0)
    alone = first.filter((pl.col("role") == role).all().over("run")).get_column("run").n_unique() == n
    how = "moves first" if alone else "is among the first layers to move"
    return f"By {_plain(first.item(0, 'feature'))}, {role} {how} in {runs_of(n, first.get_column('run').n_unique())}"


def _plain(feature: str) -> str:
    return "neural persistence" if feature == NP.key else named(feature)


def _counted(verdicts: Sequence[str]) -> str:
    counts = {v: verdicts.count(v) for v in VERDICTS}
    return ", ".join(f"{verdict} {n}" for verdict, n in counts.items() if n)


SECTION = ReportSection(
    anchor="layers",
    title="Layers",
    position=100,
    tables={
        "layer_onsets": lambda material: onset_table(material.trajectories, [NP.feature, H0.feature]),
        "references": lambda material: reference_table(material.trajectories),
    },
    charts=(layer_heat_maps, layer_group_charts, random_matrix_charts),
    compared_charts=(layer_heat_maps,),
    blocks=_blocks,
    finding=_finding,
)
