"""Final values against the number of parameters."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.scaling import scaling_table
from toposcope.analysis.trajectories import TEXT_LOSS
from toposcope.probes.feature import NETWORK
from toposcope.report.association import primary
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.figures.scaling import scaling
from toposcope.report.headline import named, ranked
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
        "Least squares of the logarithms; the interval resamples runs. The p-value counts all orders of up to 8 sizes"
        + (f"; {rows[0]['n_sizes']} sizes allow {rows[0]['p_least']:.3f} at best" if rows else "")
        + ". All quantities: ", csv("scaling"), ".", note=True,
    )  # fmt: skip
    found = table("scaling", "Final values against the number of parameters", specs, rows)
    return (*pictures, found, note if found else None)


def _summary(material: Material) -> list[str]:
    """Say how the final loss goes with the number of parameters."""
    rows = primary(material).filter(pl.col("group") == NETWORK)
    if not len(rows):
        return []
    target = rows.item(0, "target")
    if TextLosses.of(material).tokens_differ and target == TEXT_LOSS:
        return [NOT_COMPARABLE]
    law = material.tables["scaling"].filter(quantity=target)
    if not len(law):
        return []
    found = law.row(0, named=True)
    power, told = signed(found["exponent"]).lstrip("+"), named(target)
    told_law = f"N^{power} over {found['n_sizes']} sizes (R² {found['r_squared']:.3f})"
    return [f"The final {told} goes as {told_law}; {ranked(found)}."]


SECTION = ReportSection(
    anchor="scaling",
    title="Scaling with size",
    position=120,
    tables={"scaling": lambda material: scaling_table(material.trajectories, material.runs)},
    charts=(scaling,),
    compared_charts=(scaling,),
    blocks=_blocks,
    summary=_summary,
    summary_position=30,
)
