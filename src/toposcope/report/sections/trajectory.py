"""The path of each run through its weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.weight_paths import PROBE, path_tables, weight_paths
from toposcope.charts.chart import Chart
from toposcope.charts.theme import MUTED
from toposcope.charts.training import is_log_spaced
from toposcope.report.charts.series import choose_runs, runs_of
from toposcope.report.document import Block, Picture, Terms, folded, linked
from toposcope.report.formats import plain, share
from toposcope.report.not_made import needs_checkpoints, needs_probe
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import number_of, numbers, table, text_of

SUMMARIES, POINTS = "weight_paths", "weight_path_points"  # names of the tables of `toposcope.analysis.weight_paths`
MAX_RUNS = 4


Titles = tuple[str, str, str]  # of the axes of a panel, and the panel's own


def component_chart(data: StudyData) -> Chart | None:
    """Draw each path in its first two principal components, with the shares of random walks next to its own."""
    summaries = summaries_of(data)
    if not summaries:
        return None
    titles = {run: (_component(row, 1), _component(row, 2), run) for run, row in summaries.items()}
    points = data.tables[POINTS].select("run", "step", x="pc1", y="pc2")
    figure, left_out = path_panels(data, points, titles)
    title = component_title(list(summaries.values()))
    caption = (
        "Checkpoints in the units of the weights; on the axes the share of the variance, and that in a random walk "
        f"with steps of the same lengths.{left_out}"
    )
    alternative = f"Path of checkpoints in the plane of two principal components, one panel per run. {title}."
    return Chart("weight-paths", title, caption, alternative, figure)


def summaries_of(data: StudyData) -> dict[str, dict[str, Any]]:
    """Return the summary of the path of each run that has one."""
    return {row["run"]: row for row in data.tables[SUMMARIES].to_dicts()}


def component_title(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the first component holds more of the variance than in random walks."""
    if len(rows) == 1:
        own, walk = share(rows[0]["pc1_share"]), share(rows[0]["pc1_walk_same_steps"])
        return f"PC1 holds {own} of the variance of the path, and {walk} of that of a random walk of the same steps"
    above = sum(row["pc1_share"] > row["pc1_walk_same_steps"] for row in rows)
    return f"PC1 holds more of the variance than in a random walk of the same steps in {runs_of(above, len(rows))}"


def _component(row: Mapping[str, Any], k: int) -> str:
    return f"PC{k}: {share(row[f'pc{k}_share'])} (random walk: {share(row[f'pc{k}_walk_same_steps'])})"


def path_panels(data: StudyData, points: pl.DataFrame, titles: Mapping[str, Titles]) -> tuple[alt.ConcatChart, str]:
    """Return a panel for each run with titles, and what the caption says of runs left out.

    Of each checkpoint, `points` has ``run``, ``step``, ``x`` and ``y``.
    """
    shown, left_out = choose_runs([t for t in data.trajectories if t.run in titles], data.runs, MAX_RUNS)
    panels = [_path_panel(points.filter(pl.col("run") == t.run), *titles[t.run]) for t in shown]
    return alt.concat(*panels, columns=2).resolve_scale(color="independent"), left_out


def _path_panel(rows: pl.DataFrame, x_title: str, y_title: str, title: str = "") -> alt.LayerChart:
    """Draw one path."""
    points = rows.select("x", "y").to_numpy()
    low, high = points.min(axis=0), points.max(axis=0)
    half = (0.5 + 0.12) * (float(np.max(high - low)) or 1.0)
    middle = (low + high) / 2
    x, y = (
        encoding(f"{name}:Q", title=text, scale=alt.Scale(domain=[centre - half, centre + half], nice=False))
        for encoding, name, text, centre in zip(
            (alt.X, alt.Y), ("x", "y"), (x_title, y_title), middle.tolist(), strict=True
        )
    )
    log = is_log_spaced(rows.get_column("step").to_numpy())
    colour = alt.Color(
        "step:Q", title="training step", scale=alt.Scale(type="symlog" if log else "linear", range="ramp"),
        legend=alt.Legend(format="~s", gradientLength=160),
    )  # fmt: skip
    base = alt.Chart(rows.with_columns(place=pl.int_range(pl.len())))
    line = base.mark_line(color=MUTED, strokeWidth=1).encode(x=x, y=y, order="place:Q")
    marks = base.mark_point(filled=True, size=45, opacity=1, stroke=MUTED, strokeWidth=0.6).encode(
        x=x, y=y, color=colour, tooltip=["run:N", alt.Tooltip("step:Q", format=",d"), "x:Q", "y:Q"]
    )
    # On the side that the path does not leave to.
    labels = [
        alt.Chart(rows[[i]].with_columns(label=pl.format("step {}", "step")))
        .mark_text(dy=14 if points[i, 1] < points[:, 1].mean() else -13)
        .encode(x=x, y=y, text="label:N")
        for i in (0, -1)
    ]
    panel = alt.LayerChart(layer=[line, marks, *labels]).properties(width=250, height=250)
    return panel.properties(title=title) if title else panel


TERMS = Terms(
    (
        ("path", "the checkpoints of a run as points: all entries of the analysed layers in one long vector. All "
         "numbers follow from the exact distances between them."),
        ("random walk", "shares of the principal components of independent steps of the same lengths, in infinitely "
         "many dimensions (Antognini & Sohl-Dickstein 2018); of n equal steps, as 1 / (4 sin² (πk / 2n)). 61% in PC1 "
         "is no structure."),
    )
)  # fmt: skip


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Draw the paths, and list their lengths and shares."""
    specs = (
        text_of("run", "run", names_row=True),
        *numbers(whole={"checkpoints": "n_checkpoints"}),
        *numbers(plain={"length": "path_length", "from the first": "displacement"}),
        number_of("ratio", "straightness", lambda value: plain(value, 3)),
        *(
            number_of(title, f"pc{k}_{name}", share, group=f"variance in PC{k}")
            for k in (1, 2)
            for title, name in (("share", "share"), ("walk", "walk_same_steps"), ("equal steps", "walk"))
        ),
    )
    rows = list(summaries_of(data).values())
    return (
        *pictures,
        folded(table(SUMMARIES, "The path of each run through its weights", specs, rows)),
        linked(f"All coordinates: {POINTS}.csv.", note=True) if rows else None,
    )


SECTION = ReportSection(
    anchor="trajectory",
    title="Trajectory",
    position=80,
    tables={
        SUMMARIES: lambda data: path_tables(weight_paths(data.frame, data.labels))[0],
        POINTS: lambda data: path_tables(weight_paths(data.frame, data.labels))[1],
    },
    charts=(component_chart,),
    blocks=_blocks,
    finding=lambda data: component_title([*rows.values()]) if (rows := summaries_of(data)) else "",
    methods=lambda data: [TERMS] if PROBE in data.labels.get_column("probe") else [],
    needs=dict.fromkeys((SUMMARIES, POINTS), (needs_probe(PROBE), needs_checkpoints(3))),
)
