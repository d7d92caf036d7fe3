"""The tables of the page of pushed trainings."""

from typing import Any

import numpy as np
import polars as pl

from toposcope.extend import LEVEL
from toposcope_experiments.interventions.effects import (
    BOTH,
    POWER,
    Estimate,
    beyond_random,
    detectable,
    directed_effect,
    effect_of_direction,
    effect_rows,
    seeds_needed,
)
from toposcope_experiments.interventions.page import (
    BEYOND_PLACEBO,
    HALVED,
    PAIRED,
    Condition,
    InterventionData,
    by_strength,
    percent_change,
)
from toposcope_experiments.interventions.placebos import COMPARED
from toposcope_experiments.interventions.results import DOWN, STATISTIC, UP
from toposcope_experiments.interventions.verdict import ARM_NAMES, EFFECT_THAT_MATTERS, StatisticVerdict

VERDICTS: dict[str, type[pl.DataType]] = {
    "statistic": pl.String,
    "n": pl.Int64,
    **dict.fromkeys(("dose", "effect", "low", "high", "p", "p_effect", "p_follows"), pl.Float64),
    **dict.fromkeys(("verdict", "reason"), pl.String),
}
POWERS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("statistic", "comparison"), pl.String),
    "n": pl.Int64,
    **dict.fromkeys(("sd", "one", "holm", "all_placebos"), pl.Float64),
    "seeds": pl.Int64,
}


def verdict_table(data: InterventionData) -> pl.DataFrame:
    """Return a row for each statistic: its effect and the verdict, the strongest first."""
    return pl.DataFrame([_verdict_row(found) for found in by_strength(data.main.verdicts)], schema=VERDICTS)


def _verdict_row(found: StatisticVerdict) -> dict[str, Any]:
    effect = found.effect
    return {
        "statistic": found.name, "n": effect.n, "dose": found.dose.mean, "effect": effect.mean, "low": effect.low,
        "high": effect.high, "p": found.p, "p_effect": found.p_effect, "p_follows": found.p_follows,
        "verdict": found.words, "reason": found.reason,
    }  # fmt: skip


def comparison_table(data: InterventionData) -> pl.DataFrame:
    """Return a row for each statistic and placebo, as `PlaceboComparison.row`."""
    rows = []
    for found in by_strength(data.main.verdicts):
        none = {} if found.p_effect < LEVEL else {"explained": None, "outcome": "no effect to explain"}
        rows += [
            {"statistic": found.name, **each.row(), "placebo": ARM_NAMES[each.arm], **none}
            for each in found.comparisons
        ]
    return pl.DataFrame(rows, schema=COMPARED)


def effect_table(data: InterventionData) -> pl.DataFrame:
    """Return the effects of all arms, as `effect_rows`."""
    frames = [effect_rows(found.runs) for found in data.main.verdicts]
    return pl.concat([frame for frame in frames if frame.width], how="vertical_relaxed") if frames else pl.DataFrame()


def power_table(data: InterventionData) -> pl.DataFrame:
    """Return the differences that the seeds find: in one comparison, after Holm, and of all placebos."""
    verdicts, rows = data.main.verdicts, []
    m = len(verdicts)
    for found in verdicts:
        pairs = Estimate.of(effect_of_direction(found.runs, STATISTIC, UP))
        tests = [(PAIRED, pairs, 0), (HALVED, found.effect, 0)]
        least_exact = max(found.comparisons, key=lambda c: np.nan_to_num(c.left.sd), default=None)
        if least_exact is not None:
            tests.append((BEYOND_PLACEBO, least_exact.left, len(found.comparisons)))
        for name, test, n_placebos in tests:
            together = POWER ** (1 / n_placebos) if n_placebos else None
            rows.append({
                "statistic": found.name, "comparison": name, "n": test.n, "sd": test.sd,
                "one": detectable(test.sd, test.n), "holm": detectable(test.sd, test.n, LEVEL / m),
                "all_placebos": together and detectable(test.sd, test.n, LEVEL / m, together),
                "seeds": seeds_needed(test.sd, EFFECT_THAT_MATTERS, LEVEL / m),
            })  # fmt: skip
    return pl.DataFrame(rows, schema=POWERS)


def condition_table(data: InterventionData) -> pl.DataFrame:
    """Return a row for each condition and statistic: the effect at half of training and at the end."""
    rows = []
    for condition in data.conditions:
        for found in condition.verdicts:
            half = Estimate.of(directed_effect(found.runs, STATISTIC, "loss_half"))
            later = directed_effect(found.runs, STATISTIC) - directed_effect(found.runs, STATISTIC, "loss_half")
            change = Estimate.of(later)
            rows.append({
                "condition": condition.name, **_verdict_row(found), **_design_columns(condition, data.main),
                **half.columns("half"),
                **Estimate.of(beyond_random(found.runs, UP)).columns("up"),
                **Estimate.of(beyond_random(found.runs, DOWN)).columns("down"),
                **change.columns("later"),
                "course": course(found.effect, half, change),
            })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def condition_effects(data: InterventionData) -> pl.DataFrame:
    """Return the effect at the end of every arm with two directions, in mnat, in every condition."""
    frames = [
        effect_rows(found.runs)
        .filter(pl.col("direction") == BOTH, pl.col("effect").is_finite())
        .select(
            pl.lit(condition.name).alias("condition"), pl.lit(found.name).alias("pushed"), "arm", "effect",
            pl.col("effect_low").alias("low"), pl.col("effect_high").alias("high"), pl.col("n").alias("pairs"),
            pl.col("dose").map_elements(percent_change, pl.String),
        )
        for condition in data.conditions
        for found in condition.verdicts
        if found.effect.n
    ]  # fmt: skip
    return pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()


DESIGN_WORDS = {
    "size": "{}", "steps": "{:,} steps", "optimizer": "{}", "initial_scale": "initial weights times {:g}",
    "push_until": "pushed until {:.0%} of the steps",
}  # fmt: skip


def _design_columns(condition: Condition, first: Condition) -> dict[str, Any]:
    """Return what was declared, and in words what a condition does not have in common with the first."""
    declared = {name: condition.declared.get(name) for name in DESIGN_WORDS}
    own = [name for name, value in declared.items() if condition is first or value != first.declared.get(name)]
    if condition is first:
        own = [name for name in own if declared[name] not in (1.0, "adamw")]  # as nearly always
    words = [DESIGN_WORDS[name].format(declared[name]) for name in own if declared[name] is not None]
    return declared | {"differs": ", ".join(words)}


def course(end: Estimate, half: Estimate, change: Estimate) -> str:
    """Say how an effect goes on from half of training to its end."""
    if not half.p < LEVEL and not end.p < LEVEL:
        return "none at either"
    if not change.p < LEVEL:
        return "the same at both"
    if half.mean * end.mean < 0 and end.p < LEVEL and half.p < LEVEL:
        return "reverses"
    return "fades" if abs(end.mean) < abs(half.mean) else "grows"
