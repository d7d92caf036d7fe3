"""Errors of each forecaster, and the coverage of its intervals."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import (
    BacktestMaterial,
    lead,
    score_columns,
    seen,
)
from toposcope.report.charts.backtest import backtest_charts
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.section import ReportSection
from toposcope.report.tables import Spec, table, text_of


def _blocks(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    backtest = material.backtest
    specs: tuple[Spec, ...] = (text_of("forecaster", "forecaster", names_row=True), *score_columns())
    tables = [
        table(f"scores-{i}", seen(fraction), specs, backtest.scores.filter(fraction=fraction).to_dicts())
        for i, fraction in enumerate(backtest.fractions)
    ]
    note = say(
        f"MAE and bias in {backtest.unit}; all other columns relative to the final loss. The target is the mean of the "
        "last 2% of a run's logged steps. All forecasts: ", csv("forecasts"), ", scores: ", csv("scores"), ".",
        note=True,
    )  # fmt: skip
    return (*pictures, *tables, note)


SECTION = ReportSection[BacktestMaterial](
    anchor="errors",
    title="Errors",
    position=10,
    tables={"forecasts": lambda material: material.backtest.rows, "scores": lambda material: material.backtest.scores},
    charts=(backtest_charts,),
    blocks=_blocks,
    summary=lambda material: lead(material.backtest),
    summary_position=10,
)
