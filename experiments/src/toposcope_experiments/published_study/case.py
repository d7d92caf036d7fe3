"""The evidence on which published claims are judged, and the possible verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from toposcope.extend import NONE, TREND, UNDETERMINED, Vector, rank_correlation
from toposcope_experiments.published_study.findings import StudyTables
from toposcope_experiments.published_study.published import Published

STANDS = "stands"
EXPLAINED = "stands, but a plain quantity explains it"
FALLS = "does not stand"
VERDICTS = (STANDS, EXPLAINED, FALLS, UNDETERMINED)

LEVEL = 0.05
MIN_SIZES = 3
MAX_ENUMERATED_ORDERS = 8  # all orders of so many sizes are counted


class Judgement(NamedTuple):
    """A claim, its verdict and the numbers that decided."""

    claim: str
    verdict: str
    why: str


@dataclass(frozen=True, eq=False)
class StudyEvidence(StudyTables):
    """The tables and runs of a study on which claims are judged."""

    published: Published
    sizes: dict[str, int]  # parameters of the runs that the publication names and the study has, the smallest first
    named: list[str]  # those runs, and those of unknown size after them
    phases: pl.DataFrame
    change_points: pl.DataFrame
    predictions: pl.DataFrame

    def associations(self, quantity: str, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the exact association of a quantity in runs where it was measured and varies."""
        found = {run: self.associated(run, quantity, published=False) for run in runs}
        return {run: row for run, row in found.items() if row and np.isfinite(row["rho"])}


def explained_by_step(row: dict[str, Any]) -> bool:
    """Return whether the step explains an association: a test given the step finds nothing, or it tracks as closely.

    Where the step orders the losses exactly no test given the step can be made; then no feature tracks them closer.
    """
    tested = row["verdict"] in (TREND, NONE)
    return tested or bool(abs(row["rho_step"]) >= abs(row["rho"]))


def trend(x: Sequence[float], y: Sequence[float] | Vector) -> tuple[float, float]:
    """Return Spearman's correlation and its exact p; NaN below 3 values."""
    if len(x) < 3:
        return np.nan, np.nan
    return rank_correlation(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))


def target_name(case: StudyEvidence) -> str:
    """Return the name of the reference target if all runs have the same."""
    names = {case.target(run).replace("_", " ") for run in case.named}
    return names.pop() if len(names) == 1 else "loss"


def ranging(before: str, values: Sequence[float]) -> str:
    """Say the largest and the least, after some words; nothing of no values."""
    return f"{before}{signed(max(values))} to {signed(min(values))}" if values else ""


def listed(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Say one column of some rows."""
    return ", ".join(signed(row[name]) for row in rows)


def plain(values: Vector) -> str:
    """Say numbers that have no sign."""
    return ", ".join(f"{value:.3f}" for value in values)


def signed(value: float) -> str:
    """Say a number with its sign."""
    return f"{value:+.3f}".replace("-", "−")


def p_of_rho(rho: float, n: int) -> float:
    """Return the exact two-sided p of a Spearman correlation of n values, at most 8, without ties.

    It is the share of all n! orders whose correlation is as large.
    """
    orders = np.array(list(permutations(range(n))))
    squares = ((orders - np.arange(n)) ** 2).sum(axis=1)
    return float((np.abs(1 - 6 * squares / (n * (n**2 - 1))) >= abs(rho) - 1e-9).mean())
