"""Lines over training of many runs: all points are drawn, and the cursor stops at few enough of them."""

import altair as alt
import numpy as np
import polars as pl

from toposcope.charts.training import MAX_STOPS, training_lines


def sizes(n_runs: int, n_steps: int) -> tuple[int, int]:
    """Rows of the line and of the cursor's stops."""
    runs = [f"run-{i}" for i in range(n_runs)]
    rows = pl.DataFrame(
        {
            "run": np.repeat(runs, n_steps),
            "step": np.tile(np.arange(n_steps), n_runs),
            "value": np.random.default_rng(0).random(n_runs * n_steps),
        }
    )
    with alt.data_transformers.disable_max_rows():
        figure = training_lines(rows, "value", runs).to_dict()
    (line,) = (layer for layer in figure["layer"] if layer["mark"]["type"] == "line")
    (stops,) = (layer for layer in figure["layer"] if layer["mark"].get("opacity") == 0)
    data = figure["datasets"]
    whole, stopped = (data[layer.get("data", figure.get("data"))["name"]] for layer in (line, stops))
    keys = {(row["run"], row["step"], row["value"]) for row in whole}
    assert {(row["run"], row["step"], row["value"]) for row in stopped} <= keys
    assert {row["run"] for row in stopped} == set(runs)
    return len(whole), len(stopped)


def test_few_points_are_all_stops() -> None:
    assert sizes(3, 50) == (150, 150)


def test_the_cursor_of_many_runs_stops_at_some_steps() -> None:
    n_points, n_stops = sizes(60, 400)
    assert n_points == 60 * 400
    assert MAX_STOPS / 2 < n_stops <= MAX_STOPS
