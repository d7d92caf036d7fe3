"""What topology adds to what is known of a loss: one verdict on a study, decided from the tables of its tests."""

from collections import Counter
from typing import NamedTuple

import polars as pl

from toposcope.analysis import association_verdict as rule
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED

FOLLOWS, BY_STEP, BY_COVARIATES = "follows the step exactly", "the step explains it", "the covariates explain it"
KEPT = "another test fails"
EXPLANATIONS = (BEYOND, FOLLOWS, KEPT, BY_STEP, BY_COVARIATES, NONE, UNDETERMINED)
"""What is known of a feature's correlation with the loss, in the order in which a report says it. A feature whose ranks
are the step's follows it exactly, whatever the power of the tests: no correlation of ranks can set the two apart."""

BETWEEN, WITHIN = "between runs", "within runs"
"""The questions, the stronger evidence first: what a forecast of the final loss gains, what goes with the loss along
each run."""
NO_TEST, KEEPS_ONE = "no test is defined", "keeps one correlation"
SCALED = "rho_top_eigenvalue"  # this column has a number for features of hidden states only


class WithinRuns(NamedTuple):
    """The verdict of the features of the whole network along each run.

    Attributes
    ----------
    verdict, reason : str
        One of `VERDICTS`, and in a few words why it cannot be told.
    case : str
        Which of the tests decided it: a verdict, the name of a gap, `NO_TEST`, or `KEEPS_ONE`: of a feature that is
        significant given every covariate and fails another test.
    features : list of str
        Those that it rests on.
    """

    verdict: str
    reason: str
    case: str
    features: list[str]


def within_runs(rows: pl.DataFrame) -> WithinRuns:
    """Return the verdict of association rows, one at least, of topological features with a defined correlation."""
    if beyond := features_of(rows.filter(verdict=BEYOND)):
        return WithinRuns(BEYOND, "", BEYOND, beyond)
    if passing := features_of(missing(rows, rule.RUNS.untested)):
        return WithinRuns(UNDETERMINED, rule.RUNS.reason, rule.RUNS.untested, passing)
    if not len(rows.filter(pl.col("verdict") != UNDETERMINED)):
        if not len(missing(rows, rule.POWER.untested)):
            return WithinRuns(UNDETERMINED, NO_TEST, NO_TEST, [])
        return WithinRuns(UNDETERMINED, rule.POWER.reason, rule.POWER.untested, [])
    failing = rows.filter(pl.col("verdict").is_in([TREND, NONE]))
    if partial := features_of(failing.filter(is_below("p_given_all_adjusted"))):
        return WithinRuns(TREND, "", KEEPS_ONE, partial)
    drifting = features_of(rows.filter(verdict=TREND))
    verdict = TREND if drifting else NONE
    return WithinRuns(verdict, "", verdict, drifting)


def topology_verdict(between: str, within: str) -> tuple[str, str]:
    """Return the verdict on a study and the question that it answers: by the stronger evidence."""
    return (within, WITHIN) if between == UNDETERMINED else (between, BETWEEN)


def explanations(rows: pl.DataFrame) -> dict[str, tuple[str, int, int]]:
    """Return, by feature, which of `EXPLANATIONS` holds in most of its runs, in how many, and of how many."""
    kept, by_covariates = (is_below(f"p_given_{what}_adjusted") for what in ("all", "step"))
    why = pl.when(kept).then(pl.lit(KEPT)).when(by_covariates).then(pl.lit(BY_COVARIATES)).otherwise(pl.lit(BY_STEP))
    said = pl.when(verdict=TREND).then(why).otherwise("verdict")
    follows = pl.col("rho_with_step").fill_nan(0.0).abs() > rule.MIN_PERFECT_CORRELATION
    said = pl.when(follows & (pl.col("verdict") != BEYOND)).then(pl.lit(FOLLOWS)).otherwise(said)
    rows = rows.with_columns(said=said)
    found: dict[str, tuple[str, int, int]] = {}
    for (feature,), runs in rows.group_by("feature", maintain_order=True):
        counts = Counter(runs.get_column("said"))
        most = max(counts, key=lambda each: (each == BEYOND, counts[each], -EXPLANATIONS.index(each)))
        found[str(feature)] = most, counts[most], len(runs)
    return found


def features_of(rows: pl.DataFrame) -> list[str]:
    """Return the features of some rows, each once."""
    return list(rows.get_column("feature").unique(maintain_order=True))


def missing(rows: pl.DataFrame, untested: str) -> pl.DataFrame:
    """Return the rows that have no verdict because of one gap."""
    return rows.filter(verdict=UNDETERMINED, untested=untested)


def is_below(column: str) -> pl.Expr:
    """Select the rows whose p-value is significant; one that is not defined is not."""
    return pl.col(column).fill_nan(1.0) < LEVEL


def has_scales(rows: pl.DataFrame) -> bool:
    """Return whether any row is of a feature of hidden states, whose scale is a covariate of its own."""
    return SCALED in rows.columns and bool(rows.get_column(SCALED).is_finite().any())
