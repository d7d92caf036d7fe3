"""What holds for every chart of a study's page: drawn of any study that has its data, left out of others."""

import dataclasses
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from made_studies import study as study_by_rule
from made_up_material import material
from made_up_states import with_states
from section_tools import CORE, charts_of, with_tables

from toposcope.charts.chart import Chart
from toposcope.report.charts.step_taken_out import step_taken_out
from toposcope.report.study_data import StudyData

DRAW: dict[str, Callable[[StudyData], Any]] = {
    f"{section.anchor}-{i}": draw for section in CORE for i, draw in enumerate(section.charts)
} | {"step-taken-out": step_taken_out}
OF_STATES = ("representations",)
HOSTILE = "</script>'\"datum[run] || {{x}}"


def drawn(of: StudyData) -> dict[str, Chart]:
    return {name: chart for draw in DRAW.values() for name, chart in charts_of(draw, of).items()}


@pytest.mark.parametrize(
    ("runs", "checkpoints"),
    [(1, 1), (2, 5), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((1, 2), (60, 3)))],
)
def test_small_and_large_studies_are_drawn(runs: int, checkpoints: int) -> None:
    found = drawn(material(runs, checkpoints))
    assert {"losses", "neural-persistence", "h0-total", "h1-total"} <= found.keys()
    for chart in found.values():
        check_chart(chart)
    if checkpoints == 1:
        assert found["h0-total"].title == "H0 total is known at one checkpoint at most"
    else:
        assert len({row["run"] for row in rows_of_chart(found["h0-total"], "run", "value")}) == runs


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "checkpoints"), [(1, 1), (1, 2), (8, 10)])
def test_small_and_large_studies_of_states_are_drawn(runs: int, checkpoints: int) -> None:
    for chart in drawn(with_states(material(runs, checkpoints))).values():
        check_chart(chart)


def bare(of: StudyData) -> StudyData:
    """The study without a series, and with empty tables."""
    nothing: dict[str, Any] = {"features": {}, "targets": {}, "groups": {}, "layers": {}, "roles": {}}
    runs = [dataclasses.replace(t, **nothing) for t in of.trajectories]
    empty = {name: table.clear() for name, table in of.tables.items()}
    return dataclasses.replace(with_tables(of, empty), trajectories=runs, log=of.log.clear())


@pytest.mark.parametrize("name", DRAW)
def test_without_its_data_a_chart_is_left_out(name: str) -> None:
    for of in (bare(material(1, 3)), dataclasses.replace(bare(material(1, 3)), trajectories=[])):
        assert not charts_of(DRAW[name], of)
    if name.startswith(("association", "step-taken-out")):
        assert not charts_of(DRAW[name], study_by_rule("nothing", ()))
    if name.startswith(OF_STATES):
        assert not charts_of(DRAW[name], material(2))


@pytest.mark.slow
def test_equal_data_give_equal_bytes_and_hostile_names_stay_data() -> None:
    def renamed(of: StudyData) -> StudyData:
        names = {
            part: getattr(of, part).with_columns(run=pl.lit(HOSTILE)) for part in ("log", "runs", "frame", "findings")
        }
        tables = {
            name: table.with_columns(run=pl.lit(HOSTILE)) if "run" in table.columns else table
            for name, table in of.tables.items()
        }
        runs = [dataclasses.replace(t, run=HOSTILE) for t in of.trajectories]
        return dataclasses.replace(of, trajectories=runs, tables=tables, **names)

    first, second = (drawn(renamed(with_states(material(1, 6)))) for _ in range(2))
    assert first.keys() == second.keys()
    for name, chart in first.items():
        svg = chart.render("svg")
        assert svg == second[name].render("svg")
        assert b"<svg" in svg
        assert b"<script" not in svg
        runs = {row["run"] for row in rows_of_chart(chart, "run")}
        assert runs <= {HOSTILE}, name
