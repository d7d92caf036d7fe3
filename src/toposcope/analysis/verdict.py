"""The verdict on an association, by one rule that is printed with the table (docs/methods/association.md, item 10)."""

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import Method, adjusted
from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.pairing import MIN_RUNS

LEVEL = 0.05
TESTED = ("p", "p_given_step", "p_given_all", "p_given_scale", "p_differences_given_step")
"""Columns whose p-values are adjusted."""

RULE = (
    f"Verdict, at level {LEVEL:g}. 'beyond trend' if all of these hold: the block bootstrap interval excludes 0, and "
    "circular shifts of the loss rarely correlate as strongly (p of at most "
    f"{LEVEL:g}, or the lowest that so few checkpoints allow); the partial correlations given the step, and given all "
    "known clocks (step, weight norm, cumulative learning rate), are significant; for hidden states also the one given "
    "the step and the top eigenvalue of the same states, their scale, so that this eigenvalue itself never passes; "
    "so is the correlation of the changes given the step, and all of these have the same sign; "
    f"at most {LEVEL:.0%} of the other runs of the study have a feature "
    f"that correlates as strongly with this run's loss, given the step; and at most {LEVEL:.0%} of all pairings of the "
    "runs' features with losses are as strong as the true one. 'undecided' if all other conditions hold, but fewer "
    "than four runs can be compared, too few for the last one. A schedule that only one run has does not count as a "
    "clock: a feature that follows the learning rate of such a run can pass. 'trend only' if the feature correlates "
    "with the loss but not all conditions hold; 'none' if the correlation is not significant. p-values are adjusted "
    "over all rows of the table with the same target; those of partial correlations and of changes are based on "
    "effective numbers of checkpoints. "
    f"'constant': feature or loss does not change. 'too few': fewer than {MIN_CHECKPOINTS} checkpoints."
)


def with_verdicts(table: pl.DataFrame, method: Method = "holm") -> pl.DataFrame:
    """Add adjusted p-values, by target, and the verdict of `RULE` to an association table.

    Parameters
    ----------
    table : polars.DataFrame
        ``target, n, p_pairing`` and the columns of `toposcope.analysis.association.COLUMNS`.
    method : "holm", "bonferroni" or "bh"

    Returns
    -------
    polars.DataFrame
        With ``p_adjusted, p_given_step_adjusted, p_given_all_adjusted, p_given_scale_adjusted, p_differences_adjusted,
        verdict``.
    """
    names = {name: f"{name.removesuffix('_given_step') if 'differences' in name else name}_adjusted" for name in TESTED}
    targets = table.get_column("target").to_numpy() if len(table) else np.empty(0, dtype=object)
    columns = {}
    for name, adjusted_name in names.items():
        p, p_adjusted = table.get_column(name).to_numpy(), np.full(len(table), np.nan)
        for target in dict.fromkeys(targets.tolist()):
            p_adjusted[targets == target] = adjusted(p[targets == target], method)
        columns[adjusted_name] = pl.Series(p_adjusted, dtype=pl.Float64)
    table = table.with_columns(**columns)
    return table.with_columns(verdict=pl.Series(_verdicts(table), dtype=pl.String))


def _verdicts(table: pl.DataFrame) -> list[str]:
    column = {name: table.get_column(name).to_numpy() for name in table.columns if name not in ("target", "run")}
    n, rho, share = column["n"], column["rho"], column["share_others_given_step"]
    blocks = (column["block_low"] > 0) | (column["block_high"] < 0)
    shifts = column["p_shift"] <= np.maximum(LEVEL, 1 / np.maximum(n, 1))
    partials = (column["p_given_step_adjusted"] < LEVEL) & (column["p_given_all_adjusted"] < LEVEL)
    changes = column["p_differences_adjusted"] < LEVEL
    unscaled = ~np.isfinite(column["n_scale"])
    same_sign = np.sign(column["rho_given_scale"]) == np.sign(column["rho_given_step"])
    scales = unscaled | ((column["p_given_scale_adjusted"] < LEVEL) & same_sign)
    signs = [np.sign(column[name]) for name in ("rho_given_step", "rho_given_all", "rho_differences_given_step")]
    alone = blocks & shifts & partials & scales & changes & (signs[0] == signs[1]) & (signs[0] == signs[2])
    known = np.isfinite(column["p_pairing"]) & (column["n_others"] + 1 >= MIN_RUNS)
    others, none = (share <= LEVEL) & (column["p_pairing"] <= LEVEL), ~(column["p_adjusted"] < LEVEL)
    chosen = np.select(
        [n < MIN_CHECKPOINTS, ~np.isfinite(rho), alone & known & others, alone & ~known, none],
        ["too few", "constant", "beyond trend", "undecided", "none"],
        "trend only",
    )
    return [str(verdict) for verdict in chosen]
