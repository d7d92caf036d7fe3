"""Final values against the number of parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.scaling import scaling_table, sizes_of_complete
from toposcope.analysis.trajectory import TEXT_LOSS
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.probes.feature import NETWORK
from toposcope.report import formats
from toposcope.report import headline as headlines
from toposcope.report.association_tables import primary
from toposcope.report.charts.series import run_names
from toposcope.report.document import Block, linked
from toposcope.report.not_made import needs_sizes
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import feature_of, headline_rows, interval_of, number_of, numbers, table
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses
from toposcope.wording import counted

MIN_STEADY = 0.9  # rank correlation with size below which a title names no direction

MIN_SIZES = 3  # fewer have only two orders, so that no correlation with size means anything
MAX_LEGEND_RUNS = 12  # with more runs than this there is no legend
STEMS = {headlines.NP.key: "neural-persistence", headlines.H0.key: "h0-total", headlines.H1.key: "h1-total"}


def scaling_charts(data: StudyData) -> list[Chart]:
    """Draw final values against the number of parameters, each with its power law."""
    laws = {row["quantity"]: row for row in data.tables["scaling"].iter_rows(named=True)}
    losses = [name for name in headlines.TARGETS if not (name == TEXT_LOSS and TextLosses.of(data).tokens_differ)]
    loss = next((name for name in losses if name in laws), None)
    wanted = (
        [(loss, "loss", f"final {headlines.TARGETS[loss]}", f"final {headlines.TARGETS[loss]} (nats per token)")]
        if loss
        else []
    )
    of_states = headlines.headlines_of(data.trajectories, ("rankme", "H0.total", "H1.total"))
    stems = STEMS | {h.key: f"states-{h.feature.statistic.lower().replace('.', '-')}" for h in of_states}
    wanted += [
        (h.key, stems[h.key], f"final {headlines.uncapitalised(h.name)}", h.axis)
        for h in (headlines.NP, headlines.H0, headlines.H1, *of_states)
        if h.key in laws
    ]
    charts = [_scaling_chart(data, laws[key], stem, what, axis) for key, stem, what, axis in wanted]
    return [chart for chart in charts if chart is not None]


def _scaling_chart(data: StudyData, law: Mapping[str, Any], stem: str, what: str, axis: str) -> Chart | None:
    sizes = sizes_of_complete(data.trajectories, data.runs)
    finals = {t.run: v[-1] for t in data.trajectories if (v := t.named_values().get(law["quantity"])) is not None}
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
                color=run_colour(run_names(data), legend=len(rows) <= MAX_LEGEND_RUNS),
                tooltip=["run:N", alt.Tooltip("parameters:Q", format=","), alt.Tooltip("value:Q", format=".4~g")],
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


def _laws(data: StudyData) -> Iterable[Block | None]:
    rows = headline_rows(data.tables["scaling"], "quantity")
    specs = (
        feature_of("final value", "quantity"),
        *numbers(whole={"runs": "n", "sizes": "n_sizes"}),
        *numbers("power law", signed={"exponent": "exponent"}),
        interval_of("95% interval", "low", "high", group="power law"),
        number_of("R²", "r_squared", lambda x: formats.signed(x).lstrip("+"), group="power law"),
        *numbers("power law and an offset", plain={"offset": "offset"}, signed={"exponent": "offset_exponent"}),
        *numbers("rank correlation with size", signed={"rho": "rho"}, p_value={"exact p": "p_exact"}),
    )
    note = linked(
        "Least squares of the logarithms; the interval resamples runs. The p-value is exact for up to 8 sizes"
        + (f"; {rows[0]['n_sizes']} sizes allow {rows[0]['min_p']:.3f} at best" if rows else "")
        + ". All quantities: scaling.csv.",
        note=True,
    )
    scaling = table("scaling", "Final values against the number of parameters", specs, rows)
    return (scaling, note if scaling else None)


def _ends(data: StudyData) -> str:
    """Ask for complete runs of enough sizes."""
    if few := needs_sizes(MIN_SIZES)(data):
        return few
    n = len({*sizes_of_complete(data.trajectories, data.runs).values()})
    return "" if n >= MIN_SIZES else f"{MIN_SIZES} sizes of complete runs that are measured at their last step; {n} are"


def _finding(data: StudyData) -> str:
    """Say how the final loss goes with size."""
    laws = {row["quantity"]: row for row in data.tables["scaling"].iter_rows(named=True)}
    loss = next((name for name in headlines.TARGETS if name in laws), None)
    if loss is None or (loss == TEXT_LOSS and TextLosses.of(data).tokens_differ):
        return ""
    return f"The final {headlines.TARGETS[loss]} {trend(laws[loss])}, over {counted(laws[loss]['n_sizes'], 'size')}"


def _summary(data: StudyData) -> list[str]:
    """State the power law of the final loss in the number of parameters."""
    rows = primary(data).filter(pl.col("group") == NETWORK)
    if not len(rows):
        return []
    target = rows.item(0, "target")
    if TextLosses.of(data).tokens_differ and target == TEXT_LOSS:
        return [NOT_COMPARABLE]
    law = data.tables["scaling"].filter(quantity=target)
    if not len(law):
        return []
    row = law.row(0, named=True)
    exponent, sizes = formats.signed(row["exponent"]).lstrip("+"), f"{row['n_sizes']} sizes (R² {row['r_squared']:.3f})"
    return [
        f"The final {headlines.named(target)} scales as N^{exponent} over {sizes}; {headlines.describe_rank_test(row)}."
    ]


SECTION = ReportSection(
    anchor="scaling",
    title="Scaling",
    position=120,
    tables={"scaling": lambda data: scaling_table(data.trajectories, data.runs)},
    charts=(scaling_charts,),
    blocks=lambda data, pictures: (*pictures, *_laws(data)),
    finding=_finding,
    summary=_summary,
    summary_position=30,
    needs={"scaling": (_ends,)},
)
