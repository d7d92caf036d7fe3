"""Whether topology adds to the loss, the schedule and the plain quantities: one verdict for each target."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from toposcope.analysis.adjustment import adjusted
from toposcope.analysis.nested_models.fitting import CONTROLS, WITH_PROJECTIONS, WITH_TWIN, WITHOUT
from toposcope.analysis.nested_models.population import CONFIGURATIONS
from toposcope.analysis.nested_models.tables import PLANTED, RIDGE, SHUFFLED, NestedModels, tested_rows
from toposcope.analysis.power import POWER
from toposcope.analysis.verdict import BEYOND, LEVEL, NONE, TREND, UNDETERMINED, verdict_sentence
from toposcope.wording import counted, joined

SCHEMA: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("target", "verdict", "sentence"), pl.String),
    **dict.fromkeys(("n_runs", "n_fractions", "n_tests", "n_significant"), pl.Int64),
    **dict.fromkeys(("model", "learner"), pl.String),
    **dict.fromkeys(("fraction", "skill", "skill_low", "skill_high", "p_adjusted"), pl.Float64),
    **dict.fromkeys(("detectable_least", "detectable_most"), pl.Float64),
    **dict.fromkeys(("n_shuffled", "n_shuffled_found", "n_planted", "n_planted_found"), pl.Int64),
    **dict.fromkeys(("skill_projections", "skill_twin"), pl.Float64),
}
RULE = (
    f"Nested models, at level {LEVEL:g}: '{BEYOND}' if at some fraction of training the model with a topological "
    "family, or with all topology, errs less on held-out runs than the model with the loss so far, the schedule and "
    "norms and spectra, p adjusted over all families, fractions, targets and learners; if it also errs less than with "
    "random projections of the weights and than with the placebo twin in place of topology (paired p, adjusted over "
    "what is significant); if no draw of the topology of other runs gains as much; and if no model without topology, "
    f"of either learner, has as small an error. '{TREND}' if one of these fails. '{NONE}' if nothing is significant "
    f"and planted features are found. '{UNDETERMINED}' if they are not found, if the study measures no projections or "
    "no twin to compare a gain with, if more than a tenth of the draws of the topology of other runs gain at that "
    "level, unadjusted, where a fortieth should, or with too few runs."
)
KNOWN = "the loss so far, the schedule and plain quantities of the weights"
NAMES = {WITH_PROJECTIONS: "random projections of the weights", WITH_TWIN: "the placebo twin"}
_BESIDE = {WITH_PROJECTIONS: "projections", WITH_TWIN: "twin"}
Row = Mapping[str, Any]
MAX_SHUFFLED_SHARE = 0.1
"""Of the draws of the topology of other runs, at most so many may gain with p below .05; 2.5% should."""
MIN_WHOLE = 0.1  # shares from here on are written in whole percent


def nested_verdicts(fitted: NestedModels) -> pl.DataFrame:
    """Return the verdict of each target by `RULE`, in a sentence, with the figures it rests on."""
    targets = fitted.models.get_column("target").unique(maintain_order=True).to_list()
    rows = [
        _verdict(target, fitted.models.filter(target=target), fitted.draws.filter(target=target)) for target in targets
    ]
    for target, reason in fitted.untested.items():
        sentence = verdict_sentence(UNDETERMINED, what=f"the {target}", known=KNOWN, figures=reason)
        rows.append({"target": target, "verdict": UNDETERMINED, "sentence": f"{sentence}."})
    return pl.DataFrame([{**dict.fromkeys(SCHEMA), **row} for row in rows], schema=SCHEMA)


def finding(target: str, verdict: str) -> str:
    """Return a verdict in a few words, without a full stop."""
    known = "one of its controls" if verdict == TREND else "the loss so far, schedule and norms"
    return verdict_sentence(verdict, what=f"the {target}", known=known)


def detectable_gain(planted: pl.DataFrame) -> float:
    """Return the smallest skill of planted features that is found 4 times in 5; NaN if none is."""
    rows = planted.sort("noise")
    skill = rows.get_column("skill").to_numpy()
    power = (rows.get_column("n_found") / rows.get_column("n_draws")).to_numpy()
    below = np.flatnonzero(power < POWER)
    if not len(power) or (len(below) and below[0] == 0):
        return float("nan")
    if not len(below):
        return float(skill[-1])
    last = below[0]
    share = (power[last - 1] - POWER) / (power[last - 1] - power[last])
    return float(skill[last - 1] + share * (skill[last] - skill[last - 1]))


def _verdict(target: str, models: pl.DataFrame, draws: pl.DataFrame) -> dict[str, Any]:
    tests = models.filter(tested_rows()).sort(pl.col("skill") <= 0, "p", "fraction", "model").to_dicts()
    found = [row for row in tests if row["p_adjusted"] < LEVEL and row["skill"] > 0]
    explained = _explained(found, models, draws)
    own = [row for row, why in zip(found, explained, strict=True) if not why]
    decides = (own or found or tests)[0]
    planted, others = draws.filter(control=PLANTED), draws.filter(control=SHUFFLED)
    gains = np.array([detectable_gain(part) for _, part in planted.group_by("fraction", maintain_order=True)])
    clear = planted.filter(pl.col("noise") == pl.col("noise").min()) if len(planted) else planted
    controls = models.filter(left_out=CONFIGURATIONS, learner=RIDGE)
    best = {
        model: controls.filter(model=model).get_column("skill").max() if len(controls.filter(model=model)) else None
        for model in CONTROLS.values()
    }
    row: dict[str, Any] = {
        "target": target,
        "n_runs": int(models.get_column("n_runs").to_numpy().max()),
        "n_fractions": models.get_column("fraction").n_unique(),
        "n_tests": len(tests),
        "n_significant": len(found),
        **{
            key: decides[key]
            for key in ("model", "learner", "fraction", "skill", "skill_low", "skill_high", "p_adjusted")
        },
        "detectable_least": float(np.nanmin(gains)) if np.isfinite(gains).any() else None,
        "detectable_most": float(np.nanmax(gains)) if np.isfinite(gains).any() else None,
        "n_shuffled": int(others.get_column("n_draws").sum()),
        "n_shuffled_found": int(others.get_column("n_found").sum()),
        "n_planted": int(clear.get_column("n_draws").sum()),
        "n_planted_found": int(clear.get_column("n_found").sum()),
        "skill_projections": best[WITH_PROJECTIONS],
        "skill_twin": best[WITH_TWIN],
    }
    missing = [NAMES[model] for model in CONTROLS.values() if best[model] is None]
    reasons = [why for why in explained if why]
    verdict, figures, known, more = _judged(row, tests, own, reasons, missing, int(np.isfinite(gains).sum()))
    sentence = verdict_sentence(verdict, what=f"the {target}", known=known, figures=figures)
    return {**row, "verdict": verdict, "sentence": f"{sentence}.{more}"}


def _explained(found: Sequence[Row], models: pl.DataFrame, draws: pl.DataFrame) -> list[str]:
    """Return of each significant gain what does as much as topology; empty where nothing does."""
    beaten = {model: _beaten(found, end) for model, end in _BESIDE.items()}
    why = []
    for i, row in enumerate(found):
        others = draws.filter(control=SHUFFLED, fraction=row["fraction"], model=row["model"])
        without = models.filter(pl.col("model").is_in(WITHOUT), left_out=CONFIGURATIONS, fraction=row["fraction"])
        reasons = [NAMES[model] for model in _BESIDE if not beaten[model][i]]
        if row["learner"] == RIDGE and others.get_column("n_as_good").sum():
            reasons.append("the topology of other runs")
        if (without.get_column("mae") <= row["mae"]).any():  # of both learners
            reasons.append("another model without topology")
        why.append(joined(reasons) if reasons else "")
    return why


def _beaten(found: Sequence[Row], end: str) -> list[bool]:
    """Return whether each gain is significantly larger than that of a control; where there is none, it is not asked."""
    p = np.array([np.nan if row[f"p_beside_{end}"] is None else row[f"p_beside_{end}"] for row in found])
    lower = adjusted(p)
    return [
        bool(np.isnan(value)) or bool(value < LEVEL and row[f"skill_beside_{end}"] > 0)
        for row, value in zip(found, lower, strict=True)
    ]


def _judged(
    row: Row, tests: Sequence[Row], own: Sequence[Row], reasons: Sequence[str], missing: Sequence[str], n_powered: int
) -> tuple[str, str, str, str]:
    """Return the verdict, its figures, what topology is compared with, and a further sentence."""
    about = f"over {counted(row['n_runs'], 'run')}"
    if row["n_shuffled_found"] > MAX_SHUFFLED_SHARE * row["n_shuffled"]:
        how_often = f"{row['n_shuffled_found']} of {row['n_shuffled']} draws"
        return UNDETERMINED, f"the topology of other runs passes the test in {how_often}", KNOWN, ""
    if own:
        figures = f"{_gain(row)}, {about}{_against_controls(row)}"
        return (UNDETERMINED, figures, KNOWN, _not_excluded(missing)) if missing else (BEYOND, figures, KNOWN, "")
    if reasons:
        return TREND, f"{_gain(row)}, {about}", reasons[0], ""
    least, most = (_percent(end(t["skill"] for t in tests)) for end in (min, max))
    nothing = f"{about} and {counted(row['n_fractions'], 'fraction')} its skill is {least} to {most}"
    if not n_powered:
        return UNDETERMINED, f"{nothing}, and not even a planted feature is found", KNOWN, ""
    gains = [t["p_adjusted"] for t in tests if t["skill"] > 0]
    lowest = f", the lowest adjusted p of a gain {min(gains):.2g}" if gains else ""
    smallest, largest = (_percent(row[f"detectable_{end}"]) for end in ("least", "most"))
    power = smallest if smallest == largest else f"{smallest} to {largest}, by fraction,"
    return NONE, f"{nothing}{lowest}", KNOWN, f" A gain of {power} would have been detected 4 times in 5."


def _against_controls(row: Row) -> str:
    controls = [
        f"{NAMES[model]} ({_percent(row[f'skill_{end}'])} at most)"
        for model, end in _BESIDE.items()
        if row[f"skill_{end}"] is not None
    ]
    return f", more than with {joined(controls)}" if controls else ""


def _not_excluded(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    them = "them" if len(missing) > 1 else "it"
    return f" Whether {' or '.join(missing)} would do as much is open: the study does not measure {them}."


def _gain(row: Row) -> str:
    by = "" if row["learner"] == RIDGE else " by boosting"
    interval = f"{_percent(row['skill_low'])} to {_percent(row['skill_high'])}"
    return (
        f"at {row['fraction']:.0%} of training {row['model']} makes the error{by} {_percent(row['skill'])} smaller "
        f"({interval}, adjusted p {row['p_adjusted']:.2g})"
    )


def _percent(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "–"
    return f"{100 * value:.{0 if abs(value) >= MIN_WHOLE else 1}f}%".replace("-", "−")
