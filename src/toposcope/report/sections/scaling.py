"""Final values against the number of parameters, and sizes at equal step, tokens and loss."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.analysis.matched import collapse_table, matched_table
from toposcope.analysis.scaling import scaling_table
from toposcope.analysis.trajectories import TEXT_LOSS
from toposcope.analysis.wording import counted
from toposcope.probes.feature import NETWORK
from toposcope.report.association_tables import primary
from toposcope.report.charts.scaling import scaling_charts, trend
from toposcope.report.charts.sizes import cross_size_charts
from toposcope.report.document import Block, Picture, csv, folded, say
from toposcope.report.headline import TARGETS, describe_rank_test, named
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
    text_of,
    whole,
)
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Set final values against size; then sizes beside each other at equal step, tokens and loss."""
    return (*pictures, *_laws(material), *_across(material))


def _laws(material: Material) -> Iterable[Block | None]:
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
    return (scaling, note if scaling else None)


def _across(material: Material) -> Iterable[Block | None]:
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
    return (explanation if collapse else None, folded(collapse, "At equal step, tokens and loss"))


def _matched(material: Material) -> pl.DataFrame:
    return matched_table(
        material.trajectories, dict(material.runs.select("run", "n_parameters").drop_nulls().iter_rows())
    )


def _finding(material: Material) -> str:
    """Say how the final loss goes with size."""
    laws = {row["quantity"]: row for row in material.tables["scaling"].iter_rows(named=True)}
    loss = next((name for name in TARGETS if name in laws), None)
    if loss is None or (loss == TEXT_LOSS and TextLosses.of(material).tokens_differ):
        return ""
    return f"The final {TARGETS[loss]} {trend(laws[loss])}, over {counted(laws[loss]['n_sizes'], 'size')}"


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
    title="Scaling",
    position=120,
    tables={
        "scaling": lambda material: scaling_table(material.trajectories, material.runs),
        "matched": _matched,
        "collapse": lambda material: collapse_table(material.tables["matched"]),
    },
    charts=(scaling_charts, cross_size_charts),
    compared_charts=(scaling_charts,),
    blocks=_blocks,
    finding=_finding,
    summary=_summary,
    summary_position=30,
)
