"""Phases by the published rule, and change points with a test."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toposcope.analysis.change_points import MAX_POINTS
from toposcope.analysis.phases import NP_MEAN, change_point_table, phase_table
from toposcope.report.charts.change_points import change_point_chart, described
from toposcope.report.document import Block, Picture, csv, folded, say
from toposcope.report.material import Material
from toposcope.report.section import ReportSection
from toposcope.report.tables import (
    Column,
    Spec,
    feature_of,
    headline_rows,
    missing,
    number_of,
    p_value,
    share,
    table,
    text_of,
    whole,
)


def _blocks(material: Material, pictures: Sequence[Picture]) -> Iterable[Block | None]:
    """Show the published rule, how much it depends on its settings, and change points with a test."""
    rules, points = (headline_rows(material.tables[name]) for name in ("phases", "change_points"))
    rules.sort(key=lambda row: row["feature"] != str(NP_MEAN))
    largest, diminishing = "largest change", "diminishing returns"
    rule_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "largest_change", whole, group=largest),
        _steps("over settings", "largest_change_first", "largest_change_last", largest),
        number_of("step", "diminishing_returns", whole, group=diminishing),
        _steps("over settings", "diminishing_first", "diminishing_last", diminishing),
        number_of("settings", "n_settings", whole),
        number_of("that agree", "share_same", share),
    )
    point_specs = (
        feature_of(),
        text_of("run", "run", names_row=True),
        number_of("step", "step", whole),
        _steps("95% interval", "low", "high", ""),
        number_of("p", "p_smooth", p_value),
        (Column("a smooth trend explains it", True), lambda row: "yes" if row["explained"] else "no"),
    )
    phases = table("phases", "Phases by the published rule", rule_specs, rules)
    rule_note = say(
        "The published rule (moving average of 5 checkpoints, 10% of the peak, 3 in a row) always finds a step of "
        "largest change, whether or not there is a phase. “Over settings” is the range of its results over windows and "
        "thresholds. All features: ", csv("phases"), ".",
    )  # fmt: skip
    changes = table("change-points", "Change points", point_specs, points)
    changes_note = say(
        f"Change points, their number chosen by a Bayesian information criterion: {_explained(points)}."
        f"{_thinned(material)} All: ",
        csv("change_points"), ".",
    )  # fmt: skip
    return (
        *pictures,
        rule_note if phases else None,
        folded(phases, "Phases by the published rule"),
        changes_note if changes else None,
        folded(changes, "Change points"),
    )


def _steps(title: str, low: str, high: str, group: str) -> Spec:
    def write(row: Mapping[str, Any]) -> str:
        first, last = row[low], row[high]
        return "–" if missing(first) or missing(last) else f"{whole(first)} to {whole(last)}"

    return Column(title, group=group), write


def _thinned(material: Material) -> str:
    longest = max((len(trajectory.steps) for trajectory in material.trajectories), default=0)
    if longest <= MAX_POINTS:
        return ""
    return f" Of more than {MAX_POINTS} checkpoints, they are those of the means of {MAX_POINTS} blocks of neighbours."


def _explained(points: Sequence[Mapping[str, Any]]) -> str:
    smooth = sum(bool(row["explained"]) for row in points)
    return f"a smooth trend explains {smooth} of the {len(points)} shown"


def _finding(material: Material) -> str:
    """Count the change points that no smooth trend explains."""
    points = material.tables["change_points"]
    return described(points) if len(points) else ""


SECTION = ReportSection(
    anchor="phases",
    title="Phases",
    position=110,
    tables={
        "phases": lambda material: phase_table(material.trajectories),
        "change_points": lambda material: change_point_table(material.trajectories, material.progress),
    },
    charts=(change_point_chart,),
    compared_charts=(change_point_chart,),
    blocks=_blocks,
    finding=_finding,
)
