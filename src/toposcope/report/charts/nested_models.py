"""Skill of topology and its controls by fraction of training, and the errors of the nested models."""

import math
from collections.abc import Iterable

import altair as alt
import polars as pl

from toposcope.analysis.nested_models.columns import LOSS
from toposcope.analysis.nested_models.fitting import (
    ALL_TOPOLOGY,
    CONTROLS,
    MEDIAN,
    WITH_PLAIN,
    WITH_SCHEDULE,
    WITHOUT,
)
from toposcope.analysis.nested_models.population import CONFIGURATIONS
from toposcope.analysis.nested_models.tables import PLANTED, RIDGE, SHUFFLED
from toposcope.analysis.nested_models.verdicts import detectable_gain, finding
from toposcope.charts.axes import zero_line
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.report.material import Material

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 250, 150, 2
MIN_SKILL, MAX_SKILL = -0.3, 0.6
"""Skills beyond are drawn at the edge."""
MIN_SHOWN = 0.1
"""The axis of skills reaches at least from minus this to this."""
X = alt.X("fraction:Q", title="share of training seen", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))


def nested_models_charts(material: Material) -> list[Chart]:
    """Draw the skill of topology beside its controls for each target, and the errors of the models of the first one."""
    models, draws, verdicts = (material.tables[name] for name in ("nested_models", "nested_draws", "nested_verdicts"))
    ridge = models.filter(left_out=CONFIGURATIONS, learner=RIDGE) if len(models) else models
    topology = [name for name in ridge.get_column("model").unique(maintain_order=True) if _is_topology(name)]
    if not topology:
        return []
    whole = ALL_TOPOLOGY if ALL_TOPOLOGY in topology else topology[0]
    return [_skills(ridge, draws, verdicts, whole), _errors(ridge, verdicts, whole)]


def _is_topology(model: str) -> bool:
    return model not in (MEDIAN, *WITHOUT, *CONTROLS.values())


def _skills(ridge: pl.DataFrame, draws: pl.DataFrame, verdicts: pl.DataFrame, whole: str) -> Chart:
    shown = [whole, *(model for model in CONTROLS.values() if model in ridge["model"])]
    title = finding(*verdicts.select("target", "verdict").row(0))
    caption = (
        "By how much the error is smaller than that of loss, schedule, norms and spectra, on runs left out; bars: 95%. "
        "Shaded: what topology of other runs adds; dashed: the smallest gain detected 4 times in 5."
    )
    rows = ridge.filter(pl.col("model").is_in(shown), pl.col("skill").is_finite())
    band = draws.filter(control=SHUFFLED, model=whole)
    gains = _detectable(draws)
    scale = _skill_scale([*rows["skill_low"], *rows["skill_high"], *rows["skill"], *gains["gain"]])
    panels = [
        _panel(rows.filter(target=target), band.filter(target=target), gains.filter(target=target), shown, scale)
        for target in rows.get_column("target").unique(maintain_order=True)
    ]
    alternative = f"Line charts of the skill of {', '.join(shown)} against the share of training seen. {title}."
    return Chart("nested-models-skill", title, caption, alternative, alt.concat(*panels, columns=COLUMNS))


def _detectable(draws: pl.DataFrame) -> pl.DataFrame:
    """Return the smallest gain that is detected 4 times in 5: ``target, fraction, gain``."""
    planted = draws.filter(control=PLANTED).group_by("target", "fraction", maintain_order=True)
    rows = [(target, fraction, detectable_gain(part)) for (target, fraction), part in planted]
    schema = {"target": pl.String, "fraction": pl.Float64, "gain": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").filter(pl.col("gain").is_finite())


def _skill_scale(values: Iterable[float | None]) -> alt.Scale:
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min([-MIN_SHOWN, *known]), max([MIN_SHOWN, *known])
    return alt.Scale(domain=[max(low, MIN_SKILL), min(high, MAX_SKILL)], clamp=True)


def _panel(
    rows: pl.DataFrame, band: pl.DataFrame, gains: pl.DataFrame, shown: list[str], scale: alt.Scale
) -> alt.LayerChart:
    y = alt.Y("skill:Q", title="skill", axis=alt.Axis(format="+%"), scale=scale)
    kept = rows.select("fraction", "model", *(pl.col(c).fill_nan(None) for c in ("skill", "skill_low", "skill_high")))
    base = alt.Chart(kept).encode(
        X, color=alt.Color("model:N", title=None, sort=shown, legend=alt.Legend(columns=2))
    )  # fmt: skip
    shaded = alt.Chart(band.select("fraction", "skill_least", "skill_most"))
    tooltip = ["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("skill:Q", format="+.1%")]
    layers = [
        shaded.mark_area(color="gray", opacity=0.18).encode(X, alt.Y("skill_least:Q", scale=scale), y2="skill_most:Q"),
        alt.Chart(gains).mark_line(strokeDash=[4, 4], color=MUTED).encode(X, alt.Y("gain:Q", scale=scale)),
        zero_line("y"),
        base.mark_rule(opacity=0.5).encode(alt.Y("skill_low:Q", scale=scale), y2="skill_high:Q"),
        base.mark_line(point={"size": 30}, clip=True).encode(y, tooltip=tooltip),
    ]
    figure: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        title=rows.item(0, "target"), width=PANEL_WIDTH, height=PANEL_HEIGHT
    )
    return figure


def _errors(ridge: pl.DataFrame, verdicts: pl.DataFrame, whole: str) -> Chart:
    target = verdicts.item(0, "target")
    order = [LOSS, WITH_SCHEDULE, WITH_PLAIN, whole]
    rows = ridge.filter(pl.col("model").is_in(order), target=target)
    names = [LOSS, *(f"+ {model}" for model in order[1:])]
    first, last = (rows.filter(fraction=f(rows["fraction"])) for f in (min, max))
    known = [part.filter(model=WITH_PLAIN).get_column("mae") for part in (first, last)]
    title = (
        f"With norms and spectra the error of the {target} falls from {known[0].item():.3g} to {known[1].item():.3g}"
    )
    caption = "Mean absolute error on runs left out, by the share of training seen; each model adds to the one above."
    rows = rows.with_columns(pl.col("model").replace_strict(dict(zip(order, names, strict=True))))
    figure = alt.Chart(rows).mark_line(point={"size": 30}).encode(
        X, alt.Y("mae:Q", title="mean absolute error", scale=alt.Scale(type="log", nice=False, padding=10)),
        color=alt.Color("model:N", title=None, sort=names, legend=alt.Legend(columns=2)),
        tooltip=["model:N", alt.Tooltip("fraction:Q", format=".0%"), alt.Tooltip("mae:Q", format=".4f")],
    )  # fmt: skip
    alternative = f"Line chart of the error of {', '.join(names)} against the share of training seen. {title}."
    return Chart("nested-models-errors", title, caption, alternative, figure)
