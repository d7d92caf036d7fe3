"""Whether topology adds to what is known of how a run ends: one verdict for each target, and its sentence."""

from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.between_runs.columns import LOSS, PLACEBOS
from toposcope.analysis.between_runs.population import CONFIGURATIONS
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED, verdict_sentence
from toposcope.wording import counted, joined

RULE = (
    f"Between runs, at level {LEVEL:g}: '{BEYOND}' if at some fraction of training a topological family, or all "
    "topology, lowers the error on held-out runs given the loss so far, the schedule, and norms and spectra, p by "
    "permuting what these leave among the runs, adjusted over all families, fractions and targets; if its error is "
    "also smaller than with random projections of the weights and with the placebo twin in its place, by the 95% "
    f"interval; and if no model without topology has as small an error. '{TREND}' if one of these fails, or if "
    f"topology lowers the error given the loss so far alone. '{NONE}' if it does not. '{UNDETERMINED}' if planted "
    "features are not found, if the study measures no projections or no twin to compare a gain with, or with too few "
    "runs."
)
KNOWN = "the loss so far, the schedule and plain quantities of the weights"
OTHER_MODEL = "another model without topology"
NAMES = {"random_projections": "random projections of the weights", "placebo_twin": "the placebo twin"}
UNFOUND = "not even a planted feature is found"
MIN_WHOLE = 0.1  # shares from here on are written in whole percent


def decide(rows: pl.DataFrame) -> tuple[str, str]:
    """Return the verdict on a target by `RULE`, and what explains a gain or why it is undetermined."""
    gains = _gains(rows)
    if not gains:
        if not topology_rows(rows).get_column("detectable").is_finite().any():
            return UNDETERMINED, UNFOUND
        return (TREND, KNOWN) if len(_significant(topology_rows(rows, alone=True))) else (NONE, "")
    if gains[0]["explained_by"]:
        return TREND, gains[0]["explained_by"]
    measured = rows.get_column("added").unique().to_list()
    if missing := [NAMES[probe] for probe, name in PLACEBOS.items() if name not in measured]:
        question = f"whether {' or '.join(missing)} would do as much is open"
        return UNDETERMINED, f"{question}: the study does not measure {'them' if len(missing) > 1 else 'it'}"
    return BEYOND, ""


def _gains(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the significant gains given everything else, those that nothing explains first."""
    others = rows.filter(pl.col("p").is_null(), held_out=CONFIGURATIONS)
    least = dict(others.group_by("fraction").agg(pl.col("mae").min()).iter_rows())
    gains = []
    for row in _significant(topology_rows(rows)).iter_rows(named=True):
        low = {name: row[f"low_over_{probe}"] for probe, name in NAMES.items()}
        reasons = [name for name, end in low.items() if end is not None and not end > 0]
        if not reasons and row["mae"] >= least[row["fraction"]]:
            reasons = [OTHER_MODEL]
        gains.append(row | {"explained_by": joined(reasons) if reasons else ""})
    return sorted(gains, key=lambda row: row["explained_by"] != "")


def _significant(tests: pl.DataFrame) -> pl.DataFrame:
    gains = tests.filter(pl.col("p_adjusted") < LEVEL, pl.col("skill") > 0)
    return gains.sort("p_adjusted", -pl.col("skill"), maintain_order=True)


def topology_rows(rows: pl.DataFrame, *, alone: bool = False) -> pl.DataFrame:
    """Return the rows that test topology given everything else; with `alone` given the loss so far alone."""
    return rows.filter(pl.col("p").is_not_null(), (pl.col("given") == LOSS) == alone)


def deciding(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the gain that the verdict on a target rests on."""
    if rows.item(0, "reason") == KNOWN:
        return _significant(topology_rows(rows, alone=True)).row(0, named=True)
    return _gains(rows)[0]


def finding(rows: pl.DataFrame) -> str:
    """Return the verdict on a target in a few words, without a full stop."""
    target, verdict = rows.select("target", "verdict").row(0)
    known = "loss and norms" if verdict == TREND else "the loss so far, schedule and norms"
    return verdict_sentence(verdict, what=f"the {target}", known=known)


def sentence(rows: pl.DataFrame) -> str:
    """Return the verdict on a target with the figures it rests on."""
    target, verdict, reason = rows.select("target", "verdict", "reason").row(0)
    tested = topology_rows(rows)
    figures = reason
    if len(tested):
        over = f"over {counted(max(tested.get_column('n_runs')), 'run')}"
        if verdict == NONE or reason == UNFOUND:
            least, most = (percent(end) for end in (min(tested["skill"]), max(tested["skill"])))
            fractions = counted(tested["fraction"].n_unique(), "fraction")
            lowest = f"the lowest adjusted p {min(tested['p_adjusted']):.2g}"
            figures = f"{over} and {fractions} its skill is {least} to {most}, {reason or lowest}"
        else:
            figures = f"{_gain(deciding(rows))}, {over}{f'; {reason}' if verdict == UNDETERMINED else ''}"
    known = reason if verdict == TREND else KNOWN
    text = f"{verdict_sentence(verdict, what=f'the {target}', known=known, figures=figures)}."
    if verdict != NONE and reason != KNOWN:
        return text
    known_gains = tested.get_column("detectable").drop_nans()
    low, high = (percent(end) for end in (min(known_gains), max(known_gains)))
    range_ = low if low == high else f"{low} to {high}, by fraction,"
    return f"{text} Given all of these, a gain of {range_} would have been detected 4 times in 5."


def _gain(row: dict[str, Any]) -> str:
    alone = "added to the loss so far alone, " if row["given"] == LOSS else ""
    return (
        f"{alone}at {row['fraction']:.0%} of training {row['added']} makes the error {percent(row['skill'])} smaller "
        f"({percent(row['low'])} to {percent(row['high'])}, adjusted p {row['p_adjusted']:.2g})"
    )


def percent(value: float | None) -> str:
    """Write a share in percent."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{100 * value:.{0 if abs(value) >= MIN_WHOLE else 1}f}%".replace("-", "−")
