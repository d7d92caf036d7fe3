"""Results of pushed trainings: read from ``results.csv``, and aligned by seed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import Matrix, ToposcopeError, Vector

RESULTS, DESIGN = "results.csv", "design.json"
UP, DOWN, UNDIRECTED = 1, -1, 0
BASE, CHAOS, STATISTIC, RANDOM = "base", "chaos", "statistic", "random_tangent"
TWIN, SPREAD, RANK, NEIGHBOURS = "permuted_twin", "pairwise_spread", "effective_rank", "nearest_neighbour_spread"
PLAIN = (SPREAD, RANK, NEIGHBOURS)  # placebos that push a plain quantity of their own
PLACEBOS = (TWIN, *PLAIN, RANDOM, CHAOS)
ARMS = (BASE, STATISTIC, *PLACEBOS)
COLUMNS: dict[str, type[pl.DataType]] = {
    "statistic": pl.String,
    "arm": pl.String,
    **dict.fromkeys(("direction", "seed"), pl.Int64),
    **dict.fromkeys(("share", "dose", "target_dose", "loss", "loss_half"), pl.Float64),
    "diverged": pl.Int64,
}
OWN_DOSES = {arm: f"dose_{arm}" for arm in PLAIN}
"""Columns that may be missing: log of the plain quantity at the end over that of the base run of the seed."""


class StatisticRuns:
    """The runs of one statistic, by arm and direction, each quantity as a vector over the seeds.

    Parameters
    ----------
    statistic : str
    frame : pl.DataFrame
        Rows of `read_results`.
    """

    def __init__(self, statistic: str, frame: pl.DataFrame) -> None:
        self.statistic = statistic
        frame = frame.filter(statistic=statistic)
        seeds = frame["seed"].to_numpy()
        self.seeds = np.unique(seeds)
        places = np.searchsorted(self.seeds, seeds)
        numeric = [name for name in frame.columns if frame.schema[name].is_numeric()]
        numbers = frame.select(pl.col(numeric).cast(pl.Float64).fill_null(float("nan"))).to_numpy()
        self._columns = {name: i for i, name in enumerate(numeric)}
        self._rows: dict[tuple[str, int], Matrix] = {}
        for key, place, row in zip(frame.select("arm", "direction").iter_rows(), places, numbers, strict=True):
            if key not in self._rows:
                self._rows[key] = np.full((len(self._columns), len(self.seeds)), np.nan)
            self._rows[key][:, place] = row

    def __contains__(self, key: tuple[str, int]) -> bool:
        """Return whether an arm has runs in a direction."""
        return key in self._rows

    def directions(self, arm: str) -> list[int]:
        """Return the directions in which an arm has runs."""
        return [direction for direction in (UP, DOWN, UNDIRECTED) if (arm, direction) in self]

    def values(self, column: str, arm: str, direction: int = UNDIRECTED) -> Vector:
        """Return a quantity of the runs that ended, by seed; NaN where there is none."""
        rows = self._rows.get((arm, direction))
        if rows is None or column not in self._columns:
            return np.full(len(self.seeds), np.nan)
        values, ended = rows[self._columns[column]], rows[self._columns["diverged"]] == 0
        return np.where(ended & np.isfinite(values), values, np.nan)

    def diverged(self, arm: str, direction: int = UNDIRECTED) -> Vector:
        """Return 1 where a run diverged and 0 where it ended, by seed; NaN where there is none."""
        rows = self._rows.get((arm, direction))
        return np.full(len(self.seeds), np.nan) if rows is None else rows[self._columns["diverged"]]


def statistics_of(frame: pl.DataFrame) -> Iterator[StatisticRuns]:
    """Yield the runs of each statistic that was pushed, in the order of the table."""
    for statistic in frame.filter(arm=STATISTIC)["statistic"].unique(maintain_order=True):
        yield StatisticRuns(str(statistic), frame)


def read_results(folder: Path) -> tuple[pl.DataFrame, Mapping[str, Any]]:
    """Read ``results.csv`` and, if there is one, ``design.json``.

    Raises
    ------
    ToposcopeError
        If a file is missing or cannot be read, a column is missing, or a run is there twice.
    """
    path = folder / RESULTS
    try:
        columns = pl.read_csv(path, n_rows=0).columns
        doses = {name: pl.Float64 for name in columns if name.startswith("dose_")}
        frame = pl.read_csv(path, schema_overrides={**COLUMNS, **doses})
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ToposcopeError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}); run the trainings again"
        ) from None
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ToposcopeError(f"{path}: the column {missing[0]!r} is missing")
    unknown = [arm for arm in frame["arm"].unique(maintain_order=True) if arm not in ARMS]
    if unknown:
        raise ToposcopeError(f"{path}: unknown arm {unknown[0]!r}; the arms are {', '.join(ARMS)}")
    frame = frame.with_columns(
        diverged=((pl.col("diverged").fill_null(0) != 0) | ~pl.col("loss").is_finite().fill_null(False)).cast(pl.Int64)
    )
    twice = frame.filter(frame.select("statistic", "arm", "direction", "seed").is_duplicated())
    if len(twice):
        row = twice.row(0, named=True)
        raise ToposcopeError(
            f"{path}: the run {row['arm']} of {row['statistic']}, direction {row['direction']}, seed {row['seed']}, is "
            "there twice"
        )
    return frame, _declared(folder / DESIGN)


def _declared(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ToposcopeError(f"{path}: cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise ToposcopeError(f"{path}: is no JSON object")
    return values


def missing_runs(frame: pl.DataFrame, declared: Mapping[str, Any]) -> dict[str, int]:
    """Return how many runs of each arm are not there yet, by the number of seeds declared or else seen."""
    seeds = declared.get("seeds")
    n_seeds = seeds if isinstance(seeds, int) else frame["seed"].n_unique()
    result: dict[str, int] = {}
    for runs in statistics_of(frame):
        for arm in declared.get("kinds", ARMS):
            directions = (UNDIRECTED,) if arm in (BASE, CHAOS) else (UP, DOWN)
            there = sum(int(np.isfinite(runs.diverged(arm, direction)).sum()) for direction in directions)
            result[arm] = result.get(arm, 0) + n_seeds * len(directions) - there
    return {arm: n for arm, n in result.items() if n > 0}
