"""The charts of the page's explorer: specifications without data, which the page's script hands them."""

from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from toposcope.charts.training import run_colour, step_axis_of

ROWS, CURSOR = alt.NamedData("rows"), alt.NamedData("cursor")
HEIGHT = 190
MAX_MAP_HEIGHT = 640  # of the layer map, in pixels, unless it has hundreds of layers
MAX_LABEL_WIDTH = 190  # of a layer's label, in pixels; none is cut
ONE_VALUE = "datum.label === '0' && datum.value ? format(datum.value, '.3~g') : datum.label"
"""Labels of an axis: where there is one value only, Vega would round it to a whole number."""
_ZOOM = "wheel![event.shiftKey]"


def explorer_charts(runs: list[str], *, log_steps: bool, n_layers: int = 0) -> dict[str, dict[str, Any]]:
    """Return the explorer's charts by name."""
    with debug_mode(False):  # Altair would validate every part of every chart as it is made
        figures = {
            "explore-loss": lines(runs, log_steps),
            "explore-feature": lines(runs, log_steps),
            "explore-raw": _scatter(runs, "feature", "loss"),
            "explore-given": _scatter(
                runs, "rank of the feature, covariates taken out", "rank of the loss, covariates taken out"
            ),
            "layer-map": _layer_map(n_layers),
            "layer-lines": lines(runs, log_steps),
            "layer-diagram": _diagram(),
        }
        return {name: specification(figure) for name, figure in figures.items()}


def specification(figure: Any) -> dict[str, Any]:
    """Return the specification of a chart; the page has its own theme."""
    return {key: value for key, value in figure.to_dict(validate=False).items() if key != "config"}


def lines(runs: list[str], log_steps: bool, height: int = HEIGHT) -> Any:
    """Draw one line per run, with a cursor at one step."""
    encoded: dict[str, Any] = {
        "x": step_axis_of(log_steps),
        "y": alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=ONE_VALUE)),
        "color": run_colour(runs),
    }
    base, here = alt.Chart(ROWS).encode(**encoded), alt.Chart(CURSOR).encode(**encoded)
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom=_ZOOM)
    # A run of one step is no line yet.
    alone = base.transform_joinaggregate(n="count()", groupby=["run"]).transform_filter("datum.n === 1")
    return alt.layer(
        # A row of the live page may stand for several steps.
        base.transform_filter("isValid(datum.low)").mark_area(opacity=0.25, clip=True)
        .encode(y=alt.Y("low:Q", title=None), y2=alt.Y2("high:Q")),
        base.mark_line(clip=True).add_params(zoom),
        alone.mark_point(size=30, filled=True, opacity=1, clip=True),
        here.mark_rule(strokeDash=[4, 3]).encode(
            y=alt.value(0), y2=alt.value("height"), color=alt.ColorValue("gray")
        ),
        here.mark_point(size=60, filled=True, opacity=1).add_params(alt.param(name="at", value=-1)),
        height=height,
    )  # fmt: skip


def _scatter(runs: list[str], x_title: str, y_title: str) -> Any:
    """Draw one quantity against another, a mark per checkpoint."""
    base = alt.Chart(ROWS).encode(
        x=alt.X("a:Q", title=x_title, scale=alt.Scale(zero=False)),
        y=alt.Y("b:Q", title=y_title, scale=alt.Scale(zero=False)),
        color=run_colour(runs),
        tooltip=[
            *(alt.Tooltip(name) for name in ("run:N", "step:Q")),
            *(alt.Tooltip(name, format=".4~g") for name in ("a:Q", "b:Q")),
        ],
    )
    zoom = alt.selection_interval(name="zoom", bind="scales", zoom=_ZOOM)
    return alt.layer(
        base.mark_point(filled=True, size=32, opacity=0.75).add_params(zoom),
        base.transform_filter("datum.step === at").mark_point(size=130, strokeWidth=2.5)
        .add_params(alt.param(name="at", value=-1)),
        height=HEIGHT,
    )  # fmt: skip


def _layer_map(n_layers: int) -> Any:
    """Draw a quantity of every layer at every checkpoint; a click opens the layer at that step."""
    base = alt.Chart(ROWS).encode(
        x=alt.X("step:O", title="training step", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
        y=alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelOverlap="greedy", labelLimit=MAX_LABEL_WIDTH)),
    )
    cells = base.mark_rect(cursor="pointer").encode(
        color=alt.Color("value:Q", title=None, legend=alt.Legend(orient="right", gradientThickness=10)),
        tooltip=["layer:N", "step:O", alt.Tooltip("value:Q", format=".4~g")],
    )
    undefined = base.transform_filter("!isValid(datum.value)").mark_text(text="–")
    chosen = base.transform_filter("datum.step === at && datum.layer === layer").mark_rect(
        filled=False, stroke="#D55E00", strokeWidth=3
    )
    params = (alt.param(name="at", value=-1), alt.param(name="layer", value=""))
    return (
        alt.layer(cells, undefined, chosen)
        .add_params(*params)
        .properties(height={"step": max(3, min(20, MAX_MAP_HEIGHT // max(1, n_layers)))})
    )


def _diagram() -> Any:
    """Draw the diagrams of a layer at a checkpoint, those of the neighbouring checkpoints behind them."""
    base = alt.Chart(ROWS).encode(
        x=alt.X("birth:Q", title="birth"),
        y=alt.Y("death:Q", title="death"),
        color=alt.Color("name:N", title=None, scale=alt.Scale(domain=["H0", "H1", "NP"])),
        tooltip=["name:N", "when:N", "birth:Q", "death:Q"],
    )
    diagonal = (
        alt.Chart(ROWS)
        .transform_aggregate(low="min(birth)", high="max(death)")
        .mark_rule(strokeDash=[3, 3], color="gray")
        .encode(x=alt.X("low:Q"), y=alt.Y("low:Q"), x2=alt.X2("high:Q"), y2=alt.Y2("high:Q"))
    )
    return alt.layer(
        diagonal,
        base.transform_filter("datum.when !== 'here'").mark_point(filled=False, size=22, opacity=0.35),
        base.transform_filter("datum.when === 'here'").mark_point(filled=True, size=30, opacity=0.9),
    ).properties(height=HEIGHT)
