"""Final values against the number of parameters."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.scaling import scaling_table
from toposcope.analysis.trajectories import TEXT_LOSS
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import primary
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.figures.scaling import scaling_chart
from toposcope.report.headline import describe_rank_test, named
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    feature_of,
    headline_rows,
    interval_of,
    number_of,
    p_value,
    plain,
    signed,
    table,
    whole,
)
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Set final values against size."""
    rows = headline_rows(material.tables["scaling"], "quantity")
    specs = (
        feature_of("final value", "quantity"),
        number_of("runs", "n", whole),
        number_of("sizes", "n_sizes", whole),
        number_of("exponent", "exponent", group="power law"),
        interval_of("95% interval", "low", "high", group="power law"),
        number_of("R²", "r_squared", lambda x: signed(x).lstrip("+"), group="power law"),
        number_of("offset", "offset", plain, group="power law and an offset"),
        number_of("exponent", "offset_exponent", group="power law and an offset"),
        number_of("rho", "rho", group="rank correlation with size"),
        number_of("exact p", "p_exact", p_value, group="rank correlation with size"),
    )
    note = say(
        "Least squares of the logarithms; the interval resamples runs. The p-value is exact for up to 8 sizes"
        + (f"; {rows[0]['n_sizes']} sizes allow {rows[0]['p_least']:.3f} at best" if rows else "")
        + ". All quantities: ", csv("scaling"), ".", note=True,
    )  # fmt: skip
    scaling = table("scaling", "Final values against the number of parameters", specs, rows)
    return (*pictures, scaling, note if scaling else None)


def _summary(material: Material) -> list[str]:
    """State the power law of the final loss in the number of parameters."""
    rows = primary(material).filter(pl.col("group") == NETWORK)
    if not len(rows):
        return []
    target = rows.item(0, "target")
    if TextLosses.of(material).tokens_differ and target == TEXT_LOSS:
        return [NOT_COMPARABLE]
    law = material.tables["scaling"].filter(quantity=target)
    if not len(law):
        return []
    row = law.row(0, named=True)
    exponent = signed(row["exponent"]).lstrip("+")
    return [
        f"The final {named(target)} scales as N^{exponent} over {row['n_sizes']} sizes (R² {row['r_squared']:.3f}); "
        f"{describe_rank_test(row)}."
    ]


SECTION = ReportSection(
    anchor="scaling",
    title="Scaling with size",
    position=120,
    tables={"scaling": lambda material: scaling_table(material.trajectories, material.runs)},
    charts=(scaling_chart,),
    compared_charts=(scaling_chart,),
    blocks=_blocks,
    summary=_summary,
    summary_position=30,
)
