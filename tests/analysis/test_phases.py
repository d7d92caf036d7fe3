"""How far features move, where they turn, which layer moves first, and the published rule for phases."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_material import material
from named_features import by_group

from toposcope.analysis.layers import onset, onset_table
from toposcope.analysis.phases import Phases, move, move_table, phases, sensitivity
from toposcope.study.kinds import feature_named

NP, H0 = feature_named("neural_persistence np_mean"), feature_named("rips H0.total")
STEPS = np.arange(0, 2000, 100)
N = len(STEPS)


@pytest.mark.parametrize(
    ("values", "turn", "at"),
    [
        (np.linspace(1, 3, N), "", None),
        (np.exp(-STEPS / 300), "", None),
        (np.interp(STEPS, [0, 600, 1900], [1.0, 3.0, 2.0]), "peak", 600),
        (np.interp(STEPS, [0, 300, 1900], [1.0, 0.5, 2.0]), "dip", 300),
        (np.interp(STEPS, [0, 300, 1900], [1.0, 0.9, 2.0]), "", None),  # less than a fifth of the range
        (np.full(N, 2.0), "", None),
    ],
)
def test_a_turn_is_an_extreme_between_the_ends(values: np.ndarray, turn: str, at: int | None) -> None:
    moved = move(STEPS, values)
    assert moved is not None
    assert (moved.turn, moved.turn_step) == (turn, at)
    assert (moved.first, moved.last) == (values[0], values[-1])
    assert moved.change == pytest.approx(values[-1] / values[0] - 1)


def test_noise_seldom_turns() -> None:
    draws = np.random.default_rng(0).standard_normal((200, 50))
    turns = [moved.turn for draw in draws if (moved := move(np.arange(50), draw))]
    assert sum(map(bool, turns)) < 20


def test_unknown_values_are_skipped() -> None:
    values = np.array([np.nan, 1.0, np.nan, 4.0, np.nan])
    moved = move(np.arange(5), values)
    assert moved is not None
    assert (moved.first, moved.last, moved.change) == (1.0, 4.0, 3.0)
    assert move(np.arange(5), np.array([np.nan, 1.0, np.nan, np.nan, np.nan])) is None
    zero = move(np.arange(2), np.array([0.0, 1.0]))
    assert zero is not None
    assert np.isnan(zero.change)


def test_the_table_has_every_feature_of_every_run() -> None:
    found = material(3, 5).trajectories
    table = move_table(found)
    assert len(table) == sum(len(t.features) for t in found)
    assert table.filter(run="run-1", feature="rips H0.total").row(0)[2:5] == (20.0, 40.0, 1.0)
    assert not len(move_table([]))


def test_a_layer_has_left_its_first_value_when_half_of_the_way_is_gone() -> None:
    assert onset(STEPS, np.where(STEPS >= 700, 5.0, 1.0)) == (700, 4.0)
    assert onset(np.array([0, 10, 20, 30]), np.array([0.0, 1.0, 2.0, 3.0])) == (20, 3.0)
    assert onset(STEPS, np.full(N, 1.0)) is None
    assert onset(STEPS, np.full(N, np.nan)) is None
    assert onset(STEPS[:1], np.ones(1)) is None
    there_and_back = np.interp(STEPS, [0, 500, 1900], [1.0, 3.0, 1.0])
    left = onset(STEPS, there_and_back)
    assert left is not None
    assert left[0] == 300
    assert left[1] == pytest.approx(2.0, rel=0.1)


def test_one_outlier_is_not_a_departure() -> None:
    values = np.linspace(1, 2, N)
    values[2] = 50
    left = onset(STEPS, values)
    assert left == onset(STEPS, np.linspace(1, 2, N))


@given(st.floats(0.01, 100), st.floats(-5, 5), st.integers(0, 2**32 - 1))
def test_the_onset_does_not_depend_on_unit_and_origin(unit: float, origin: float, seed: int) -> None:
    values = np.cumsum(np.random.default_rng(seed).integers(-3, 4, N)).astype(float)
    one, other = onset(STEPS, values), onset(STEPS, origin + unit * values)
    assert (one is None) == (other is None)
    if one and other:
        departure = np.minimum(d := np.abs(values - values[0]), np.append(d[1:], np.inf))
        if not np.isclose(departure, departure.max() / 2).any():  # rounding decides a tie
            assert one[0] == other[0]


def test_the_layer_that_moves_first() -> None:
    trajectory = material(1, N).trajectories[0]
    late, early = np.where(STEPS >= 900, 2.0, 1.0), np.where(STEPS >= 300, 2.0, 1.0)
    layers = {
        "a": {str(NP): late}, "b": {str(NP): early}, "c": {str(NP): 1 + 1e-6 * (STEPS >= 100)},
        "d": {str(NP): np.where(STEPS >= 300, 0.5, 0.0)},
    }  # fmt: skip
    made = dataclasses.replace(trajectory, layers=by_group(layers), roles=dict.fromkeys("abcd", "mlp.in"))
    table = onset_table([made], [NP, H0])
    assert dict(table.select("layer", "step").iter_rows()) == {"a": 900, "b": 300, "c": 100, "d": 300}
    # c moves by a millionth of the others, though first; d starts at 0, so that its departure has no unit
    assert table.filter("moves").get_column("layer").to_list() == ["a", "b", "d"]
    assert table.filter("is_first").get_column("layer").to_list() == ["b", "d"]
    assert set(table.get_column("feature")) == {str(NP)}
    assert not len(onset_table([dataclasses.replace(made, layers={})], [NP]))


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
