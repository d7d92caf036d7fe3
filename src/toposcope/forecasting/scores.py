"""Scores of a backtest: errors, intervals, and skill against simpler forecasters."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import adjusted
from toposcope.analysis.permutations import sign_flip
from toposcope.analysis.ranks import correlate, ranks
from toposcope.forecasting.intervals import LEVEL
from toposcope.seeds import derive_seed

BASELINES = ("last", "power_law", "annealing")
RESAMPLES = 1000
MIN_GROUPS = 2

SCORES = {
    "fraction": pl.Float64,
    "forecaster": pl.String,
    "n": pl.Int64,
    "refused": pl.Int64,
    "mae": pl.Float64,
    "relative_median": pl.Float64,
    "relative_p90": pl.Float64,
    "bias": pl.Float64,
    "worst": pl.Float64,
    "coverage": pl.Float64,
    "width": pl.Float64,
    "interval_score": pl.Float64,
    "rank_correlation": pl.Float64,
}
SKILLS = {
    "fraction": pl.Float64,
    "forecaster": pl.String,
    "baseline": pl.String,
    "n": pl.Int64,
    "n_groups": pl.Int64,
    "skill": pl.Float64,
    "skill_low": pl.Float64,
    "skill_high": pl.Float64,
    "p": pl.Float64,
    "p_adjusted": pl.Float64,
}


def scores(backtested: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of each forecaster at each fraction.

    Parameters
    ----------
    backtested : polars.DataFrame
        From `backtest`.

    Returns
    -------
    polars.DataFrame
        ``fraction, forecaster, n, refused`` (runs forecast, and refused), ``mae`` and ``bias`` (mean of the absolute
        and of the signed error), ``relative_median``, ``relative_p90`` and ``worst`` (of |predicted / final - 1|),
        ``coverage`` and ``width`` of the intervals, ``interval_score`` (Gneiting & Raftery 2007, equation 43: width
        plus 20 times what lies outside), both over the final loss, and ``rank_correlation`` (Spearman, over runs).
        Losses in the runs' unit. Best median first at each fraction.
    """
    rows = []
    for (fraction, forecaster), part in backtested.group_by("fraction", "forecaster", maintain_order=True):
        known = part.filter(pl.col("predicted").is_not_null())
        if len(known):
            rows.append((fraction, forecaster, len(known), len(part) - len(known), *_errors(known)))
    return pl.DataFrame(rows, schema=SCORES, orient="row").sort("fraction", "relative_median", "forecaster")


def skills(backtested: pl.DataFrame, baselines: Sequence[str] = BASELINES) -> pl.DataFrame:
    """Compare each forecaster with simpler ones, on the runs that both forecast.

    Returns
    -------
    polars.DataFrame
        ``fraction, forecaster, baseline, n, n_groups, skill`` (1 - MAE / MAE of the baseline), ``skill_low`` and
        ``skill_high`` (95%, 1,000 bootstrap samples of groups), ``p`` (two-sided, of flipping the signs of the groups'
        mean differences) and ``p_adjusted`` (Holm, over the forecasters at a fraction and baseline). Groups are the
        runs of one family and size. NaN with fewer than two groups.
    """
    error = (pl.col("predicted") - pl.col("final")).abs()
    known = backtested.filter(pl.col("predicted").is_not_null()).with_columns(error=error)
    rows: list[tuple[object, ...]] = []
    for (fraction,), part in known.group_by("fraction", maintain_order=True):
        for baseline in baselines:
            beside = part.filter(forecaster=baseline).select("family", "run", base="error")
            names = [name for name in part["forecaster"].unique(maintain_order=True) if name != baseline]
            skill_rows = []
            for name in names:
                both = part.filter(forecaster=name).join(beside, on=["family", "run"])
                if len(both):
                    skill_rows.append((fraction, name, baseline, len(both), *_skill(both)))
            p = adjusted(np.array([row[-1] for row in skill_rows], dtype=np.float64))
            rows.extend((*row, value) for row, value in zip(skill_rows, p, strict=True))
    return pl.DataFrame(rows, schema=SKILLS, orient="row")


def _errors(known: pl.DataFrame) -> tuple[float, ...]:
    """Return mae to rank_correlation."""
    predicted, final, low, high = (known[name].to_numpy() for name in ("predicted", "final", "low", "high"))
    error, relative = predicted - final, np.abs(predicted / final - 1)
    outside = np.maximum(low - final, 0) + np.maximum(final - high, 0)
    score = (high - low + 2 / (1 - LEVEL) * outside) / final
    rho = float(correlate(ranks(predicted)[None], ranks(final))[0])  # NaN where all are equal
    return (
        float(np.abs(error).mean()),
        float(np.median(relative)),
        float(np.quantile(relative, 0.9)),
        float(error.mean()),
        float(relative.max()),
        float((outside == 0).mean()),
        float(((high - low) / final).mean()),
        float(score.mean()),
        rho,
    )


def _skill(both: pl.DataFrame) -> tuple[float, ...]:
    """Return n_groups, skill, its interval and p."""
    groups = both.group_by("family", "size", maintain_order=True).agg(
        pl.col("error").sum(), pl.col("base").sum(), difference=(pl.col("error") - pl.col("base")).mean()
    )
    ours, base = groups["error"].to_numpy(), groups["base"].to_numpy()
    skill = 1 - ours.sum() / base.sum() if base.sum() > 0 else np.nan
    if len(groups) < MIN_GROUPS:
        return len(groups), skill, np.nan, np.nan, np.nan
    rng = np.random.default_rng(derive_seed(42, "skill", len(groups)))
    sampled = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    below = base[sampled].sum(axis=1)
    resampled = 1 - ours[sampled].sum(axis=1) / np.where(below > 0, below, np.nan)
    low, high = np.nanquantile(resampled, [0.025, 0.975]) if base.any() else (np.nan, np.nan)
    return len(groups), float(skill), float(low), float(high), sign_flip(groups["difference"].to_numpy())
