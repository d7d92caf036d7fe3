"""How far off each forecaster is, and how sure."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import (
    BacktestMaterial,
    lead,
    score_columns,
    seen,
)
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.figures.backtest import coverage, error
from toposcope.report.figures.drawn import Drawn
from toposcope.report.section import ReportSection
from toposcope.report.tables import Spec, table, text_of


def _blocks(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    found = material.found
    specs: tuple[Spec, ...] = (text_of("forecaster", "forecaster", names_row=True), *score_columns())
    tables = [
        table(f"scores-{i}", seen(fraction), specs, found.scores.filter(fraction=fraction).to_dicts())
        for i, fraction in enumerate(found.fractions)
    ]
    note = say(
        f"MAE and bias in {found.unit}; all else over the final loss. The target is the mean of the last 2% of a run's "
        "logged steps. Every forecast: ",
        csv("forecasts"), ", scores: ", csv("scores"), ".", note=True,
    )  # fmt: skip
    return (*pictures, *tables, note)


def _error(material: BacktestMaterial) -> Drawn:
    return error(material.found.scores)


def _coverage(material: BacktestMaterial) -> Drawn:
    return coverage(material.found.scores)


SECTION = ReportSection[BacktestMaterial](
    anchor="errors",
    title="Errors",
    position=10,
    tables={"forecasts": lambda material: material.found.rows, "scores": lambda material: material.found.scores},
    charts=(_error, _coverage),
    blocks=_blocks,
    summary=lambda material: lead(material.found),
    summary_position=10,
)
