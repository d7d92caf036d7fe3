"""Heat maps of layers, groups of layers, and which layer moves first."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from chart_checks import check_chart, encodings, rows_of_chart
from made_up_material import material
from named_features import by_group
from section_tools import charts_of

from toposcope.report.charts.series import short_names
from toposcope.report.sections.layers import layer_group_charts, layer_heat_maps, step_heat_map
from toposcope.report.study_data import StudyData


def with_layers(of: StudyData, layers: dict[str, dict[str, np.ndarray]], roles: dict[str, str]) -> StudyData:
    """The first run, with other layers."""
    first = dataclasses.replace(of.trajectories[0], layers=by_group(layers), roles=roles)
    return dataclasses.replace(of, trajectories=[first])


def test_a_heat_map_says_which_layer_moved_most() -> None:
    drawn = charts_of(layer_heat_maps, material())
    titles = {name: chart.title for name, chart in drawn.items()}
    assert titles == {
        "layers-neural-persistence": "Mean neural persistence: mlp.out of block 1 has moved most by the end of run-4",
        "layers-h0": "H0 total / weight norm: mlp.in of block 0 has moved most by the end of run-4",
    }
    for chart in drawn.values():
        check_chart(chart)


def test_cells_hold_the_change_since_the_first_checkpoint() -> None:
    rows = rows_of_chart(charts_of(layer_heat_maps, material(1, 11))["layers-h0"], "layer", "value")
    at = {(row["layer"], row["step"]): row["value"] for row in rows}
    assert at["0 mlp.in", 1000] == pytest.approx(10)
    assert at["0 mlp.out", 1000] == pytest.approx(0)
    assert len(at) == len(rows) == 5 * 11


def test_signed_changes_have_zero_in_the_middle_and_steps_equal_columns() -> None:
    found = encodings(charts_of(layer_heat_maps, material(1, 5))["layers-neural-persistence"])
    (colour,) = found["color"]
    assert colour["scale"]["domainMid"] == 0
    low, high = colour["scale"]["domain"]
    assert low == -high
    assert {x["type"] for x in found["x"]} == {"ordinal"}


def test_undefined_cells_are_marked() -> None:
    values = np.array([1.0, 2.0, np.nan, np.inf, 3.0])
    made = with_layers(material(1, 5), {"a": {"neural_persistence np_mean": values}}, {"a": "other"})
    chart = charts_of(layer_heat_maps, made)["layers-neural-persistence"]
    rows = rows_of_chart(chart, "layer", "value")
    assert [row["value"] for row in rows] == [0, 1, None, None, 2]
    check_chart(chart)
    svg = chart.render("svg").decode()
    assert svg.count("×</text>") == 2
    assert "×</text>" not in charts_of(layer_heat_maps, material(1, 5))["layers-h0"].render("svg").decode()


def test_a_sequential_map_has_no_middle() -> None:
    rows = pl.DataFrame({"layer": ["a", "a"], "step": [0, 1], "value": [0.0, 0.0]})
    for signed in (True, False):
        spec = step_heat_map(rows, "layer", ["a"], "x", signed=signed).to_dict()
        assert ("domainMid" in str(spec)) == signed


def test_a_wide_and_deep_model_is_thinned_and_says_so() -> None:
    n = 150
    layers = {f"h.{i}.w": {"neural_persistence np_mean": np.linspace(0, i, n)} for i in range(300)}
    made = with_layers(material(1, n), layers, dict.fromkeys(layers, "mlp.in"))
    chart = charts_of(layer_heat_maps, made)["layers-neural-persistence"]
    assert "100 of 300 layers, 60 of 150 checkpoints" in chart.caption
    assert chart.title.startswith("Mean neural persistence: mlp.in of block 299 has")
    rows = rows_of_chart(chart, "layer", "value")
    assert len(rows) == 100 * 60
    assert {"0 mlp.in", "299 mlp.in"} <= {row["layer"] for row in rows}


def test_without_layers_there_is_no_chart() -> None:
    bare = dataclasses.replace(material(1, 5).trajectories[0], layers={}, groups={})
    none = dataclasses.replace(material(1, 5), trajectories=[bare])
    assert not charts_of(layer_heat_maps, none)
    assert not charts_of(layer_group_charts, none)
    assert not charts_of(layer_heat_maps, material(1, 1))


def test_groups_of_layers_are_compared_at_the_end() -> None:
    drawn = charts_of(layer_group_charts, material())
    assert [chart.title for chart in drawn.values()] == [
        "The neural persistence of attention layers ends above that of MLP layers in all 5 runs",
        "The growth of H0 total of attention layers ends above that of MLP layers in all 5 runs",
        "The neural persistence of early layers ends above that of late layers in all 5 runs",
        "The growth of H0 total of early layers ends above that of late layers in all 5 runs",
    ]
    for chart in drawn.values():
        check_chart(chart)
    rows = rows_of_chart(drawn["groups-attention-mlp-h0"], "series", "value")
    assert {row["value"] for row in rows if row["step"] == 0} == {1.0}
    rising, level = np.linspace(0.3, 0.5, 5), np.full(5, 0.3)
    groups = {"attention": {"neural_persistence np_mean": level}, "mlp": {"neural_persistence np_mean": rising}}
    one = dataclasses.replace(material(1, 5).trajectories[0], groups=by_group(groups))
    (only,) = charts_of(layer_group_charts, dataclasses.replace(material(1, 5), trajectories=[one])).values()
    assert only.title == "The neural persistence of MLP layers ends above that of attention layers in run-0"


def test_layers_are_named_by_block_and_role() -> None:
    names = {"h.0.a": "attn.qkv", "h.11.b": "mlp.in", "lm_head": "head", "x": "other", "y": "other"}
    assert short_names(list(names), names) == ["0 attn.qkv", "11 mlp.in", "head", "x", "y"]
    long = {f"encoder.h.0.a_very_long_name.{i}": "other" for i in range(2)}
    assert len(set(short_names(list(long), long))) == 2


def test_layers_that_do_not_move_and_groups_that_end_level_are_called_so() -> None:
    level = np.full(5, 0.3)
    made = with_layers(material(1, 5), {"a": {"neural_persistence np_mean": level}}, {"a": "mlp.in"})
    chart = charts_of(layer_heat_maps, made)["layers-neural-persistence"]
    assert chart.title == "Mean neural persistence: no layer has moved by the end of run-0"
    groups = {name: {"neural_persistence np_mean": level} for name in ("attention", "mlp")}
    one = dataclasses.replace(material(1, 5).trajectories[0], groups=by_group(groups))
    (only,) = charts_of(layer_group_charts, dataclasses.replace(material(1, 5), trajectories=[one])).values()
    assert only.title == "The neural persistence of attention layers ends equal to that of MLP layers in run-0"
