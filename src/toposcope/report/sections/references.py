"""Layers compared with random matrices of their shape."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.references import reference_table
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.figures.references import random_matrix_chart
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import number_of, share, table, tenths, text_of, whole

WITHIN = 2.0
"""Standard deviations within which a value is that of a random matrix."""


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Compare layers with random matrices of the same shapes."""
    frame = material.tables["references"]
    if not len(frame):
        return pictures
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
        *pictures,
        say(
            "z: the distance of a layer from random matrices of its shape and scale in standard deviations, one value "
            "per run and layer. All: ", csv("references"), ".",
        ),
        table("references", "Layers compared with random matrices of their shape", specs, summed.to_dicts()),
    )  # fmt: skip


SECTION = ReportSection(
    anchor="references",
    title="Comparison with random matrices",
    position=130,
    tables={"references": lambda material: reference_table(material.trajectories)},
    charts=(random_matrix_chart,),
    blocks=_blocks,
)
