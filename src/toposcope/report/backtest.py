"""The report of a backtest: errors of the forecasters, coverage of their intervals, skill against simpler ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import polars as pl

from toposcope.analysis.verdict import LEVEL as SIGNIFICANT
from toposcope.forecasting.backtesting import Split, scores, skills
from toposcope.forecasting.forecaster_set import DEFAULT
from toposcope.progress import Progress, silent
from toposcope.report.material import Tables
from toposcope.report.tables import NOTHING, Column, Spec, p_value, plain, whole
from toposcope.study import Study

LEFT_OUT: dict[Split, str] = {
    "size": "all runs of its family and size",
    "group": "all runs of its family and kind of schedule",
    "family": "all runs of its family",
}
SCORES: tuple[tuple[str, str, str], ...] = (
    ("runs", "n", "count"),
    ("refused", "refused", "count"),
    ("MAE", "mae", "loss"),
    ("median, %", "relative_median", "percent"),
    ("p90, %", "relative_p90", "percent"),
    ("bias", "bias", "loss"),
    ("worst, %", "worst", "percent"),
    ("coverage, %", "coverage", "percent"),
    ("width, %", "width", "percent"),
    ("interval score, %", "interval_score", "percent"),
    ("rank corr.", "rank_correlation", "loss"),
)
"""Title, column of `scores` and kind of number."""


@dataclass(frozen=True, eq=False)
class BacktestResult:
    """The forecasts of a backtest and their scores."""

    rows: pl.DataFrame  # from `toposcope.forecasting.backtest`
    split: Split
    unit: str  # of the losses
    remarks: tuple[str, ...]  # of the runs that were read
    # `toposcope.forecasting.backtesting`, over all runs; ``families`` has the scores of each family, with ``family``
    scores: pl.DataFrame
    # `toposcope.forecasting.backtesting`, over all runs; ``families`` has the scores of each family, with ``family``
    skills: pl.DataFrame
    # `toposcope.forecasting.backtesting`, over all runs; ``families`` has the scores of each family, with ``family``
    families: pl.DataFrame

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


def lead(backtest: BacktestResult) -> list[str]:
    """Return the sentences at the top of the page."""
    families = f" of {backtest.n_families} families" if backtest.n_families > 1 else ""
    sentences = [
        f"{backtest.n_runs:,} runs{families} in {backtest.n_groups} groups (by family and, where known, size), each "
        f"forecast without {LEFT_OUT[backtest.split]}."
    ]
    for row in backtest.scores.filter(forecaster=DEFAULT).sort("fraction").to_dicts():
        sentences.append(
            f"{seen(row['fraction'])} the default is off by {100 * row['relative_median']:.2f}% at the median, 9 of "
            f"10 runs by less than {100 * row['relative_p90']:.2f}%; its 90% intervals hold {100 * row['coverage']:.0f}"
            f"% and are {100 * row['width']:.1f}% wide.{_better(backtest, row)}"
        )
    for fraction in sorted(set(backtest.fractions) - set(backtest.scores["fraction"])):
        why = str(backtest.rows.filter(fraction=fraction).item(0, "refused"))
        sentences.append(f"{seen(fraction)} no run can be forecast: {why}.")
    return [*sentences, *_against(backtest)]


def shown(row: dict[str, Any], column: str, kind: str) -> str:
    """Write a score: losses to four decimals, shares in percent."""
    value = row[column]
    if kind == "count":
        return whole(value)
    if value is None or not np.isfinite(value):
        return NOTHING
    return f"{100 * value:.2f}" if kind == "percent" else f"{value:.4f}".replace("-", "−")


def families_of(backtest: BacktestResult) -> list[dict[str, Any]]:
    """Return the scores of the default, one row per family and fraction; empty if there is only one family."""
    if backtest.n_families < 2:
        return []
    return backtest.families.filter(forecaster=DEFAULT).sort("family", "fraction").to_dicts()


def _better(backtest: BacktestResult, row: dict[str, Any]) -> str:
    """Name the forecaster with the lowest median error, if it is not the default and forecast as many runs."""
    comparable = backtest.scores.filter(pl.col("fraction") == row["fraction"], pl.col("n") >= row["n"])
    best = comparable.sort("relative_median").to_dicts()[0]
    if best["relative_median"] >= row["relative_median"]:
        return ""
    return f" {best['forecaster']} has the lower median error, {100 * best['relative_median']:.2f}%."


def _against(backtest: BacktestResult) -> list[str]:
    """Compare the default with simpler forecasters, one sentence per baseline."""
    sentences = []
    for (baseline,), part in backtest.skills.filter(forecaster=DEFAULT).group_by("baseline", maintain_order=True):
        rows = part.sort("fraction").to_dicts()
        each = "; ".join(
            f"{100 * row['skill']:+.0f}% at {100 * row['fraction']:.3g}% seen".replace("-", "−")
            + f" ({row['n_groups']} groups, p {p_value(row['p_adjusted'])})"
            for row in rows
        )
        sentences.append(f"Skill of the default against {baseline}: {each}.")
    # The lowest p that n groups allow is 2 / 2^n, before adjustment.
    min_groups = int(np.ceil(np.log2(2 / SIGNIFICANT)))
    if backtest.n_groups < min_groups:
        sentences.append(
            f"{backtest.n_groups} group{'s'[: backtest.n_groups != 1]} cannot show that one forecaster is better than "
            f"another: at least {min_groups} are needed for p < {SIGNIFICANT:g}, more after correction."
        )
    return sentences


def seen(fraction: float) -> str:
    """Write how much of a run was seen."""
    return f"With {plain(100 * fraction)}% of a run seen"


def score_columns() -> list[Spec]:
    """Return the columns of a table of scores."""
    return [_score(title, column, kind) for title, column, kind in SCORES]


def _score(title: str, column: str, kind: str) -> Spec:
    return Column(title), lambda row: shown(dict(row), column, kind)


Result = TypeVar("Result")


class BacktestMaterial:
    """The data of a backtest's page.

    Parameters
    ----------
    backtest : BacktestResult
    makers : mapping
        What computes each table of the page.
    study : Study, optional
        Where the runs are those of a study with measured checkpoints.
    workers : int, optional
    progress : callable
        For what sections compute of the study.
    """

    def __init__(
        self,
        backtest: BacktestResult,
        makers: Mapping[str, Callable[["BacktestMaterial"], pl.DataFrame]],
        study: Study | None = None,
        *,
        workers: int | None = None,
        progress: Progress = silent,
    ) -> None:
        self.backtest, self.study, self.workers, self.progress = backtest, study, workers, progress
        self.tables: Mapping[str, pl.DataFrame] = Tables(self, makers)
        self._computed: dict[str, Any] = {}

    def once(self, name: str, compute: Callable[[], Result]) -> Result:
        """Compute something that several functions of a section need, once."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]  # type: ignore[no-any-return]
