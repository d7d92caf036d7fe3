"""Charts of the similarity of hidden states: what they draw and say is what the data say."""

import dataclasses
from collections.abc import Sequence

import polars as pl
import pytest
from chart_checks import check_chart, rows_of_chart
from made_up_material import material
from made_up_states import LAYERS, STEPS, with_states
from section_tools import charts_of, section_of

from toposcope.analysis.trajectory import Trajectory
from toposcope.charts.chart import Chart
from toposcope.report.study_data import StudyData
from toposcope_experiments.similarity.section import (
    MAX_CHECKPOINTS,
    SECTION,
    checkpoint_similarity_charts,
    layer_similarity_charts,
)


def similarity(found: Sequence[Trajectory]) -> pl.DataFrame:
    """Return measured similarities: alike by how near layers and checkpoints are in their order."""
    rows = []
    for t in found:
        for i, step in enumerate(t.steps.tolist()):
            for k, layer in enumerate(LAYERS):
                far = {f"@{other}": abs(k - j) / 4 for j, other in enumerate(LAYERS) if j != k}
                if layer == "network":
                    far |= {f"@step.{before}": (i - j) / len(t.steps) for j, before in enumerate(t.steps[:i].tolist())}
                for name, distance in far.items():
                    values = {"cka": 1 - distance, "procrustes": distance, "rtd": 10 * distance, "other": 0.0}
                    rows += [
                        (t.run, step, layer, "hidden", "similarity", "{}", f"{measure}{name}", "control", value, "")
                        for measure, value in values.items()
                    ]
    names = ["run", "step", "layer", "role", "probe", "options", "statistic", "kind", "value", "flag"]
    return pl.DataFrame(rows, schema=names, orient="row")


@pytest.fixture(scope="module")
def study() -> StudyData:
    states = with_states(material(3))
    label = pl.DataFrame({"probe": ["similarity"], "options": ["{}"], "label": ["similarity"]})
    labels = pl.concat([states.labels, label])
    return dataclasses.replace(states, frame=similarity(states.trajectories), labels=labels)


@pytest.fixture(scope="module")
def drawn(study: StudyData) -> dict[str, Chart]:
    return {name: chart for draw in SECTION.charts for name, chart in charts_of(draw, study).items()}


def test_titles_say_what_is_seen(drawn: dict[str, Chart]) -> None:
    assert len(drawn) == 3 + 3
    assert drawn["layers-cka"].title == "CKA: the first and the last hidden state of run-2 stay as alike as they are"
    assert drawn["checkpoints-rtd"].title == ("RTD: the last hidden state changes most between steps 0 and 1 of run-0")


@pytest.mark.slow
def test_every_chart_is_drawn(drawn: dict[str, Chart]) -> None:
    for chart in drawn.values():
        check_chart(chart)
        assert "nan" not in chart.title + chart.caption


def test_matrices_are_symmetric_and_whole(drawn: dict[str, Chart]) -> None:
    cells = {(r["checkpoint"], r["a"], r["b"]): r["value"] for r in rows_of_chart(drawn["layers-cka"], "a")}
    assert len(cells) == 2 * len(LAYERS) ** 2
    assert all(cells[at, a, b] == cells[at, b, a] for at, a, b in cells)
    assert cells["step 0", "0", "last"] == 0.25
    assert cells["step 0", "0", "0"] == 1.0
    rtd = {(r["run"], r["a"], r["b"]): r["value"] for r in rows_of_chart(drawn["checkpoints-rtd"], "a")}
    assert len(rtd) == 2 * len(STEPS) ** 2
    assert rtd["run-0", 0, 10000] == rtd["run-0", 10000, 0] == pytest.approx(9.0)


def test_layers_that_grow_alike_are_said_to(study: StudyData) -> None:
    nearer = pl.when(pl.col("step") == STEPS[-1], pl.col("statistic") == "cka@network").then(0.9).otherwise("value")
    chart = layer_similarity_charts(dataclasses.replace(study, frame=study.frame.with_columns(value=nearer)))[0]
    assert chart.title == "CKA: the first and the last hidden state of run-2 become more alike"


def test_of_many_checkpoints_some_are_drawn(study: StudyData) -> None:
    rows = [("run-0", step, "network", "hidden", "similarity", "{}", f"cka@step.{before}", "control", 0.5, "")
            for step in range(100) for before in range(step)]  # fmt: skip
    frame = pl.DataFrame(rows, schema=study.frame.schema, orient="row")
    (chart,) = checkpoint_similarity_charts(dataclasses.replace(study, frame=frame))
    steps = {row["a"] for row in rows_of_chart(chart, "a")}
    assert len(steps) == MAX_CHECKPOINTS
    assert {0, 99} < steps
    assert chart.caption.endswith("40 checkpoints of a run are shown.")


def test_without_the_probe_there_is_no_section(study: StudyData) -> None:
    assert section_of("similarity", with_states(material(3))) is None
    assert not any(charts_of(draw, material(2)) for draw in SECTION.charts)
    assert "linear CKA" in str(list(SECTION.methods(study)))
    assert list(SECTION.methods(material(2))) == []
