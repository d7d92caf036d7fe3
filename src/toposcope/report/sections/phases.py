"""Phases by the published rule, and change points with a test."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from toposcope.analysis.change_points import MAX_POINTS
from toposcope.analysis.efficiency import NP_MEAN
from toposcope.analysis.phases import change_point_table, phase_table
from toposcope.charts.chart import Chart
from toposcope.charts.training import run_colour, training_lines
from toposcope.report import formats
from toposcope.report.charts.series import faults_of, rows_of, run_names
from toposcope.report.document import Block, Picture, folded, linked
from toposcope.report.headline import NP
from toposcope.report.not_made import needs_checkpoints, needs_features
from toposcope.report.section import ReportSection
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Column, Spec, feature_of, headline_rows, number_of, numbers, table, text_of


def change_point_chart(data: StudyData) -> Chart | None:
    """Draw where the lines of mean neural persistence break, with the interval of each place."""
    points = data.tables["change_points"].filter(feature=NP.key)
    lines = {t.run: (t.steps, t.features[NP.feature]) for t in data.trajectories if NP.feature in t.features}
    points = points.filter(pl.col("run").is_in(list(lines)))
    if not len(points):
        return None
    known = {run: (steps[np.isfinite(values)], values[np.isfinite(values)]) for run, (steps, values) in lines.items()}
    values = [float(np.interp(step, *known[run])) for run, step in points.select("run", "step").iter_rows()]
    points = points.select("run", "step", "low", "high", "explained").with_columns(value=pl.Series(values))
    rows = rows_of(data.trajectories, lambda t: t.features.get(NP.feature))
    tooltip = ["run:N", *(f"{name}:Q" for name in ("step", "low", "high"))]
    base = alt.Chart(points).encode(y=alt.Y("value:Q"), color=run_colour(run_names(data)), tooltip=tooltip)
    marks = base.encode(x=alt.X("step:Q"))
    figure: alt.LayerChart = training_lines(rows, NP.axis, run_names(data), faults=faults_of(data))
    for layer in (
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        marks.transform_filter("datum.explained").mark_point(filled=False, size=90, strokeWidth=2),
        marks.transform_filter("!datum.explained").mark_point(filled=True, size=110, opacity=1),
    ):
        figure += layer
    title = f"{described(points)} of neural persistence"
    caption = "Points: change points, hollow where a smooth trend explains them; bars: 95% interval of the place."
    text = f"Line chart of neural persistence with its change points. {title}."
    return Chart("change-points", title, caption, text, figure)


def described(points: pl.DataFrame) -> str:
    """Count the change points that no smooth trend explains."""
    beyond = int((~points.get_column("explained")).sum())
    if len(points) == 1:
        return f"A smooth trend {'does not explain' if beyond else 'explains'} the one change point"
    which = f"{len(points)} change points"
    return (
        f"A smooth trend does not explain {beyond} of {which}" if beyond else f"A smooth trend explains all of {which}"
    )


def _blocks(data: StudyData, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the published rule, how much it depends on its settings, and change points with a test."""
    rules, points = (headline_rows(data.tables[name]) for name in ("phases", "change_points"))
    rules.sort(key=lambda row: row["feature"] != str(NP_MEAN))
    largest, diminishing = "largest change", "diminishing returns"
    rule_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "largest_change", formats.whole, group=largest),
        _steps("over settings", "largest_change_first", "largest_change_last", largest),
        number_of("step", "diminishing_returns", formats.whole, group=diminishing),
        _steps("over settings", "diminishing_first", "diminishing_last", diminishing),
        *numbers(whole={"settings": "n_settings"}, share={"that agree": "share_same"}),
    )
    point_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "step", formats.whole),
        _steps("95% interval", "low", "high", ""),
        number_of("p-value", "p_smooth", formats.p_value),
        (Column("a smooth trend explains it", True), lambda row: "yes" if row["explained"] else "no"),
    )
    phases = table("phases", "Phases by the published rule", rule_specs, rules)
    rule_note = linked(
        "The published rule (moving average of 5 checkpoints, 10% of the peak, 3 in a row) always finds a step of "
        "largest change, whether or not there is a phase. “Over settings” is the range of its results over windows and "
        "thresholds. All features: phases.csv."
    )
    changes = table("change-points", "Change points", point_specs, points)
    smooth = sum(bool(row["explained"]) for row in points)
    changes_note = linked(
        "Change points, their number chosen by a Bayesian information criterion: a smooth trend explains "
        f"{smooth} of the {len(points)} shown.{_thinned(data)} All: change_points.csv."
    )
    return (
        *pictures,
        rule_note if phases else None,
        folded(phases),
        changes_note if changes else None,
        folded(changes),
    )


def _steps(title: str, low: str, high: str, group: str) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        first, last = row[low], row[high]
        return (
            "–"
            if formats.missing(first) or formats.missing(last)
            else f"{formats.whole(first)} to {formats.whole(last)}"
        )

    return Column(title, group=group), write


def _thinned(data: StudyData) -> str:
    longest = max((len(trajectory.steps) for trajectory in data.trajectories), default=0)
    if longest <= MAX_POINTS:
        return ""
    return f" Of more than {MAX_POINTS} checkpoints, they are those of the means of {MAX_POINTS} blocks of neighbours."


SECTION = ReportSection(
    anchor="phases",
    title="Phases",
    position=110,
    tables={
        "phases": lambda data: phase_table(data.trajectories),
        "change_points": lambda data: change_point_table(data.trajectories, data.progress),
    },
    charts=(change_point_chart,),
    blocks=_blocks,
    finding=lambda data: described(points) if len(points := data.tables["change_points"]) else "",
    needs={"phases": (needs_features, needs_checkpoints(2))},
)
