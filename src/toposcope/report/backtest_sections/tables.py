"""Errors of each forecaster, those of the default in each family, and skill against simpler forecasters."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import BacktestMaterial, families_of, lead, score_columns, seen
from toposcope.report.charts.backtest import backtest_charts
from toposcope.report.document import Block, Picture, csv, say, sentence
from toposcope.report.section import ReportSection
from toposcope.report.tables import Column, Spec, interval_of, number_of, p_value, table, text_of, whole

SEEN: Spec = (Column("seen, %"), lambda row: f"{100 * row['fraction']:.3g}")


def _errors(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
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


def _families(material: BacktestMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (text_of("family", "family", names_row=True), SEEN, *score_columns())
    note = say("The same for every forecaster: ", csv("families"), ".", note=True)
    rows = families_of(material.backtest)
    return (table("families", "The default forecast in each family", specs, rows), note) if rows else ()


def _skills(material: BacktestMaterial, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    specs: tuple[Spec, ...] = (
        SEEN,
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


SECTIONS = (
    ReportSection[BacktestMaterial](
        anchor="errors",
        title="Errors",
        position=10,
        tables={
            "forecasts": lambda material: material.backtest.rows,
            "scores": lambda material: material.backtest.scores,
        },
        charts=(backtest_charts,),
        blocks=_errors,
        summary=lambda material: lead(material.backtest),
        summary_position=10,
    ),
    ReportSection[BacktestMaterial](
        anchor="families",
        title="Families",
        position=20,
        tables={"families": lambda material: material.backtest.families},
        blocks=_families,
    ),
    ReportSection[BacktestMaterial](
        anchor="skills",
        title="Skills",
        position=30,
        tables={"skills": lambda material: material.backtest.skills},
        blocks=_skills,
    ),
    ReportSection[BacktestMaterial](
        anchor="notes",
        title="Assumptions",
        position=900,
        blocks=lambda material, _: [say(sentence(remark)) for remark in material.backtest.remarks],
    ),
)
