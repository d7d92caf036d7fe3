"""The published rule for phases, and the chart of change points."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chart_checks import rows_of_chart
from hypothesis import given
from hypothesis import strategies as st
from made_up_material import material
from section_tools import charts_of, with_tables

from toposcope_experiments.phases.published_rule import Phases, phases, sensitivity
from toposcope_experiments.phases.section import change_point_chart, described


def by_hand(steps: list[int], values: list[float], window: int, share: float, consecutive: int) -> Phases:
    means = [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
    change = [abs(b - a) for a, b in pairwise(means)]
    peak = change.index(max(change))
    small = [c < share * change[peak] for c in change]
    rows = [i for i in range(len(change) - consecutive + 1) if all(small[i : i + consecutive])]
    return Phases(steps[peak + window // 2], steps[rows[0] + window // 2] if rows else None)


@pytest.mark.reference
@pytest.mark.parametrize("size", ["tiny-3k", "med-21k"])
def test_published_phases(published_study: Path, size: str) -> None:
    rows = json.loads((published_study / "features.json").read_bytes())[size]
    expected = json.loads((published_study / "analysis.json").read_bytes())["transitions"][size]
    steps = np.array([r["step"] for r in rows])
    values = np.array([r["neural_persistence_mean"] for r in rows])
    assert phases(steps, values) == Phases(expected["max_change_step"], expected["diminishing_step"])
    assert sensitivity(steps, values).share_same < 0.5


@given(
    st.lists(st.integers(-1000, 1000), min_size=12, max_size=60).filter(lambda v: len(set(v)) > 1),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([2, 3, 4]),
)
def test_the_rule_by_hand(numbers: list[int], window: int, consecutive: int) -> None:
    values = [window * float(v) for v in numbers]  # exact means, so that ties are ties
    steps = list(range(0, 10 * len(values), 10))
    expected = by_hand(steps, values, window, 0.1, consecutive)
    change = np.abs(np.diff(np.convolve(values, np.ones(window), mode="valid")))
    if change.max() > 0 and np.sum(change > 0.999 * change.max()) == 1:
        assert phases(np.array(steps), np.array(values), window, 0.1, consecutive) == expected


def test_the_values_are_smoothed_and_not_their_changes() -> None:
    """A zigzag has large changes and small ones once smoothed."""
    values = np.where(np.arange(30) % 2, 1.0, -1.0) + np.where(np.arange(30) < 20, 0.0, 3.0)
    found = phases(np.arange(30), values)
    assert found.largest_change in range(17, 22)


def test_a_single_jump_is_found_within_the_window() -> None:
    steps = np.arange(0, 3000, 100)
    found = phases(steps, np.where(steps < 1000, 0.0, 1.0))
    assert found.largest_change is not None
    assert abs(found.largest_change - 1000) <= 300  # the moving average spreads the jump over its window
    assert found.diminishing_returns == 200  # nothing changes before the jump either: the rule does not look after it


@pytest.mark.parametrize("values", [np.full(20, 0.1), np.arange(4.0), np.empty(0), np.ones(1), np.linspace(0, 1, 30)])
def test_no_diminishing_returns_where_there_are_none(values: np.ndarray) -> None:
    assert phases(np.arange(len(values)), values).diminishing_returns is None
    assert sensitivity(np.arange(len(values)), values).n_settings == 45


def test_a_constant_has_no_phase_at_any_setting() -> None:
    found = sensitivity(np.arange(20), np.full(20, 0.1))
    assert (found.largest_change_first, found.diminishing_last, found.share_same) == (None, None, 1.0)


def test_the_range_over_settings_holds_the_published_one() -> None:
    steps = np.arange(0, 5100, 100)
    values = 1 - np.exp(-steps / 700) + 0.01 * np.sin(steps / 90)
    found, rule = sensitivity(steps, values), phases(steps, values)
    assert rule.largest_change is not None
    assert rule.diminishing_returns is not None
    assert found.largest_change_first <= rule.largest_change <= found.largest_change_last  # type: ignore[operator]
    assert found.diminishing_first <= rule.diminishing_returns <= found.diminishing_last  # type: ignore[operator]
    assert 1 / 45 <= found.share_same < 1


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


@pytest.mark.parametrize(("explained", "words"), [(True, "explains"), (False, "does not explain")])
def test_one_change_point_is_singular(explained: bool, words: str) -> None:
    assert described(pl.DataFrame({"explained": [explained]})) == f"A smooth trend {words} the one change point"
