"""Charts of hidden states: what they draw and say is what the data say."""

import dataclasses

import numpy as np
import pytest
from chart_checks import rows_of_chart
from made_up_material import material
from made_up_states import STEPS, with_states

from toposcope.charts.chart import Chart
from toposcope.report.charts.states import (
    depth_charts,
    embedding_charts,
    representation_charts,
)
from toposcope.report.study_data import StudyData

ALL = (representation_charts, depth_charts, embedding_charts)


@pytest.fixture(scope="module")
def study() -> StudyData:
    return with_states(material(3))


@pytest.fixture(scope="module")
def drawn(study: StudyData) -> dict[str, Chart]:
    return {chart.name: chart for draw in ALL for chart in draw(study)}


TITLES = {
    "states-rankme": "RankMe of the last hidden state ends lower in all 3 runs, after a dip in 3",
    "states-top-eigenvalue": "Top eigenvalue of the last hidden state rises in all 3 runs",
    "states-h1-entropy": "H1 entropy of the last hidden state falls in all 3 runs",
    "depth-h0-total": "H0 total rises through the layers of run-2",
    "embedding-h0-total": "H0 total of embeddings: input falls in all 3 runs, output does not change in any of 3 runs",
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_titles_say_what_is_seen(drawn: dict[str, Chart], name: str) -> None:
    assert drawn[name].title == TITLES[name]


@pytest.mark.slow
def test_every_chart_is_drawn(drawn: dict[str, Chart]) -> None:
    names = list(drawn)
    assert len(names) == 8 + 5 + 2
    for chart in drawn.values():
        assert chart.render("svg").startswith(b"<svg")
        assert chart.caption.count(". ") <= 1
        assert "nan" not in chart.title + chart.caption


def test_values_are_those_of_the_study(study: StudyData, drawn: dict[str, Chart]) -> None:
    rows = [row for row in rows_of_chart(drawn["states-rankme"], "step") if row["run"] == "run-1" and "value" in row]
    (rank,) = (v for f, v in study.trajectories[1].features.items() if f.statistic == "rankme")
    assert [row["value"] for row in rows] == rank.tolist()
    assert [row["step"] for row in rows] == STEPS.tolist()


def test_bands_are_where_there_is_noise(drawn: dict[str, Chart]) -> None:
    bands = rows_of_chart(drawn["states-h0-total"], "low")
    assert len(bands) == 3 * len(STEPS)
    assert {row["high"] - row["low"] for row in bands} == {40.0}
    assert "Bands" in drawn["states-h0-total"].caption
    assert not rows_of_chart(drawn["states-h1-total"], "low")


@pytest.mark.parametrize(
    ("places", "n_blocks", "expected", "ticks"),
    [
        ((0, 2, 3, 4), 6, [0, 2, 3, 4, 6], None),
        ((0, 2, 3, 4), 0, [0, 2, 3, 4, 5], [0, 2, 3, 4, 5]),
        ((0, 1, 2), 3, [0, 1, 2, 3], None),
        (tuple(range(24)), 0, list(range(25)), [0, 3, 6, 9, 12, 15, 18, 21, 24]),
    ],
)
def test_the_last_state_stands_behind_all_blocks(
    study: StudyData, places: tuple[int, ...], n_blocks: int, expected: list[int], ticks: list[int] | None
) -> None:
    (ours, *_) = study.trajectories
    names = [f"hidden.{k:02d}" for k in places]
    layers = {name: {f.of_group(name): v for f, v in ours.layers["hidden.00"].items()} for name in names}
    weights = {f"gpt.layers.{k}.attention.dense.weight": "attention.output" for k in range(n_blocks)}
    roles = weights | dict.fromkeys(layers, "hidden")
    chosen = dataclasses.replace(ours, layers=layers, roles=roles)
    chart = depth_charts(dataclasses.replace(study, trajectories=[chosen]))[0]
    assert sorted({row["blocks"] for row in rows_of_chart(chart, "blocks")}) == expected
    axis = chart.spec()["encoding"]["x"]["axis"]
    assert axis.get("values") == ticks
    assert ("'last'" in axis.get("labelExpr", "")) == bool(ticks)


@pytest.mark.slow
def test_holes_are_no_obstacle(study: StudyData) -> None:
    def holed(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) == len(values) - 1, np.nan, values)

    found = [
        dataclasses.replace(t, features={name: holed(v) for name, v in t.features.items()}) for t in study.trajectories
    ]
    for draw in ALL:
        for chart in draw(dataclasses.replace(study, trajectories=found)):
            assert "nan" not in chart.title
            assert chart.render("svg").startswith(b"<svg")
