"""The noise of a score at the end of a run is recovered, whatever its trend."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.logs.columns import ACCURACY
from toposcope_downstream.evaluations import COLUMNS, Evaluations, Target
from toposcope_downstream.ladder import metric_noise, spread_about_line


def evaluations_of(rows: list[dict[str, object]]) -> Evaluations:
    shared = {"recipe": "mix", "task": "piqa", "metric": "acc", "role": "score", "N": 1e6, "n": 100}
    table = pl.DataFrame([{**dict.fromkeys(COLUMNS), **shared, **row} for row in rows], schema=COLUMNS)
    return Evaluations(table, {"piqa": Target("piqa", ACCURACY, 0.5, 100)})


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=9),
    st.floats(-1, 1),
    st.floats(-2, 2),
    st.floats(0.1, 1e9),
)
@examples(100)
def test_it_is_that_of_least_squares_and_no_line_changes_it(
    values: list[float], level: float, slope: float, scale: float
) -> None:
    D, y = np.arange(1.0, len(values) + 1), np.array(values)
    last = min(len(y), 5)
    line = np.polynomial.Polynomial.fit(D[-last:], y[-last:], 1)
    expected = np.sqrt(((y[-last:] - line(D[-last:])) ** 2).sum() / (last - 2))
    assert spread_about_line(D, y) == pytest.approx(expected, abs=1e-9)
    assert spread_about_line(scale * D, y + level + slope * D) == pytest.approx(expected, abs=1e-9)


def test_noise_is_recovered() -> None:
    rng = np.random.default_rng(0)
    D = np.arange(1.0, 6.0)
    spreads = [spread_about_line(D, 0.4 + 0.05 * D + 0.01 * rng.standard_normal(5)) for _ in range(4000)]
    assert np.sqrt(np.mean(np.square(spreads))) == pytest.approx(0.01, rel=0.03)


def test_too_few_values_and_gaps() -> None:
    assert np.isnan(spread_about_line(np.arange(3.0), np.array([0.1, 0.2, 0.1])))
    D, values = np.arange(7.0), np.array([9.0, 0.1, np.nan, 0.3, np.nan, 0.2, 0.4])
    assert spread_about_line(D, values, 4) == spread_about_line(D[[1, 3, 5, 6]], values[[1, 3, 5, 6]])


def test_each_run_and_the_spread_between_seeds() -> None:
    rng = np.random.default_rng(1)
    scores = {(seed, step): 0.6 + 0.01 * seed + 0.02 * rng.standard_normal() for seed in range(3) for step in range(8)}
    rows: list[dict[str, object]] = [
        {"run": f"a{seed}", "seed": str(seed), "step": step, "D": 10.0 * step, "value": value, "standard_error": 0.05}
        for (seed, step), value in scores.items()
    ]
    rows.append({"run": "b", "N": 2e6, "step": 1, "D": 70.0, "value": 0.7})
    noise = metric_noise(evaluations_of(rows), "piqa")
    assert noise["run"].to_list() == ["a0", "a1", "a2", "b"]
    assert noise["last"].to_list() == [5, 5, 5, 1]
    means = [np.mean([scores[seed, step] for step in range(3, 8)]) for seed in range(3)]
    assert noise["value"].to_list() == pytest.approx([*means, 0.7])
    ends = [np.array([scores[seed, step] for step in range(3, 8)]) for seed in range(3)]
    assert noise["checkpoint_noise"].to_list()[:3] == pytest.approx(
        [spread_about_line(np.arange(5.0), y) for y in ends]
    )
    assert noise["checkpoint_noise"][3] is None
    assert noise["question_error"].to_list() == [0.05, 0.05, 0.05, None]
    assert noise["seeds"].to_list() == [3, 3, 3, 1]
    assert noise["seed_noise"].to_list()[:3] == pytest.approx([np.std(means, ddof=1)] * 3)
    assert noise["seed_noise"][3] is None


def test_unknown_tasks_and_metrics() -> None:
    evaluations = evaluations_of([{"run": "a", "step": 1, "D": 1.0, "value": 0.5}])
    with pytest.raises(ToposcopeError, match=r"score of task piqua: did you mean 'piqa'"):
        metric_noise(evaluations, "piqua")
    with pytest.raises(ToposcopeError, match=r"bpb of task piqa: choose from acc"):
        metric_noise(evaluations, "piqa", metric="bpb")
    with pytest.raises(ToposcopeError, match="k is 0; expected 1 or more"):
        metric_noise(evaluations, "piqa", k=0)
