"""The rows that the served page received: put in place, drawn as means and ranges, and as a map of layers."""

from typing import Any

import numpy as np
import pytest
from javascript import called

RNG = np.random.default_rng(4)


def run(*calls: tuple[str, list[Any]]) -> list[Any]:
    return called("rows.js", list(calls))


@pytest.mark.parametrize("seed", range(5))
def test_rows_stand_in_order_whatever_order_they_come_in(seed: int) -> None:
    steps = np.random.default_rng(seed).integers(0, 40, 120).tolist()
    values = list(range(120))
    (line,) = run(("put", [{"steps": [], "values": []}, steps, values]))
    last = dict(zip(steps, values, strict=True))  # the later value of a step counts
    assert line == {"steps": sorted(last), "values": [last[step] for step in sorted(last)]}


def test_merged_rows_keep_the_mean_and_every_extreme() -> None:
    values = RNG.normal(size=10_000)
    values[4321], values[77] = 50.0, -3.0
    line = {"steps": list(range(10_000)), "values": values.tolist()}
    rows, few, part = run(*(("merged", [line, *ends]) for ends in ((0, 10_000, 100), (0, 100, 100), (5, 105, 30))))
    assert len(rows) == 100
    assert [row["step"] for row in rows] == list(range(99, 10_000, 100))
    assert (max(row["high"] for row in rows), min(row["low"] for row in rows)) == (50.0, values.min())
    assert np.mean([row["value"] for row in rows]) == pytest.approx(values.mean(), abs=1e-5)
    assert few == [{"step": step, "value": pytest.approx(value, rel=1e-5)} for step, value in enumerate(values[:100])]
    assert (len(part), part[-1]["step"]) == (25, 104)


def test_the_map_of_many_steps_keeps_a_layers_spike() -> None:
    steps = list(range(500))
    spiked = {"steps": steps, "values": [9.0 if step == 321 else 1.0 for step in steps]}
    sparse = {"steps": [0, 499], "values": [2.0, 3.0]}
    of_map, empty = run(("columnsOf", [[spiked, sparse], 48]), ("columnsOf", [[], 48]))
    assert (of_map["width"], len(of_map["ends"]), of_map["ends"][-1]) == (11, 46, 499)
    assert [value for value in of_map["values"][0] if value != 1.0] == [9.0]
    assert of_map["values"][1] == [2.0, *[None] * 44, 3.0]
    assert empty == {"ends": [], "width": 1, "values": []}
