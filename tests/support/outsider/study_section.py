"""A section of the report: how many checkpoints there are."""

import polars as pl

from toposcope.report.document import csv, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection


def _counts(material: Material) -> pl.DataFrame:
    return material.frame.group_by("run", maintain_order=True).agg(checkpoints=pl.col("step").n_unique())


SECTION = ReportSection[Material](
    anchor="outsider",
    title="Counted by an outsider",
    tables={"outsider_counts": _counts},
    blocks=lambda material, pictures: [say("Checkpoints by run: ", csv("outsider_counts"), ".")],
    summary=lambda material: [f"An outsider counted {material.tables['outsider_counts']['checkpoints'].sum()}."],
)
