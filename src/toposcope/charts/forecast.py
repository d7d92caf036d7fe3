"""A forecast: the loss seen, the predicted loss with its band, the end of each forecaster, and the learning rate."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from toposcope.charts.axes import with_field
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.charts.training import apart
from toposcope.typing import Vector
from toposcope.wording import COVERAGE

HEIGHT, LOSS_HEIGHT, RATE_TOP = 390, 290, 322
"""Pixels from the top: of everything, to the end of the losses, to the peak of the learning rate."""
LABEL_HEIGHT, LETTER_WIDTH, LEADER_WIDTH = 15, 7, 20
"""Pixels: of the name of a forecaster, and of the line from its end to its name."""
MAX_POINTS = 250  # longer logs are drawn as the median of each of this many bins of rows
MAX_RAW_POINTS = 2000
EARLY_SHARE = 0.25  # share of the steps seen in which the first fall may begin above the chart: it would hide the rest
SPIKE_POINTS, MIN_SPIKE = 3, 1.1  # fewer points so far above those around, as a factor, may leave the chart
SEEN, TRAINING, VALIDATION = "seen", "training", "validation"


def forecast_chart(
    seen: pl.DataFrame,
    title: str,
    *,
    last_step: int,
    unit: str = "nats",
    forecaster: str = "",
    curve: pl.DataFrame | None = None,
    ends: pl.DataFrame | None = None,
    siblings: pl.DataFrame | None = None,
    rates: pl.DataFrame | None = None,
    validation: Sequence[pl.DataFrame] = (),
    spikes: bool = False,
) -> Chart:
    """Draw a forecast, with the validation losses of a run whose training loss is forecast, and with its spikes."""
    steps, losses = (seen.get_column(name).to_numpy().astype(np.float64) for name in ("step", "loss"))
    smooth = pl.DataFrame(dict(zip(("step", "loss"), binned_medians(steps, losses), strict=True)))
    spoken_of = seen if spikes else smooth.with_columns(loss=_without_spikes(smooth["loss"].to_numpy()))
    shown = pl.concat([each.cast(pl.Float64) for each in (spoken_of, *validation)]).sort("step")
    low, high = _limits(shown, curve, ends)
    y = alt.Y(
        "loss:Q", title=f"loss ({unit})", axis=alt.Axis(orient="left"),
        scale=alt.Scale(domain=[low, high], nice=False, zero=False, range=[LOSS_HEIGHT, 0]),
    )  # fmt: skip
    x = alt.X(
        "step:Q", title="training step", axis=alt.Axis(format=",d"),
        scale=alt.Scale(domain=[0, last_step], nice=False, rangeMax=alt.ExprRef(f"width - {_names_width(ends)}")),
    )  # fmt: skip
    predicted, of_run = f"forecast ({forecaster})", TRAINING if validation else SEEN
    scale = alt.Scale(domain=[of_run, *[predicted] * (curve is not None), *[VALIDATION] * len(validation)])
    legend = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=3)

    def coloured(name: str) -> alt.ColorDatum:
        return alt.ColorDatum(name, scale=scale, title=None, legend=legend)

    def lines(rows: pl.DataFrame, name: str = "", **look: Any) -> alt.Chart:
        # the learning rate is below: what is lower than the axis must not run into it
        kept = rows.with_columns(loss=pl.when(pl.col("loss") >= low).then("loss"))
        drawn: alt.Chart = alt.Chart(kept).mark_line(clip=True, **look).encode(x, y, tooltip=["step:Q", "loss:Q"])
        return drawn.encode(color=coloured(name)) if name else drawn

    layers: list[alt.Chart] = []
    if siblings is not None and len(siblings):
        thin = lines(siblings, color=MUTED, strokeWidth=0.8, opacity=0.6)
        layers.append(thin.encode(detail="run:N", tooltip=["run:N", "step:Q", "loss:Q"]))
    if len(smooth) < len(seen):
        layers.append(lines(seen.gather_every(-(-len(seen) // MAX_RAW_POINTS)), of_run, strokeWidth=0.5, opacity=0.25))
    layers.append(lines(smooth, of_run, point=len(smooth) == 1))
    layers += [lines(rows, VALIDATION, point=True) for rows in validation]
    if curve is not None:
        band = alt.Chart(curve).mark_area(opacity=0.22, clip=True)
        band = band.encode(x, with_field(y, "low"), alt.Y2("high:Q"))
        layers.append(band.encode(color=coloured(predicted)))
        layers.append(lines(curve, predicted, strokeDash=[6, 4]).encode(tooltip=["step", "loss", "low", "high"]))
    if ends is not None:
        layers += _ends(ends, forecaster, last_step, (low, high), x, y, coloured(predicted))
    losses_view = alt.layer(*layers)
    figure = losses_view if rates is None else alt.layer(losses_view, _rates(rates, x)).resolve_scale(y="independent")
    parts = ["Solid: the loss seen" + (", as medians over steps; faint: single rows" * (len(smooth) < len(seen)))]
    if curve is not None:
        begins = f"from the level of the last rows, {curve['loss'][0]:.4g}"
        parts.append(
            f"dashed: the forecast {begins}, with its {COVERAGE:.0%} band; at the right: where each forecaster ends"
        )
    if siblings is not None and len(siblings):
        parts.append(f"thin: {siblings.get_column('run').n_unique()} siblings, stretched to the same length")
    below = "" if rates is None else " Below: the learning rate as a share of its peak, dotted where it is planned."
    text = f"Line chart of the loss against the training step, seen and predicted. {title}."
    return Chart(
        "forecast",
        title,
        "; ".join(parts) + "." + below,
        text,
        figure.properties(height=LOSS_HEIGHT if rates is None else HEIGHT),
    )


def binned_medians(steps: Vector, losses: Vector, bins: int = MAX_POINTS) -> tuple[Vector, Vector]:
    """Return steps and losses, shape (m,), m at most `bins`; of more, the median of each, which no spike moves."""
    if len(steps) <= bins:
        return steps, losses
    parts = np.array_split(np.arange(len(steps)), bins)
    return np.array([steps[p].mean() for p in parts]), np.array([np.median(losses[p]) for p in parts])


def _without_spikes(losses: Vector) -> Vector:
    """Return losses without high peaks of fewer than `SPIKE_POINTS` points; the last one stays, whatever it is."""
    lowest = sliding_window_view(np.pad(losses, SPIKE_POINTS - 1, mode="edge"), SPIKE_POINTS).min(axis=1)
    around = sliding_window_view(lowest, SPIKE_POINTS).max(axis=1)
    return np.where(losses > MIN_SPIKE * around, around, losses)


def _limits(rows: pl.DataFrame, curve: pl.DataFrame | None, ends: pl.DataFrame | None) -> tuple[float, float]:
    """Return the ends of the vertical axis: of all rows since the first fall, the forecasts and their band."""
    late = rows.filter(pl.col("step") >= EARLY_SHARE * pl.col("step").max())["loss"].max()
    fallen = rows.filter(pl.col("loss") <= late)["step"].min()
    losses = rows.filter(pl.col("step") >= fallen)["loss"].to_numpy()
    shown = [float(losses.min()), float(losses.max())]
    if curve is not None:
        shown += [float(curve["low"].min()), float(curve["high"].max())]  # type: ignore[arg-type]
    if ends is not None:
        # a forecaster that is far off does not press the others together
        reach = max(shown) - min(shown)
        shown += ends.filter(pl.col("loss").is_between(min(shown) - reach, max(shown) + reach))["loss"].to_list()
    low, high = min(shown), max(shown)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _names_width(ends: pl.DataFrame | None) -> int:
    """Return the pixels to keep free at the right for the names of the forecasters."""
    longest = 0 if ends is None else max(map(len, ends["forecaster"]), default=0)
    return LEADER_WIDTH + LETTER_WIDTH * (longest + 2) if longest else 0


def _ends(
    ends: pl.DataFrame,
    chosen: str,
    last_step: int,
    limits: tuple[float, float],
    x: alt.X,
    y: alt.Y,
    colour: alt.ColorDatum,
) -> list[alt.Chart]:
    """Mark where each forecaster ends, with its name at the right; names are moved apart."""
    low, high = limits
    ends = ends.sort("loss").with_columns(at=pl.col("loss").clip(low, high))
    places = apart((ends.get_column("at").to_numpy() - low) / (high - low), LABEL_HEIGHT / LOSS_HEIGHT)
    beyond = ~ends.get_column("loss").is_between(low, high)
    names = [
        f"{name} {loss:.3g}" if far else name
        for name, loss, far in zip(ends["forecaster"], ends["loss"], beyond, strict=True)
    ]
    ends = ends.with_columns(label=pl.Series(names, dtype=pl.String), place=pl.Series(low + places * (high - low)))
    base = alt.Chart(ends).encode(x=alt.XDatum(last_step, scale=x["scale"]), tooltip=["forecaster:N", "loss:Q"])
    at, place = with_field(y, "at"), with_field(y, "place")
    name_x = alt.value(alt.ExprRef(f"width - {_names_width(ends) - LEADER_WIDTH}"))
    return [
        base.mark_rule(color=MUTED, strokeWidth=0.6).encode(y=at, y2="place:Q", x2=name_x),
        base.mark_tick(orient="horizontal", size=9, color=MUTED, thickness=1).encode(y=at),
        base.mark_text(align="left", dx=3).encode(x=name_x, y=place, text="label:N")
        .transform_filter(alt.datum.forecaster != chosen),
        base.mark_tick(orient="horizontal", size=12, thickness=3).encode(y=at, color=colour)
        .transform_filter(alt.datum.forecaster == chosen),
        base.mark_text(align="left", dx=3, fontWeight="bold").encode(x=name_x, y=place, text="label:N")
        .transform_filter(alt.datum.forecaster == chosen),
    ]  # fmt: skip


def _rates(rates: pl.DataFrame, x: alt.X) -> alt.Chart:
    scale = alt.Scale(domain=[0, 1], range=[HEIGHT, RATE_TOP], nice=False)
    y = alt.Y(
        "rate:Q", title="learning rate", scale=scale, axis=alt.Axis(orient="left", values=[0, 0.5, 1], format="%")
    )
    dash = alt.StrokeDash("planned:N", legend=None, scale=alt.Scale(domain=[False, True], range=[[1, 0], [2, 3]]))
    mark: alt.Chart = alt.Chart(rates).mark_line(color=MUTED, clip=True)
    return mark.encode(x, y, dash, tooltip=["step:Q", "rate:Q"])
