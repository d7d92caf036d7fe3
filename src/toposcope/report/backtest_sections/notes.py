"""Assumptions about the runs that were read."""

from collections.abc import Iterable, Sequence

from toposcope.report.backtest import BacktestMaterial
from toposcope.report.document import Block, Picture, say, sentence
from toposcope.report.section import ReportSection


def _blocks(material: BacktestMaterial, _: Sequence[Picture]) -> Iterable[Block | None]:
    return [say(sentence(remark)) for remark in material.backtest.remarks]


SECTION = ReportSection[BacktestMaterial](anchor="notes", title="Assumptions", position=900, blocks=_blocks)
