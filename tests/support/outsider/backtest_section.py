"""A section of a backtest's page: how many runs it is of."""

from toposcope.report.backtest import BacktestMaterial
from toposcope.report.document import say
from toposcope.report.section import ReportSection

SECTION = ReportSection[BacktestMaterial](
    anchor="outsider",
    title="Counted by an outsider",
    blocks=lambda material, pictures: [say(f"An outsider counted {material.backtest.n_runs} runs.")],
)
