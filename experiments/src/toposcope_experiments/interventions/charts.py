"""The arms as one picture, and their effects in all conditions: what each push does to the loss."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts import Chart
from toposcope.extend import zero_line
from toposcope_experiments.interventions.effects import BOTH
from toposcope_experiments.interventions.page import InterventionData, by_strength, mnat, percent_change
from toposcope_experiments.interventions.placebos import MIN_DOSE_SHARE
from toposcope_experiments.interventions.results import CHAOS, PLACEBOS, STATISTIC
from toposcope_experiments.interventions.verdict import ARM_LABELS, ARM_NAMES, StatisticVerdict

ROW_HEIGHT = 42
CONDITION_HEIGHT = 72
NO_DIRECTION = "no direction"
WORDS = ("pushed up", "pushed down", NO_DIRECTION)
SHAPES = ("triangle-up", "triangle-down", "circle")


def arm_charts(data: InterventionData) -> list[Chart]:
    """Draw the effects of all arms: a chart for each statistic."""
    effects, drawn = data.tables["effects"], [each for each in by_strength(data.main.verdicts) if each.effect.n]
    return [_chart(found, effects.filter(statistic=found.runs.statistic)) for found in drawn]


def _chart(found: StatisticVerdict, effects: pl.DataFrame) -> Chart:
    title = f"{found.name[:1].upper()}{found.name[1:]}: {found.words}"
    caption = (
        "How each push changes the validation loss of the run of the same seed, with 95% intervals: left of 0 the loss "
        f"is lower. In percent: how far the push changed {found.name} (“only”: less than half as far as its own push)."
    )
    both = effects.filter(direction=BOTH).select("arm", "effect").iter_rows()
    sizes = ", ".join(f"{ARM_NAMES[arm]} {mnat(value)}" for arm, value in both)
    alternative = f"Dot plot of the effect of each push on the loss. {title}. Half of up minus down: {sizes}."
    order = [found.name, *(ARM_LABELS[arm] for arm in PLACEBOS)]
    rows = pl.DataFrame([
        {
            "arm": found.name if row["arm"] == STATISTIC else ARM_LABELS[row["arm"]],
            "push": NO_DIRECTION if row["direction"] == "none" else f"pushed {row['direction']}",
            "effect": row["effect"], "low": row["effect_low"], "high": row["effect_high"], "pairs": row["n"],
            "dose": _dose(row["arm"], row["dose"], row["target_dose"]),
        }
        for row in effects.filter(pl.col("direction") != BOTH).to_dicts()
    ])  # fmt: skip
    there = set(rows["push"])
    scale = alt.Scale(domain=[word for word in WORDS if word in there])
    shapes = alt.Scale(domain=scale.domain, range=[s for s, w in zip(SHAPES, WORDS, strict=True) if w in there])
    axis = alt.Axis(labelLimit=125, ticks=False)
    base = alt.Chart(rows).encode(
        y=alt.Y("arm:N", title=None, sort=order, axis=axis),
        yOffset=alt.YOffset("push:N", sort=list(WORDS)),
        color=alt.Color("push:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
    )
    shape = alt.Shape("push:N", title=None, scale=shapes)
    layers = _intervals_and_points(base, "change of the loss (mnat)", shape, 75, ["arm:N", "push:N"])
    doses = base.mark_text(align="left", dx=6, fontSize=10).encode(x=alt.X("high:Q"), text="dose:N")
    figure = alt.LayerChart(layer=[zero_line("x"), *layers, doses])
    figure = figure.properties(height=ROW_HEIGHT * rows["arm"].n_unique())
    name = f"interventions-{found.runs.statistic.lower().replace('_', '-')}"
    return Chart(name, title, caption, alternative, figure)


def condition_chart(data: InterventionData) -> list[Chart]:
    """Draw the effects of all arms that have two directions, condition by condition; nothing of one condition."""
    rows = data.tables["condition_effects"]
    if not rows.width or rows.n_unique("condition") < 2:
        return []
    names = {arm: "topology" if arm == STATISTIC else ARM_LABELS[arm] for arm in (STATISTIC, *PLACEBOS)}
    order = [name for arm, name in names.items() if arm in set(rows["arm"])]
    both = pl.format("{}: {}", "condition", "pushed")
    row = pl.when(pl.col("pushed").n_unique().over("condition") > 1).then(both).otherwise("condition").alias("row")
    rows = rows.with_columns(pl.col("arm").replace(names), row)
    axis = alt.Axis(labelLimit=125, minExtent=135, ticks=False)
    base = alt.Chart(rows).encode(
        y=alt.Y("row:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.3), axis=axis),
        yOffset=alt.YOffset("arm:N", sort=order),
        color=alt.Color("arm:N", title=None, scale=alt.Scale(domain=order), legend=alt.Legend(orient="top", columns=3)),
    )
    shape = alt.Shape("arm:N", title=None, scale=alt.Scale(domain=order))
    layers = _intervals_and_points(base, "half of up minus down (mnat)", shape, 60, ["row:N", "arm:N"])
    figure = alt.LayerChart(layer=[zero_line("x"), *layers])
    figure = figure.properties(height=CONDITION_HEIGHT * rows["row"].n_unique())
    title = "Each push in each condition"
    caption = (
        "The effect of each push on the validation loss at the end, with 95% intervals: left of 0 pushing up lowers "
        "the loss. Placebos are pushed as far as topology; those that cannot reach it, up to ten times as strongly."
    )
    sizes = [
        f"{row}: {', '.join(f'{arm} {mnat(effect)}' for arm, effect in of.select('arm', 'effect').iter_rows())}"
        for (row,), of in rows.group_by("row", maintain_order=True)
    ]
    alternative = f"Dot plot of the effect of each push in {len(sizes)} conditions. {'; '.join(sizes)}."
    return [Chart("interventions-conditions", title, caption, alternative, figure)]


def _intervals_and_points(
    base: alt.Chart, words: str, shape: alt.Shape, size: int, names: list[str]
) -> tuple[alt.Chart, alt.Chart]:
    numbers = (alt.Tooltip(f"{name}:Q", format=".3~g") for name in ("effect", "low", "high"))
    tooltip = [*names, "dose:N", "pairs:Q", *numbers]
    intervals = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=words), x2="high:Q", tooltip=tooltip)
    points = base.mark_point(filled=True, size=size, opacity=1)
    return intervals, points.encode(x=alt.X("effect:Q", title=words), shape=shape, tooltip=tooltip)


def _dose(arm: str, dose: float | None, target: float | None) -> str:
    """Write the dose next to an arm, and whether it is that of the statistic."""
    if arm == CHAOS or dose is None or not np.isfinite(dose):
        return ""
    missed = arm != STATISTIC and target is not None and dose / (target or np.nan) < MIN_DOSE_SHARE
    return f"only {percent_change(dose)}" if missed else percent_change(dose)
