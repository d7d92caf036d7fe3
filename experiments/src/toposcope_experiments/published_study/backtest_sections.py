"""The forecasting rules of the published study, as a section of a backtest."""

from collections.abc import Iterable, Sequence

import polars as pl

from toposcope.extend import (
    BacktestData,
    Block,
    Picture,
    ReportSection,
    Spec,
    csv_link,
    number_of,
    paragraph,
    percent_of,
    plain,
    table,
    text_of,
    whole,
)
from toposcope_experiments.published_study.forecast_rules import published_rules

RULES: tuple[Spec, ...] = (
    text_of("target", "protocol"),
    percent_of("seen, %", "fraction"),
    text_of("forecaster", "forecaster", names_row=True),
    number_of("runs", "n", whole),
    number_of("MAE, nats", "mae", plain),
    number_of("worst, nats", "worst", plain),
)


def _rules(data: BacktestData) -> pl.DataFrame:
    return pl.DataFrame() if data.study is None else published_rules(data.study)


def _blocks(data: BacktestData, _: Sequence[Picture]) -> Iterable[Block | None]:
    rows = data.tables["rules"].to_dicts()
    if not rows:
        return ()
    return (
        paragraph(
            "The rules of the published study next to the same blend without topology, and next to the default here. ",
            csv_link("rules"),
            ".",
        ),
        table("rules", "Mean errors", RULES, rows),
    )


SECTION = ReportSection[BacktestData](
    anchor="rules", title="The published rules", position=50, tables={"rules": _rules}, blocks=_blocks
)
