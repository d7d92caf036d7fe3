"""Charts of change points, sizes, scaling, random matrices and diagrams: what they say is what the data say."""

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from made_up_material import material
from made_up_states import with_states
from section_tools import charts_of, section_of, with_tables

from toposcope.charts.chart import Chart
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.report.charts.diagrams import (
    betti_charts,
    betti_curves,
    diagram_chart,
    state_betti_charts,
    state_diagram_chart,
)
from toposcope.report.sections.layers import random_matrix_charts, unusual
from toposcope.report.sections.phases import change_point_chart, described
from toposcope.report.sections.scaling import scaling_charts, trend
from toposcope.report.study_data import StudyData

OF_WEIGHTS = (change_point_chart, scaling_charts, random_matrix_charts, diagram_chart, betti_charts)
OF_STATES = (state_diagram_chart, state_betti_charts)


def all_charts(of: StudyData, draw: Any) -> dict[str, Chart]:
    return {name: chart for one in draw for name, chart in charts_of(one, of).items()}


TITLES = {
    "change-points": "A smooth trend does not explain 5 of 10 change points of neural persistence",
    "scaling-loss": "The final validation loss falls from size to size",
    "scaling-neural-persistence": "The final mean neural persistence falls from size to size",
    "scaling-h0-total": "The final H0 total falls from size to size",
    "scaling-h1-total": "The final H1 total falls from size to size",
    "references-neural-persistence": "By neural persistence, 36 of 41 layers end unlike every kind of random matrix",
    "references-h0": "By H0 total, 36 of 41 layers end unlike every kind of random matrix",
    "diagrams": "H0 total grows in mlp.in of block 0 of run-4, the layer that moved most",
    "betti-h0": "Components merge at larger distances by the end of run-4, relative to the weight norm at the same",
    "betti-h1": "Loops live at larger distances by the end of run-4, relative to the weight norm at the same",
}


@pytest.mark.slow
def test_a_title_says_what_is_seen() -> None:
    drawn = all_charts(material(), OF_WEIGHTS)
    assert {name: chart.title for name, chart in drawn.items()} == TITLES
    for chart in drawn.values():
        check_chart(chart)


def test_charts_of_hidden_states() -> None:
    drawn = all_charts(with_states(material(3)), OF_STATES)
    assert drawn["state-diagrams"].title.startswith("H0 total ")
    assert drawn["state-betti-h0"].title.startswith("Hidden states: components merge at ")
    for chart in drawn.values():
        check_chart(chart)


def test_change_points_lie_on_the_line_with_their_interval() -> None:
    full = material(2, 9)
    rows = rows_of_chart(charts_of(change_point_chart, full)["change-points"], "low", "high")
    assert {(row["step"], row["low"], row["high"], row["explained"]) for row in rows} == {
        (400, 266, 490, True), (200, 160, 290, False),
    }  # fmt: skip
    line = full.trajectories[0].features
    values = next(v for f, v in line.items() if f.statistic == "np_mean")
    assert {row["value"] for row in rows if row["run"] == "run-0"} == {values[4], values[2]}
    smooth = with_tables(full, {"change_points": full.tables["change_points"].with_columns(explained=pl.lit(True))})
    title = charts_of(change_point_chart, smooth)["change-points"].title
    assert title == "A smooth trend explains all of 4 change points of neural persistence"


def test_the_power_law_passes_through_its_own_values() -> None:
    rows = rows_of_chart(charts_of(scaling_charts, material(3))["scaling-loss"], "parameters", "value")
    fitted = [row for row in rows if "run" not in row]
    assert [(row["parameters"], pytest.approx(row["value"])) for row in fitted] == [
        (n, 5 * n**-0.1) for n in (1000.0, 4000.0)
    ]
    assert {row["run"]: row["parameters"] for row in rows if "run" in row} == {
        "run-0": 1000, "run-1": 2000, "run-2": 4000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rho", "words"),
    [
        (1.0, "rises from size to size"),
        (-0.95, "falls with size, with exceptions"),
        (-0.5, "has no steady trend with size"),
        (float("nan"), "has no steady trend with size"),
    ],
)
def test_a_title_names_a_direction_only_where_there_is_one(rho: float, words: str) -> None:
    assert trend({"rho": rho}) == words


def test_lost_diagrams_are_no_obstacle() -> None:
    def lost(run: str, step: int, probe: str) -> Any:
        raise ToposcopeError("gone")

    torn = dataclasses.replace(material(2, 8), diagrams=lost)
    assert not all_charts(torn, (diagram_chart, betti_charts))


def test_a_large_diagram_is_cut_to_its_longest_bars_and_says_so() -> None:
    full = material(1, 4)
    deaths = np.arange(1.0, 1001.0)

    def read(run: str, step: int, probe: str) -> Any:
        pairs = np.column_stack([np.zeros(1000), deaths])
        return {layer: {"H0": Diagram(pairs, 0)} for layer in full.trajectories[0].roles}

    chart = charts_of(diagram_chart, dataclasses.replace(full, diagrams=read))["diagrams"]
    rows = [row for row in rows_of_chart(chart, "birth", "death") if row["dimension"] == "H0"]
    by_step = {row["checkpoint"] for row in rows}
    assert len(rows) == 300 * len(by_step)
    assert min(row["death"] for row in rows) == 701
    assert "300 longest" in chart.caption


def test_betti_curves_count_what_is_alive() -> None:
    bars = Diagram(np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]), 0)
    curves = betti_curves({0: {"a": {"H0": bars}}, 5: {"a": {"H0": bars}}}, "H0", {"a": {0: 1.0, 5: 2.0}})
    assert curves.counts.shape == (48, 2)
    assert curves.counts[0].tolist() == [3, 3]
    assert curves.counts[-1, 1] <= curves.counts[-1, 0]


def test_the_first_layer_to_move_is_in_the_table_and_in_the_headline() -> None:
    full = material(2, 11)
    first, second = full.trajectories
    table = pl.DataFrame(
        [
            (run, "neural_persistence np_mean", layer, role, step, 1.0, True, step == 100)
            for run, steps in ((first.run, (100, 300, 100)), (second.run, (100, 300, 500)))
            for (layer, role), step in zip((("a", "head"), ("b", "mlp.in"), ("c", "mlp.in")), steps, strict=True)
        ],
        schema=["run", "feature", "layer", "role", "step", "departure", "moves", "is_first"], orient="row",
    )  # fmt: skip
    made = with_tables(full, {"layer_onsets": table})
    section = section_of("layers", made)
    assert "('Mean neural persistence', 'run-0', 'a, c', '100', '300', '3')" in str(section)
    assert "('Mean neural persistence', 'run-1', 'a', '100', '500', '3')" in str(section)
    from toposcope.report.sections.layers import SECTION

    assert SECTION.finding(made) == "By neural persistence, head is among the first layers to move in all 2 runs"
    one = with_tables(full, {"layer_onsets": table.filter(run="run-1")})
    assert SECTION.finding(one) == "By neural persistence, head moves first in the run"


def test_a_layer_without_a_known_distance_is_not_counted_as_unusual() -> None:
    z = {"a": (9.0, float("nan")), "b": (float("nan"), None), "c": (9.0, 1.0), "d": (-4.0, 5.0)}
    rows = pl.DataFrame([("run", layer, value) for layer, values in z.items() for value in values],
        schema={"run": pl.String, "layer": pl.String, "z_last": pl.Float64}, orient="row")  # fmt: skip
    assert unusual(rows) == "2 of 3 layers end unlike every kind of random matrix"
    assert unusual(rows.filter(layer="b")) == "no layer can be compared with random matrices at the end"


@pytest.mark.parametrize("n_known", [0, 1])
def test_loops_known_at_too_few_checkpoints_are_not_called_the_same(n_known: int) -> None:
    full = material(1, 5)
    none = Diagram(np.empty((0, 2)), 1)

    def read(run: str, step: int, probe: str) -> Any:
        loops = Diagram(np.array([[0.5, 2.0]]), 1) if step < 100 * n_known else none
        return {x: {"H0": Diagram(np.array([[0.0, 1.0]]), 0), "H1": loops} for x in full.trajectories[0].roles}

    drawn = charts_of(betti_charts, dataclasses.replace(full, diagrams=read))
    titles = {name: chart.title for name, chart in drawn.items() if name == "betti-h1"}
    assert titles == ({"betti-h1": "Loops live at one of 5 checkpoints of run-0"} if n_known else {})
    assert "betti-h0" in drawn


@pytest.mark.parametrize(("explained", "words"), [(True, "explains"), (False, "does not explain")])
def test_one_change_point_is_singular(explained: bool, words: str) -> None:
    assert described(pl.DataFrame({"explained": [explained]})) == f"A smooth trend {words} the one change point"


@pytest.mark.parametrize("role", ["other", ""])
def test_a_layer_without_a_role_is_named_itself(role: str) -> None:
    row = ("run-0", "neural_persistence np_mean", "h.1.w", role, 100, 1.0, True, True)
    columns = ["run", "feature", "layer", "role", "step", "departure", "moves", "is_first"]
    made = with_tables(material(1, 5), {"layer_onsets": pl.DataFrame([row], schema=columns, orient="row")})
    from toposcope.report.sections.layers import SECTION

    assert SECTION.finding(made) == "By neural persistence, h.1.w moves first in the run"
