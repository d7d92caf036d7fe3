"""Skill of each forecaster against simpler ones."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import (
    BacktestMaterial,
)
from toposcope.report.document import Block, Picture, csv, say
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, Spec, interval_of, number_of, p_value, table, text_of, whole


def _blocks(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        (Column("seen, %"), lambda row: f"{100 * row['fraction']:.3g}"),
        text_of("forecaster", "forecaster", names_row=True),
        text_of("against", "baseline"),
        number_of("runs", "n", whole),
        number_of("groups", "n_groups", whole),
        number_of("skill", "skill"),
        interval_of("95% interval", "skill_low", "skill_high", 3),
        number_of("p", "p", p_value),
        number_of("p, adjusted", "p_adjusted", p_value),
    )
    rule = say(
        "Skill is 1 - MAE / MAE of the simpler forecaster, on the runs that both forecast. p: signs of the groups' "
        "mean differences flipped at random; adjusted by Holm over the forecasters at one fraction and baseline. ",
        csv("skills"), ".", note=True,
    )  # fmt: skip
    rows = material.backtest.skills.to_dicts()
    return (*pictures, table("skills", "Against simpler forecasters", specs, rows), rule)


SECTION = ReportSection[BacktestMaterial](
    anchor="skills",
    title="Skills",
    position=30,
    tables={"skills": lambda material: material.backtest.skills},
    blocks=_blocks,
)
