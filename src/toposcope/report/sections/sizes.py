"""Features of runs of different size at equal step, tokens and loss."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.matched import collapse_table, matched_table
from toposcope.report.document import Block, Picture, csv, folded, say
from toposcope.report.figures.sizes import cross_size_chart
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    feature_of,
    headline_rows,
    number_of,
    p_value,
    plain,
    signed,
    table,
    text_of,
    whole,
)


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show features of all sizes at equal step, tokens and loss."""
    rows = headline_rows(material.tables["collapse"])
    specs = (
        feature_of(),
        text_of("at equal", "by", names_row=True),
        number_of("runs", "n_runs", whole),
        number_of("levels", "n_levels", whole),
        number_of("from", "low", plain, group="levels"),
        number_of("to", "high", plain, group="levels"),
        number_of("spread", "spread", lambda x: signed(x).lstrip("+")),
        number_of("rho", "rho_size", group="rank correlation with size"),
        number_of("p", "p_size", p_value, group="rank correlation with size"),
        number_of("at best", "p_least", p_value, group="rank correlation with size"),
    )
    collapse = table("collapse", "How far sizes lie apart at equal step, tokens and loss", specs, rows)
    explanation = say(
        "Spread: the standard deviation over runs at the same level, as a share of that of all matched values; 0 where "
        "the sizes coincide. The p-value is exact, over all orders of the sizes; “at best” is the lowest that so few "
        "sizes allow. All: ",
        csv("collapse"), "; the values themselves: ", csv("matched"), ".",
    )  # fmt: skip
    return (*pictures, explanation if collapse else None, folded(collapse, "At equal step, tokens and loss"))


def _matched(material: Material) -> pl.DataFrame:
    return matched_table(
        material.trajectories, dict(material.runs.select("run", "n_parameters").drop_nulls().iter_rows())
    )


SECTION = ReportSection(
    anchor="sizes",
    title="Across sizes",
    position=80,
    tables={"matched": _matched, "collapse": lambda material: collapse_table(material.tables["matched"])},
    charts=(cross_size_chart,),
    blocks=_blocks,
)
