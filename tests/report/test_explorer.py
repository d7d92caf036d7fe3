"""The data behind the page's explorer, and the compact columns of charts."""

import base64
import dataclasses
import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_studies import FEATURES, RUNS, N, study
from named_features import by_feature
from numpy.typing import NDArray

from toposcope.analysis.given_covariates import covariate_basis
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram
from toposcope.report.explorer import MAX_BARS, MAX_LAYER_VALUES, explorer_data
from toposcope.report.headline import HEADLINES
from toposcope.report.page import page_data, to_columns, to_json
from toposcope.report.study_data import StudyData


def unpacked(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def with_layers(material: StudyData, n_layers: int, names: list[str]) -> StudyData:
    """The study with layers whose quantities rise with the layer's number."""
    rising = np.arange(N, dtype=float)
    layers = {f"h.{i}.w": by_feature(dict.fromkeys(names, rising * (i + 1))) for i in range(n_layers)}
    runs = [dataclasses.replace(t, layers=layers) for t in material.trajectories]
    return dataclasses.replace(material, trajectories=runs)


def test_features_of_all_runs_come_back() -> None:
    material = study("clock")
    data = explorer_data(material)
    assert [run["name"] for run in data["runs"]] == list(RUNS)
    assert {feature["key"] for feature in data["features"]} == set(FEATURES)
    for t, run in zip(material.trajectories, data["runs"], strict=True):
        assert run["steps"] == t.steps.tolist()
        np.testing.assert_allclose(unpacked(run["loss"]), t.targets["validation_loss"], rtol=1e-6)
        assert np.array(list(map(unpacked, run["covariates"]))) == pytest.approx(
            covariate_basis(t.steps, t.covariates).T, abs=1e-6
        )
        for feature in data["features"]:
            wanted = {str(f): values for f, values in t.features.items()}[feature["key"]]
            np.testing.assert_allclose(unpacked(feature["values"]["network"][t.run]), wanted, rtol=1e-6)


def test_the_correlation_with_the_loss_is_said_beside_that_of_the_step() -> None:
    (h0,) = [f for f in explorer_data(study("clock"))["features"] if f["key"] == FEATURES[0]]
    raw, given = h0["notes"]["network"]
    assert raw.startswith("rho: small −0.")
    assert "The step alone: small −0." in raw
    assert given == "rho: small 0.00, middle 0.00, large 0.00, huge 0.00. Verdict: trend only."


def test_a_feature_that_never_changes_is_left_out() -> None:
    material = study("clock")
    runs = [dataclasses.replace(t, features=by_feature({"rips H0.total": np.ones(N)})) for t in material.trajectories]
    assert explorer_data(dataclasses.replace(material, trajectories=runs))["features"] == []


def test_layers_come_back_layer_by_layer_with_gaps() -> None:
    data = explorer_data(with_layers(study("clock"), 3, names=["rips H0.total", "controls std"]))
    layers = data["layers"]["small"]
    assert layers["names"] == ["h.0.w", "h.1.w", "h.2.w"]
    assert list(layers["values"]) == ["rips H0.total", "controls std"]  # the main one first
    values = unpacked(layers["values"]["controls std"]).reshape(3, N)
    np.testing.assert_allclose(values[2], 3 * np.arange(N))


def test_of_many_layers_the_main_quantities_are_left() -> None:
    n = MAX_LAYER_VALUES // (N * len(RUNS) * 2) + 1
    data = explorer_data(with_layers(study("clock"), n, names=["rips H0.total", "controls std"]))
    assert list(data["layers"]["small"]["values"]) == ["rips H0.total"]
    assert any("toposcope export" in note for note in data["notes"])


def test_of_many_runs_the_main_features_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    material = study("clock")
    every = explorer_data(material)
    monkeypatch.setattr("toposcope.report.explorer.MAX_FEATURE_VALUES", 10)
    few = explorer_data(material)
    main = {headline.key for headline in HEADLINES}
    assert [feature["key"] for feature in few["features"]] == [f["key"] for f in every["features"] if f["key"] in main]
    assert any("main features" in note for note in few["notes"])
    assert not any("main features" in note for note in every["notes"])


def test_the_longest_bars_of_a_diagram_are_there_and_lost_files_are_said() -> None:
    deaths = np.arange(1, 101, dtype=float)
    diagram = Diagram(np.column_stack([np.zeros(100), deaths]), 0)
    material = dataclasses.replace(
        study("clock"),
        labels=pl.DataFrame({"probe": ["rips"], "options": ['{"keep": true}'], "label": ["rips:keep=true"]}),
        diagrams=lambda run, step, probe: {"w": {"H0": diagram}} if probe == "rips:keep=true" else {},
    )
    points = explorer_data(material)["diagrams"]["small"][0]["w"]["H0"]
    assert points["n"] == 100
    np.testing.assert_allclose(unpacked(points["bars"]).reshape(-1, 2)[:, 1], deaths[::-1][:MAX_BARS])

    def lost(run: str, step: int, probe: str) -> dict[str, dict[str, Diagram]]:
        raise ToposcopeError("d.safetensors: missing")

    data = explorer_data(dataclasses.replace(material, diagrams=lost))
    assert data["diagrams"] == {}
    assert any("d.safetensors: missing" in note for note in data["notes"])


cells = st.none() | st.text("ab<é ", max_size=5) | st.integers(-(10**9), 10**9) | st.floats(width=32)


@given(st.lists(st.fixed_dictionaries({"a": cells, "b": st.none() | st.text("ab<é ", max_size=4)}), max_size=8))
def test_columns_hold_the_rows(rows: list[dict[str, Any]]) -> None:
    columns = json.loads(to_json(to_columns(rows)))
    for field, column in columns.items():
        for value, row in zip(column, rows, strict=True):
            wanted = row[field]
            if isinstance(wanted, float) and not math.isfinite(wanted):
                assert value is None
            elif isinstance(wanted, float):
                assert value == pytest.approx(wanted, rel=1e-5)
            else:
                assert value == wanted


def test_a_name_cannot_end_the_script() -> None:
    assert "</" not in to_json({"run": "</script><script>alert(1)</script>", "line": "\u2028"})
    assert page_data([])["explorer"] is None


def test_a_study_without_diagrams_has_no_empty_panels() -> None:
    data = explorer_data(with_layers(study("clock"), 2, names=[]))
    assert data["diagrams"] == data["layers"] == {}
