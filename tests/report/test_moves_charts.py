"""Charts over training: what their titles say is what the data say."""

import dataclasses

import numpy as np
import pytest
from chart_checks import check_chart, rows_of_chart
from made_up_material import material
from section_tools import charts_of, section_of

from toposcope.charts.chart import Chart
from toposcope.report.document import Details
from toposcope.report.headline import GRADIENT_NORM, NP
from toposcope.report.sections.moves import (
    change_rate_chart,
    gradient_charts,
    learning_rate_chart,
    loss_chart,
    topology_charts,
)
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table
from toposcope.study.kinds import feature_named

DRAWN = (loss_chart, topology_charts, change_rate_chart, learning_rate_chart, gradient_charts)


def all_charts(of: StudyData) -> dict[str, Chart]:
    return {name: chart for draw in DRAWN for name, chart in charts_of(draw, of).items()}


def with_feature(of: StudyData, name: str, values: list[np.ndarray]) -> StudyData:
    feature = feature_named(name)
    changed = [
        dataclasses.replace(t, features={**t.features, feature: v})
        for t, v in zip(of.trajectories, values, strict=True)
    ]
    return dataclasses.replace(of, trajectories=changed)


TITLES = {
    "losses": "The validation loss falls in all 5 runs",
    "neural-persistence": "Mean neural persistence rises in all 5 runs",
    "h0-total": "H0 total rises in all 5 runs",
    "h1-total": "H1 total rises in all 5 runs",
    "diagram-change": "H0 diagrams change fastest at step 100 in all 5 runs",
    "learning-rate": "The learning rate ends below its highest value in all 5 runs",
    "gradients": "H0 total of gradients falls in all 5 runs",
    "gradients-by-norm": "H0 total of gradients over their norm falls in all 5 runs",
}


@pytest.mark.slow
def test_a_title_says_what_is_seen() -> None:
    drawn = all_charts(material())
    assert {name: chart.title for name, chart in drawn.items()} == TITLES
    for chart in drawn.values():
        check_chart(chart)


def test_unknown_values_are_left_out() -> None:
    full = material(2, 6)
    values = np.array([np.nan, 1.0, np.nan, 3.0, 2.9, np.inf])
    drawn = charts_of(topology_charts, with_feature(full, "rips H0.total", [values, np.full(6, np.nan)]))["h0-total"]
    check_chart(drawn)
    assert drawn.title == "H0 total rises in the run"
    assert [row["step"] for row in rows_of_chart(drawn, "run", "value") if row["run"] == "run-0"][:3] == [100, 300, 400]


def test_a_curve_that_turns_is_not_said_to_rise() -> None:
    full, n = material(3), 30
    hill, valley = (
        np.interp(np.arange(n), [0, 4, n - 1], [0.3, 0.6, 0.4]),
        np.interp(np.arange(n), [0, 9, 29], [3, 1, 2]),
    )
    turned = with_feature(full, NP.key, [np.linspace(0.3, 0.4, n), hill, hill])
    title = charts_of(topology_charts, turned)["neural-persistence"].title
    assert title == "Mean neural persistence ends higher in all 3 runs, after a peak in 2"
    mixed = with_feature(full, NP.key, [np.linspace(0.3, 0.4, n), hill, valley])
    title = charts_of(topology_charts, mixed)["neural-persistence"].title
    assert (
        title
        == "Mean neural persistence ends higher in 2 and ends lower in 1 of 3 runs, after a peak in 1 and a dip in 1"
    )


@pytest.mark.slow
def test_faults_are_marked() -> None:
    full = material(2, 5)
    for name, chart in all_charts(full).items():
        if name != "learning-rate":
            assert [row["step"] for row in rows_of_chart(chart, "finding")] == [100], name
    clean = dataclasses.replace(full, findings=full.findings.clear())
    assert not [row for chart in all_charts(clean).values() for row in rows_of_chart(chart, "finding")]


def test_a_run_has_its_colour_in_every_chart() -> None:
    full = material(3, 5)
    first = dataclasses.replace(full.trajectories[0], features={})
    part = dataclasses.replace(full, trajectories=[first, *full.trajectories[1:]])
    spec = str(charts_of(topology_charts, part)["h0-total"].figure.to_dict())
    assert "['run-0', 'run-1', 'run-2']" in spec


def test_gradients_are_divided_by_their_norm() -> None:
    full = material(2, 5)
    rows = rows_of_chart(charts_of(gradient_charts, full)["gradients-by-norm"], "run", "series", "value")
    ours = {(row["run"], row["series"], row["step"]): row["value"] for row in rows}
    assert ours["run-1", "H0", 0] == pytest.approx(2 * 5 / 2)
    without = [
        dataclasses.replace(t, features={f: v for f, v in t.features.items() if f != GRADIENT_NORM})
        for t in full.trajectories
    ]
    assert list(charts_of(gradient_charts, dataclasses.replace(full, trajectories=without))) == ["gradients"]


def test_the_log_is_thinned_but_keeps_its_ends() -> None:
    long = material(1, 200)
    rows = rows_of_chart(charts_of(learning_rate_chart, long)["learning-rate"], "run", "value")
    steps = {row["step"] for row in rows}
    logged = long.log.get_column("step")
    assert len(steps) <= 400 < len(logged)
    assert {logged[0], logged[-1]} <= steps


def test_the_table_says_how_far_each_feature_moved() -> None:
    full = material(2, 5)
    section = section_of("moves", full)
    assert section is not None
    blocks = [b for block in section.blocks for b in (block.blocks if isinstance(block, Details) else (block,))]
    (moved,) = (b for b in blocks if isinstance(b, Table) and b.name == "moved")
    assert ("H0 total", "run-1", "20", "40", "+100%") in moved.rows  # no turn, so no columns about it
    assert [b.name for b in blocks if isinstance(b, Table)] == ["moved", "runs"]
