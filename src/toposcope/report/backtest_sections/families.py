"""The default forecaster in each family of runs."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import (
    BacktestMaterial,
    families_of,
    score_columns,
)
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, Spec, table, text_of


def _blocks(material: BacktestMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        text_of("family", "family", names_row=True),
        (Column("seen, %"), lambda row: f"{100 * row['fraction']:.3g}"),
        *score_columns(),
    )
    note = say("The same for every forecaster: ", csv("families"), ".", note=True)
    rows = families_of(material.backtest)
    return (table("families", "The default forecast in each family", specs, rows), note) if rows else ()


SECTION = ReportSection[BacktestMaterial](
    anchor="families",
    title="Families",
    position=20,
    tables={"families": lambda material: material.backtest.families},
    blocks=_blocks,
)
