"""Final values against the number of parameters, and sizes at equal step, tokens and loss."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.association import MIN_CHECKPOINTS
from toposcope.analysis.matched import MIN_SIZES, collapse_table, matched_table
from toposcope.analysis.scaling import scaling_table, sizes_of_complete
from toposcope.analysis.trajectory import TEXT_LOSS, Trajectory
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour
from toposcope.probes.feature import NETWORK
from toposcope.report import formats
from toposcope.report import headline as headlines
from toposcope.report.association_tables import primary
from toposcope.report.charts.series import run_names
from toposcope.report.document import Block, folded, linked
from toposcope.report.not_made import needs_checkpoints, needs_features, needs_sizes
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import feature_of, headline_rows, interval_of, number_of, numbers, table, text_of
from toposcope.report.text_losses import NOT_COMPARABLE, TextLosses
from toposcope.report.tuning import MIN_STEADY
from toposcope.wording import counted

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


OF_STATES = ("rankme", "H0.total", "H1.total")
MAX_RATIO_SPREAD = 1e-6
MATCHED_BY = {"step": "training step", "tokens": "tokens seen", "loss": "loss (nats per token)"}
MAX_FEATURES = 3


def cross_size_charts(data: StudyData) -> list[Chart]:
    """Draw a few features of runs of all sizes, matched by step, tokens and loss."""
    known = data.tables["matched"].filter(pl.col("value").is_finite())
    present = set(known.get_column("feature"))
    wanted = (*headlines.headlines_of(data.trajectories, OF_STATES), *headlines.TRAJECTORIES)
    left_out = ["tokens"] if _tokens_are_steps(data.trajectories) else []
    known = known.filter(~pl.col("by").is_in(left_out))
    return [_chart(data, known, h) for h in [h for h in wanted if h.key in present][:MAX_FEATURES]]


def _chart(data: StudyData, known: pl.DataFrame, headline: headlines.Headline) -> Chart:
    rows = known.filter(feature=headline.key)
    shared = [by for by in MATCHED_BY if by in rows.get_column("by")]
    legend = rows.get_column("run").n_unique() <= MAX_LEGEND_RUNS
    panels = [
        alt.Chart(rows.filter(by=by).select("run", "level", "value"), title=f"equal {by}")
        .mark_line(point={"size": 14})
        .encode(
            x=_axis(by, rows.filter(by=by)),
            y=alt.Y("value:Q", title=headline.axis if by == shared[0] else None, scale=alt.Scale(zero=False)),
            color=run_colour(run_names(data), legend=legend),
            tooltip=["run:N", alt.Tooltip("level:Q", title=MATCHED_BY[by]), "value:Q"],
        )
        .properties(width=220)
        for by in shared
    ]
    collapse = data.tables["collapse"].filter(pl.col("spread").is_finite(), feature=headline.key)
    spreads = {by: spread for by, spread in collapse.select("by", "spread").iter_rows() if by in shared}
    title = f"{headline.name} of different sizes {nearest(spreads)}"
    caption = "Each panel matches the runs by another quantity; levels that not all runs reach are left out."
    stem = f"{headline.feature.probe}-{headline.feature.statistic}".lower().replace("_", "-").replace(".", "-")
    figure = alt.concat(*panels, columns=len(panels))
    text = f"Line charts of {headline.name} of runs of all sizes. {title}."
    return Chart(f"sizes-{stem}", title, caption, text, figure)


def nearest(spreads: dict[str, float]) -> str:
    """Say by which quantity sizes lie nearest."""
    if len(spreads) > 1:
        return f"lies nearest at equal {min(spreads, key=lambda by: spreads[by])}"
    return f"is compared at equal {next(iter(spreads))} only" if spreads else "cannot be compared"


def _axis(by: str, rows: pl.DataFrame) -> alt.X:
    if by == "loss":  # training goes to the right
        return alt.X("level:Q", title=MATCHED_BY[by], scale=alt.Scale(reverse=True, zero=False))
    scale = alt.Scale(type="log" if (rows.get_column("level") > 0).all() else "symlog", nice=False)
    return alt.X("level:Q", title=MATCHED_BY[by], scale=scale, axis=alt.Axis(format="~s"))


def _tokens_are_steps(trajectories: Sequence[Trajectory]) -> bool:
    """Return whether all runs see equally many tokens per step, so that equal tokens are equal steps."""
    if not trajectories:
        return False
    ratios = np.concatenate([t.tokens[t.steps > 0] / t.steps[t.steps > 0] for t in trajectories])
    ratios = ratios[np.isfinite(ratios)]
    return bool(len(ratios)) and bool(np.ptp(ratios) <= MAX_RATIO_SPREAD * ratios[0])


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
        + (f"; {rows[0]['n_sizes']} sizes allow {rows[0]['p_least']:.3f} at best" if rows else "")
        + ". All quantities: scaling.csv.",
        note=True,
    )
    scaling = table("scaling", "Final values against the number of parameters", specs, rows)
    return (scaling, note if scaling else None)


def _across(data: StudyData) -> Iterable[Block | None]:
    """Show features of all sizes at equal step, tokens and loss."""
    rows = headline_rows(data.tables["collapse"])
    specs = (
        feature_of(),
        text_of("at equal", "by", names_row=True),
        *numbers(whole={"runs": "n_runs", "levels": "n_levels"}),
        *numbers("levels", plain={"from": "low", "to": "high"}),
        number_of("spread", "spread", lambda x: formats.signed(x).lstrip("+")),
        *numbers(
            "rank correlation with size",
            signed={"rho": "rho_size"},
            p_value={"p-value": "p_size", "at best": "p_least"},
        ),
    )
    collapse = table("collapse", "How far sizes lie apart at equal step, tokens and loss", specs, rows)
    explanation = linked(
        "Spread: the standard deviation over runs at the same level, as a share of that of all matched values; 0 where "
        "the sizes coincide. The p-value is exact, over all orders of the sizes; “at best” is the lowest that so few "
        "sizes allow. All: collapse.csv; the values themselves: matched.csv."
    )
    return (explanation if collapse else None, folded(collapse, "At equal step, tokens and loss"))


def _matched(data: StudyData) -> pl.DataFrame:
    return matched_table(data.trajectories, dict(data.runs.select("run", "n_parameters").drop_nulls().iter_rows()))


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
    tables={
        "scaling": lambda data: scaling_table(data.trajectories, data.runs),
        "matched": _matched,
        "collapse": lambda data: collapse_table(data.tables["matched"]),
    },
    charts=(scaling_charts, cross_size_charts),
    blocks=lambda data, pictures: (*pictures, *_laws(data), *_across(data)),
    finding=_finding,
    summary=_summary,
    summary_position=30,
    needs={
        "scaling": (_ends,),
        **dict.fromkeys(("matched", "collapse"), (needs_sizes(2), needs_features, needs_checkpoints(MIN_CHECKPOINTS))),
    },
)
