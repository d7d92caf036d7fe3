"""The verdict on an association, by one rule that is printed with the table (docs/methods/association.md, item 10)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import MIN_RUNS, Method, adjusted_over_runs
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED
from toposcope.typing import Vector

MIN_PERFECT_CORRELATION = 1 - 1e-9
"""Absolute rank correlations above this count as 1: the two order the checkpoints alike."""
ADJUSTED = {
    "p_adjusted": ("p_n_eff", "rho"),
    "p_given_step_adjusted": ("p_given_step", "rho_given_step"),
    "p_given_all_adjusted": ("p_given_all", "rho_given_all"),
    "p_given_scale_adjusted": ("p_given_scale", "rho_given_scale"),
    "p_differences_adjusted": ("p_differences_given_step", "rho_differences_given_step"),
}
"""The columns of adjusted p-values, and the p and rho that they adjust; all of them allow for dependent checkpoints."""
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
OF_BATCHES = ("smoothed_loss", "batch_loss")
"""Targets that have the noise of batches, which a loss on fixed data would be free of."""
OR_VALIDATION = ", or a validation loss"
DETERMINED = Gap(
    "partial correlation given the covariates: they determine the loss, or leave too few checkpoints free",
    f"finer checkpoints{OR_VALIDATION}",
    "the loss follows its covariates exactly",
)
DEPENDENT = Gap(
    "partial correlation given the covariates: the effective number of checkpoints is too small for a p",
    "more checkpoints",
    "checkpoints too dependent",
)
SCALE = Gap(
    f"partial correlation given the top eigenvalue: it is known at fewer than {MIN_CHECKPOINTS} checkpoints",
    "finer checkpoints with hidden states",
    "too few top eigenvalues",
)
RUNS = Gap(f"pairing with other runs: fewer than {MIN_RUNS} runs can be compared", "more runs", "too few runs")
PAIRING_LEVEL = 0.02
"""The level of pairings, of more than four runs: a study with a cause that all of its runs share passes as a whole."""
PLANTED, MIN_POWER = 0.45, 0.8
"""A partial correlation that matters (it explains a fifth of what is left of the loss), and how often it must be found
before a verdict says that there is nothing."""
POWER = Gap(
    f"power: a partial correlation of {PLANTED:g} would be found less than {MIN_POWER * 5:g} times in 5",
    "finer checkpoints, or more runs, or another schedule",
    "too little power",
)
GAPS = {gap.untested: gap for gap in (FEW, DETERMINED, DEPENDENT, SCALE, RUNS, POWER)}
"""By what the column `untested` says."""

RULE = (
    f"Verdict, at level {LEVEL:g}. '{BEYOND}' if both of these hold: what the covariates leave of the feature is "
    "significantly correlated with what they leave of the loss; and of all pairings of the runs' features with losses, "
    f"each pair given the covariates of both of its runs, at most {PAIRING_LEVEL:.0%} are as strong as the true one "
    f"({LEVEL:.0%} of {MIN_RUNS} runs). The covariates are polynomials of the step and of the sum of the learning "
    "rates, the learning rate, its powers and its past means, and the weight norm; for hidden states also their top "
    f"eigenvalue. The noise of what is left is made white. '{UNDETERMINED}' if no test fails, but one of them is "
    "not defined: which one, and what would make it possible, is in the columns untested and needs. "
    f"'{TREND}' if a test fails, the block bootstrap interval excludes 0, and circular shifts of the "
    f"loss rarely correlate as strongly (p of at most {LEVEL:g}, or the lowest that so few checkpoints allow); "
    f"'{NONE}' otherwise. Both are said only where features planted in these runs, with their covariates and noise and "
    f"a partial correlation of {PLANTED:g} with what the covariates leave of the loss (a fifth of its variance), are "
    f"found {MIN_POWER * 5:g} times in 5; elsewhere the verdict is '{UNDETERMINED}', and the column detectable has the "
    "partial correlation that is found so often. p-values are based on effective numbers of checkpoints. Those of a "
    "feature are combined over its runs (significant in two runs at least: Benjamini and Heller 2008, by Fisher's "
    f"method; with fewer than {MIN_RUNS} runs in any) and adjusted over the features with the same target; the run's "
    "own p, halved in the direction of the other runs, has to be significant too. 'constant': feature or loss does "
    "not change."
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
        for name, (p, rho) in ADJUSTED.items():
            numbers[name][rows] = adjusted_over_runs(numbers[p][rows], numbers[rho][rows], features[rows], method)
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
    few, rare = (columns[name] < MIN_CHECKPOINTS for name in ("n", "n_scale"))
    n_runs, no_rho, no_p = (
        columns["n_others"] + 1,
        ~np.isfinite(columns["rho_given_all"]),
        ~np.isfinite(columns["p_given_all"]),
    )
    alone = ~(np.isfinite(columns["p_pairing"]) & (n_runs >= MIN_RUNS))
    gaps = {FEW: few, SCALE: no_rho & rare, DETERMINED: no_rho, DEPENDENT: no_p, RUNS: alone}
    # a feature that the covariates determine fails; the loss must not be determined
    left = columns["p_given_all_adjusted"] < LEVEL
    paired = columns["p_pairing"] <= np.where(n_runs > MIN_RUNS, PAIRING_LEVEL, LEVEL)
    fails = ~(left | no_p) | ~(paired | alone)
    excludes_zero = (columns["block_low"] > 0) | (columns["block_high"] < 0)
    trend = excludes_zero & (columns["p_shift"] <= np.maximum(LEVEL, 1 / np.maximum(columns["n"], 1)))
    verdicts = np.select(
        [few, ~np.isfinite(columns["rho"]), left & paired & ~alone, ~fails, trend],
        [UNDETERMINED, CONSTANT, BEYOND, UNDETERMINED, TREND],
        NONE,
    )
    first = np.select([*gaps.values()], range(len(gaps)), 0)
    missing = [[*gaps][k] if verdict == UNDETERMINED else None for k, verdict in zip(first, verdicts, strict=True)]
    return verdicts.tolist(), missing


def _needs(gap: Gap | None, target: str) -> str:
    if gap is None:
        return ""
    return gap.needs if target in OF_BATCHES else gap.needs.removesuffix(OR_VALIDATION)
