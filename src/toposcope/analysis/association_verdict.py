"""The verdict on an association, by one rule that is printed with the table (docs/methods/association.md, item 10)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from toposcope.analysis.adjustment import MIN_RUNS, Method, adjusted_over_runs
from toposcope.analysis.association import MIN_CHECKPOINTS, PARTIALLED
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED
from toposcope.typing import Vector

MIN_PERFECT_CORRELATION = 1 - 1e-9
"""Absolute rank correlations above this count as 1: the two order the checkpoints alike."""
ADJUSTED = {
    "p_adjusted": "p_n_eff",
    "p_given_step_adjusted": "p_given_step",
    "p_given_all_adjusted": "p_given_all",
    "p_given_scale_adjusted": "p_given_scale",
    "p_differences_adjusted": "p_differences_given_step",
    "p_differences_given_all_adjusted": "p_differences_given_all",
}
"""The columns of adjusted p-values, and those that they adjust; all of them allow for dependent checkpoints."""
FAMILY = ("target", "group", "feature", "block")
"""What the rows of one feature in several runs share; runs are compared within a block."""

CONSTANT = "constant"
"""In place of a verdict where the feature or the loss does not change."""


@dataclass(frozen=True)
class Gap:
    """A test that cannot be made: which and why, what would make it possible, and why in a few words."""

    untested: str
    needs: str
    reason: str


FEW = Gap(f"any correlation: fewer than {MIN_CHECKPOINTS} checkpoints", "more checkpoints", "too few checkpoints")
ON_FIXED_DATA = ("validation_loss", "text_loss")
"""Targets that are a loss on fixed data, which is free of the noise of batches."""
OR_VALIDATION = ", or a validation loss"
LOSS = Gap(
    "partial correlation given the step: the loss is perfectly rank-correlated with the step",
    f"finer checkpoints{OR_VALIDATION}",
    "the loss follows the step exactly",
)
FEATURE = Gap(
    "partial correlation given the step: the feature is perfectly rank-correlated with the step",
    "finer checkpoints",
    "the feature follows the step exactly",
)
COVARIATE = Gap(
    "partial correlation given all covariates: the loss is perfectly rank-correlated with a covariate",
    f"finer checkpoints{OR_VALIDATION}",
    "the loss follows a covariate exactly",
)
DEPENDENT = Gap(
    "partial correlations: the effective number of checkpoints is too small for a p",
    "more checkpoints",
    "checkpoints too dependent",
)
SCALE = Gap(
    f"partial correlation given the step and the top eigenvalue: undefined, or known at fewer than {MIN_CHECKPOINTS} "
    "checkpoints",
    "finer checkpoints with hidden states",
    "too few top eigenvalues",
)
CHANGES = Gap(
    "correlation of the changes given the covariates: it is not defined", "finer checkpoints", "changes not defined"
)
RUNS = Gap(f"pairing with other runs: fewer than {MIN_RUNS} runs can be compared", "more runs", "too few runs")
PLANTED, MIN_POWER = 0.45, 0.8
"""A partial correlation that matters (it explains a fifth of what is left of the loss), and how often it must be found
before a verdict says that there is nothing."""
POWER = Gap(
    f"power: a partial correlation of {PLANTED:g} would be found less than {MIN_POWER * 5:g} times in 5",
    "finer checkpoints, or more runs, or another schedule",
    "too little power",
)
GAPS = {gap.untested: gap for gap in (FEW, LOSS, FEATURE, COVARIATE, DEPENDENT, SCALE, CHANGES, RUNS, POWER)}
"""By what the column `untested` says."""

RULE = (
    f"Verdict, at level {LEVEL:g}. '{BEYOND}' if all of these hold: the partial correlations given the step, and "
    "given all known covariates (step, learning rate of the moment, weight norm), are significant; for hidden states "
    "also the one given the step and the top eigenvalue of the same states, their scale, so that this eigenvalue "
    "itself never passes; so is the correlation of the changes from checkpoint to checkpoint, given the step and the "
    f"change of the learning rate; all of these have the same sign; at most {LEVEL:.0%} of the other runs of the study "
    f"have a feature that correlates as strongly with this run's loss, given the step; and at most {LEVEL:.0%} of all "
    "pairings of the runs' features with losses are as strong as the true one. Where the loss or the feature is "
    "perfectly rank-correlated with the step, no partial correlation given it is defined; there the changes, given "
    "the step and also given the changes of all covariates, take its place, and other runs are compared by their "
    f"changes. '{UNDETERMINED}' if no test fails, but one of them is not defined: which one, and what would make it "
    "possible, is in the columns untested and needs. Changes that are not significant do not settle what the step "
    f"leaves open. '{TREND}' if a test fails, the block bootstrap interval excludes 0, and circular shifts of the "
    f"loss rarely correlate as strongly (p of at most {LEVEL:g}, or the lowest that so few checkpoints allow); "
    f"'{NONE}' otherwise. Both are said only where features planted in these runs, with their covariates and noise and "
    f"a partial correlation of {PLANTED:g} with what the covariates leave of the loss (a fifth of its variance), are "
    f"found {MIN_POWER * 5:g} times in 5; elsewhere the verdict is '{UNDETERMINED}', and the column detectable has the "
    "partial correlation that is found so often. p-values are based on effective numbers of checkpoints. Those of a "
    "feature are combined over its runs (significant in two runs at least: Benjamini and Heller 2008; with fewer than "
    f"{MIN_RUNS} runs in any, Simes) and adjusted over the features with the same target; the run's own p has to be "
    "significant too. 'constant': feature or loss does not change."
)


def with_verdicts(table: pl.DataFrame, method: Method = "holm") -> pl.DataFrame:
    """Add adjusted p-values, by target, and the verdict of `RULE` to an association table."""
    columns = {column.name: column for column in table.get_columns()}
    numbers = {name: column.to_numpy() for name, column in columns.items() if column.dtype.is_numeric()}
    targets, places = columns["target"].to_list(), dict[tuple[str, ...], int]()
    features = np.array(
        [places.setdefault(key, len(places)) for key in zip(*(columns[name] for name in FAMILY), strict=True)], np.int64
    )
    numbers |= {name: np.full(len(table), np.nan) for name in ADJUSTED}
    for target in dict.fromkeys(targets):
        rows = np.array([other == target for other in targets])
        for name, unadjusted in ADJUSTED.items():
            numbers[name][rows] = adjusted_over_runs(numbers[unadjusted][rows], features[rows], method)
    verdicts, gaps = verdicts_of(numbers)
    return pl.DataFrame(
        {
            **columns,
            **{name: numbers[name] for name in ADJUSTED},
            "verdict": pl.Series(verdicts, dtype=pl.String),
            "untested": pl.Series([gap.untested if gap else "" for gap in gaps], dtype=pl.String),
            "needs": pl.Series(list(map(_needs, gaps, targets)), dtype=pl.String),
        }
    )


def verdicts_of(columns: Mapping[str, Vector]) -> tuple[list[str], list[Gap | None]]:
    """Return the verdicts on rows with adjusted p-values, whatever the power, and what undetermined ones miss."""
    return _Rows(columns).verdicts()


def _needs(gap: Gap | None, target: str) -> str:
    if gap is None:
        return ""
    return gap.needs.removesuffix(OR_VALIDATION) if target in ON_FIXED_DATA else gap.needs


Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class _Test:
    """A test of every row: where it holds, and where it is not defined for which reason; elsewhere it fails."""

    holds: Flags
    undefined: dict[Gap, Flags]


class _Rows:
    """The rows of a table, by column."""

    def __init__(self, columns: Mapping[str, Vector]) -> None:
        self.columns = columns
        self.by_changes = ~self.known("rho_given_step")
        """Where nothing is left of feature or loss given the step, the changes take the place of what is left."""

    def known(self, name: str) -> Flags:
        return np.isfinite(self.columns[name])

    def significant(self, p: str, rho: str) -> Flags:
        """Return where a p is significant and its rho has the sign of the row's first partial correlation."""
        first = np.where(self.by_changes, self.columns["rho_differences_given_step"], self.columns["rho_given_step"])
        return np.asarray((self.columns[p] < LEVEL) & (np.sign(self.columns[rho]) == np.sign(first)))

    def ordered_as(self, *names: str) -> Flags:
        """Return where one of the rank correlations is perfect."""
        return np.asarray(np.any([np.abs(self.columns[name]) > MIN_PERFECT_CORRELATION for name in names], axis=0))

    def verdicts(self) -> tuple[list[str], list[Gap | None]]:
        """Return the verdict of each row; of undetermined ones, also why the first test missing is not defined."""
        few, constant = self.columns["n"] < MIN_CHECKPOINTS, ~self.known("rho")
        tests = (self._given_step(), self._given_all(), self._given_scale(), self._changes(), self._others())
        holds = np.all([test.holds for test in tests], axis=0)
        fails = np.any([~test.holds & ~np.any([*test.undefined.values()], axis=0) for test in tests], axis=0)
        verdicts = np.select(
            [few, constant, holds, ~fails, self._trend()], [UNDETERMINED, CONSTANT, BEYOND, UNDETERMINED, TREND], NONE
        )
        gaps, where = zip((FEW, few), *(item for test in tests for item in test.undefined.items()), strict=True)
        first = np.select(where, range(len(gaps)), 0)
        missing = [gaps[k] if verdict == UNDETERMINED else None for k, verdict in zip(first, verdicts, strict=True)]
        return verdicts.tolist(), missing

    def _changes_hold(self) -> Flags:
        return self.significant("p_differences_adjusted", "rho_differences_given_step") & self.significant(
            "p_differences_given_all_adjusted", "rho_differences_given_all"
        )

    def _given_step(self) -> _Test:
        """Test what is left given the step, or, where nothing is, the changes; if these show nothing, it stays open."""
        by_step = self.significant("p_given_step_adjusted", "rho_given_step")
        holds = np.where(self.by_changes, self._changes_hold(), by_step)
        undefined = ~holds & (self.by_changes | ~self.known("p_given_step"))
        by_changes, by_loss = undefined & self.by_changes, self.ordered_as("rho_step")
        gaps = {LOSS: by_changes & by_loss, FEATURE: by_changes & ~by_loss, DEPENDENT: undefined & ~self.by_changes}
        return _Test(holds, gaps)

    def _given_all(self) -> _Test:
        """Test what is left given all covariates. A feature that they determine fails; the loss must not be so."""
        holds = self.by_changes | self.significant("p_given_all_adjusted", "rho_given_all")
        determined = ~self.known("rho_given_all") & self.ordered_as(*(f"rho_{name}" for name in PARTIALLED))
        dependent = self.known("rho_given_all") & ~self.known("p_given_all")
        return _Test(holds, {COVARIATE: ~holds & determined, DEPENDENT: ~holds & dependent})

    def _given_scale(self) -> _Test:
        """Test features of hidden states given their scale; others have none."""
        holds = ~self.known("n_scale") | self.significant("p_given_scale_adjusted", "rho_given_scale")
        rare = ~(self.columns["n_scale"] >= MIN_CHECKPOINTS)
        without_p = self.known("rho_given_scale") & ~self.known("p_given_scale")
        return _Test(holds, {SCALE: ~holds & (self.by_changes | rare | without_p)})

    def _changes(self) -> _Test:
        holds = self.by_changes | self.significant("p_differences_adjusted", "rho_differences_given_step")
        return _Test(holds, {CHANGES: ~holds & ~self.known("p_differences_given_step")})

    def _others(self) -> _Test:
        def chosen(given_step: str, changes: str) -> Vector:
            return np.where(self.by_changes, self.columns[changes], self.columns[given_step])

        n_others = chosen("n_others", "n_others_differences")
        share = chosen("share_others_given_step", "share_others_differences")
        p = chosen("p_pairing", "p_pairing_differences")
        holds = (share <= LEVEL) & (p <= LEVEL) & (n_others + 1 >= MIN_RUNS)
        comparable = np.isfinite(p) & (n_others + 1 >= MIN_RUNS) & ~(self.by_changes & ~self._changes_hold())
        return _Test(holds, {RUNS: ~holds & ~comparable})

    def _trend(self) -> Flags:
        """Return where the plain correlation holds for dependent checkpoints (item 2)."""
        excludes_zero = (self.columns["block_low"] > 0) | (self.columns["block_high"] < 0)
        rarely = self.columns["p_shift"] <= np.maximum(LEVEL, 1 / np.maximum(self.columns["n"], 1))
        return np.asarray(excludes_zero & rarely)
