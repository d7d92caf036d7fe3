"""The forecasts of a backtest with their scores, and the data of its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from toposcope.extend import Progress, ReportData, ReportSection, silent
from toposcope.study import Study
from toposcope_experiments.backtest.backtesting import Split, scores, skills


@dataclass(frozen=True, eq=False)
class BacktestResult:
    """The forecasts of a backtest and their scores."""

    rows: pl.DataFrame  # from `backtest`
    split: Split
    unit: str  # of the losses
    remarks: tuple[str, ...]  # of the runs that were read
    scores: pl.DataFrame  # from `scores`, over all runs
    skills: pl.DataFrame  # from `skills`, over all runs
    families: pl.DataFrame  # the scores of each family, with ``family``

    @classmethod
    def of(cls, rows: pl.DataFrame, split: Split, unit: str, remarks: tuple[str, ...] = ()) -> "BacktestResult":
        """Score a backtest."""
        each = [
            scores(part).with_columns(family=pl.lit(family))
            for (family,), part in rows.group_by("family", maintain_order=True)
        ]
        return cls(rows, split, unit, remarks, scores(rows), skills(rows), pl.concat(each))

    @property
    def fractions(self) -> list[float]:
        """Shares of the runs that were seen."""
        return sorted(self.rows["fraction"].unique())

    @property
    def n_runs(self) -> int:
        """Number of runs that were forecast."""
        return self.rows["run"].n_unique()

    @property
    def n_families(self) -> int:
        """Number of families of the runs."""
        return self.rows["family"].n_unique()

    @property
    def n_groups(self) -> int:
        """Number of groups over which forecasters are compared: runs of one family and size."""
        return self.rows.select("family", "size").n_unique()


class BacktestData(ReportData[BacktestResult]):
    """The data of a backtest's page, with the study whose runs were forecast, where they have measured checkpoints."""

    def __init__(
        self,
        backtest: BacktestResult,
        sections: Sequence[ReportSection[Any]] = (),
        study: Study | None = None,
        *,
        workers: int | None = None,
        progress: Progress = silent,
    ) -> None:
        super().__init__(backtest, sections)
        self.backtest, self.study, self.workers, self.progress = backtest, study, workers, progress
