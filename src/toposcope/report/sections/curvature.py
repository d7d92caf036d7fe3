"""The Hessian of the loss over training: largest eigenvalues, trace and density, each with its error."""

from collections.abc import Iterable, Sequence

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.chart import Chart
from toposcope.charts.theme import HEIGHT
from toposcope.probes.feature import NETWORK
from toposcope.probes.probe import NOISE
from toposcope.report.charts.series import direction, largest_run, runs_in, training_chart
from toposcope.report.document import Block, Picture, Terms, folded, linked
from toposcope.report.formats import share
from toposcope.report.not_made import needs_probe
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import numbers, table, text_of

PROBE, TABLE = "curvature", "curvature"
RANKS = {"sharpness": "largest", "eigenvalue_2": "2nd", "eigenvalue_5": "5th", "eigenvalue_10": "10th"}
LEAST_SHARE = 1e-6  # shares below this are hardly above the axis


def curvature_rows(data: StudyData) -> pl.DataFrame:
    """Return ``run``, ``step``, ``statistic``, ``value``, ``error`` of the first declared probe, of whole networks."""
    options = data.labels.filter(probe=PROBE).get_column("options").to_list()[:1]
    rows = data.frame.filter(
        pl.col("options").is_in(options), pl.col("value").is_finite(), probe=PROBE, layer=NETWORK
    ).select("run", "step", "statistic", "value")
    noisy = pl.col("statistic").str.ends_with(NOISE)
    errors = rows.filter(noisy).with_columns(pl.col("statistic").str.strip_suffix(NOISE)).rename({"value": "error"})
    return rows.filter(~noisy).join(errors, on=["run", "step", "statistic"], how="left").sort("run", "step")


def eigenvalue_chart(data: StudyData) -> Chart | None:
    """Draw the largest eigenvalues of every run over training."""
    rows = _rows(data, pl.col("statistic").is_in(list(RANKS)))
    if not len(rows):
        return None
    title = sharpness_title(data)
    series = rows.with_columns(series=pl.col("statistic").replace_strict(RANKS))
    present = [name for name in RANKS.values() if name in set(series.get_column("series"))]
    caption = (
        "Eigenvalues of the Hessian of the mean loss on the fixed text; those that have not converged are not drawn."
    )
    return training_chart(
        data, "sharpness", series, title, caption, "eigenvalue of the Hessian",
        what="the largest eigenvalues of the Hessian",
        dashes=present,
    )  # fmt: skip


def trace_chart(data: StudyData) -> Chart | None:
    """Draw the trace of the Hessian of every run over training, with its error."""
    rows = _rows(data, pl.col("statistic") == "trace")
    if not len(rows):
        return None
    title = f"The trace of the Hessian {_course(rows)}"
    bands = rows.with_columns(low=pl.col("value") - 2 * pl.col("error"), high=pl.col("value") + 2 * pl.col("error"))
    caption = "Stochastic Lanczos quadrature; shaded: two standard errors of the random part on either side."
    axis = "trace of the Hessian"
    return training_chart(data, "hessian-trace", rows, title, caption, axis, bands=bands, may_be_log=False)


def density_chart(data: StudyData) -> Chart | None:
    """Draw the spectral density at the last checkpoint of the largest run for which it was stored."""
    rows = _rows(data, pl.col("statistic").str.starts_with("density@"))
    if not len(rows):
        return None
    run = largest_run(runs_in(data, rows), data.runs).run
    rows = rows.filter(pl.col("run") == run).filter(pl.col("step") == pl.col("step").max())
    rows = rows.with_columns(edge=pl.col("statistic").str.strip_prefix("density@").cast(pl.Float64)).sort("edge")
    edges, below = rows.get_column("edge").to_numpy(), rows.get_column("value").to_numpy()
    bins = pl.DataFrame({"low": edges[:-1], "high": edges[1:], "share": np.maximum(np.diff(below), 0.0)})
    inside = float(bins.filter(pl.col("low") < 0, pl.col("high") > 0).get_column("share").sum())
    below_most, nearest = share(inside), edges[edges > 0][0]
    title = f"{below_most} of the eigenvalues of {run} are below {nearest:.1%} of the largest in size"
    figure = (
        alt.Chart(bins)
        .mark_rect()
        .encode(
            x=alt.X("low:Q", title="eigenvalue / largest absolute eigenvalue", scale=alt.Scale(nice=False)),
            x2="high:Q",
            y=alt.Y(
                "share:Q",
                title="share of eigenvalues",
                scale=alt.Scale(type="symlog", constant=LEAST_SHARE, domain=[0, 1]),
                axis=alt.Axis(values=[0, *(10.0**-k for k in range(7))], format="~g"),
            ),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip(f"{name}:Q", format=".3g") for name in ("low", "high", "share")],
        )
        .properties(height=HEIGHT)
    )
    step = rows.get_column("step")[0]
    caption = f"Stochastic Lanczos quadrature at step {step}; shares above 0 on a logarithmic axis."
    alternative = f"Histogram of the spectral density of the Hessian. {title}."
    return Chart("hessian-density", title, caption, alternative, figure)


def sharpness_title(data: StudyData) -> str:
    """Say where the largest eigenvalue goes; empty without one."""
    rows = _rows(data, pl.col("statistic") == "sharpness")
    return f"Sharpness, the largest eigenvalue of the Hessian, {_course(rows)}" if len(rows) else ""


def _rows(data: StudyData, chosen: pl.Expr) -> pl.DataFrame:
    table = data.tables[TABLE]
    return table.filter(chosen) if len(table) else table


def _course(rows: pl.DataFrame) -> str:
    groups = rows.group_by("run", maintain_order=True)
    return direction([(group["value"][0], group["value"][-1]) for _, group in groups if len(group) > 1])


COLUMNS = {
    "sharpness": "sharpness",
    "smallest_eigenvalue": "smallest eigenvalue",
    "trace": "trace",
    "filter_normalised_sharpness": "filter-normalised sharpness",
}
SHARES = {"positive_share": "positive eigenvalues", "negative_share": "negative eigenvalues"}
TERMS = Terms(
    (
        ("sharpness", "the largest eigenvalue of the Hessian of the mean loss on the fixed text, summed over tokens. "
         "It depends on the scale of the weights."),
        ("filter-normalised sharpness", "the same in units of the filters, the incoming weights of each neuron (Li et "
         "al. 2018): unchanged if one layer is multiplied and the next divided."),
        ("error", "of an eigenvalue the residual ‖Hv − λv‖; of the trace the standard error; of a share of the "
         "density the standard error and the change from half of the steps to all."),
    )
)  # fmt: skip


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw the spectra, and list those of the last checkpoints with their errors."""
    rows = data.tables[TABLE]
    if not len(rows):
        return pictures
    last = rows.filter(pl.col("step") == pl.col("step").max().over("run"))
    listed = [
        dict.fromkeys(name + suffix for name in (*COLUMNS, *SHARES) for suffix in ("", "_error"))
        | {"run": run[0], "step": group["step"][0]}
        | {row["statistic"]: row["value"] for row in group.iter_rows(named=True)}
        | {f"{row['statistic']}_error": row["error"] for row in group.iter_rows(named=True)}
        for run, group in last.group_by("run", maintain_order=True)
    ]
    specs = [text_of("run", "run", names_row=True), *numbers(whole={"step": "step"})]
    for name, group in COLUMNS.items():
        specs += numbers(group, plain={"value": name, "error": f"{name}_error"})
    for name, group in SHARES.items():
        specs += numbers(group, share={"share": name, "error": f"{name}_error"})
    return (
        *pictures,
        folded(table(TABLE, "The Hessian at the last checkpoint of each run", specs, listed)),
        linked(f"All checkpoints: {TABLE}.csv.", note=True),
    )


SECTION = ReportSection(
    anchor="curvature",
    title="Curvature",
    position=82,
    tables={TABLE: curvature_rows},
    needs={TABLE: (needs_probe(PROBE),)},
    charts=(eigenvalue_chart, trace_chart, density_chart),
    blocks=_blocks,
    finding=sharpness_title,
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
)
