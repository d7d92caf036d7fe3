"""How final values change with the size of the model."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.scaling import sizes_of_complete
from toposcope.analysis.trajectories import TEXT_LOSS
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.report.charts.series import run_names
from toposcope.report.headline import H0, H1, NP, TARGETS, headlines_of, uncapitalised
from toposcope.report.material import Material
from toposcope.report.text_losses import TextLosses

MAX_LEGEND_RUNS = 12
"""With more runs than this there is no legend."""
MIN_STEADY = 0.9
"""Rank correlation with size below which a title names no direction."""
STEMS = {NP.key: "neural-persistence", H0.key: "h0-total", H1.key: "h1-total"}


def scaling_charts(material: Material) -> list[Chart]:
    """Draw final values against the number of parameters, each with its power law."""
    laws = {row["quantity"]: row for row in material.tables["scaling"].iter_rows(named=True)}
    losses = [name for name in TARGETS if not (name == TEXT_LOSS and TextLosses.of(material).tokens_differ)]
    loss = next((name for name in losses if name in laws), None)
    wanted = [(loss, "loss", f"final {TARGETS[loss]}", f"final {TARGETS[loss]} (nats per token)")] if loss else []
    of_states = headlines_of(material.trajectories, ("rankme", "H0.total", "H1.total"))
    stems = STEMS | {h.key: f"states-{h.feature.statistic.lower().replace('.', '-')}" for h in of_states}
    wanted += [
        (h.key, stems[h.key], f"final {uncapitalised(h.name)}", h.axis)
        for h in (NP, H0, H1, *of_states)
        if h.key in laws
    ]
    charts = [_scaling_chart(material, laws[key], stem, what, axis) for key, stem, what, axis in wanted]
    return [chart for chart in charts if chart is not None]


def _scaling_chart(material: Material, law: Mapping[str, Any], stem: str, what: str, axis: str) -> Chart | None:
    sizes = sizes_of_complete(material.trajectories, material.runs)
    finals = {t.run: v[-1] for t in material.trajectories if (v := t.named_values().get(law["quantity"])) is not None}
    rows = pl.DataFrame(
        [(run, sizes[run], value) for run, value in finals.items() if run in sizes and value > 0],
        schema={"run": pl.String, "parameters": pl.Int64, "value": pl.Float64}, orient="row",
    )  # fmt: skip
    if not len(rows):
        return None
    ends = np.array([min(sizes.values()), max(sizes.values())], dtype=float)
    fitted = pl.DataFrame({"parameters": ends, "value": law["factor"] * ends ** law["exponent"]})
    log = alt.Scale(type="log", nice=False, padding=12)
    base = alt.Chart().encode(
        x=alt.X("parameters:Q", title="parameters N", scale=log, axis=alt.Axis(format="~s")),
        y=alt.Y("value:Q", title=axis, scale=log, axis=alt.Axis(format="~g")),
    )
    points = base.properties(data=rows).mark_point(size=70, filled=True, opacity=1)
    figure = alt.LayerChart(
        layer=[
            base.properties(data=fitted).mark_line(strokeDash=[5, 4], color="#888"),
            points.encode(
                color=run_colour(run_names(material), legend=len(rows) <= MAX_LEGEND_RUNS),
                tooltip=[
                    alt.Tooltip("run:N"),
                    alt.Tooltip("parameters:Q", format=","),
                    alt.Tooltip("value:Q", format=".4~g"),
                ],
            ),
        ]
    )
    title = f"The {what} {trend(law)}"
    caption = (
        f"Complete runs at their last checkpoint, both axes logarithmic; dashed: power law over {law['n_sizes']} sizes."
    )
    return Chart(f"scaling-{stem}", title, caption, f"Scatter chart of {what} against size. {title}.", figure)


def trend(law: Mapping[str, Any]) -> str:
    """Say whether a final value rises or falls from size to size."""
    rho = law["rho"]
    if rho is None or not abs(rho) >= MIN_STEADY:
        return "has no steady trend with size"
    verb = "rises" if rho > 0 else "falls"
    return f"{verb} from size to size" if abs(rho) > 1 - 1e-9 else f"{verb} with size, with exceptions"
