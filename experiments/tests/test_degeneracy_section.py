"""The section on local learning coefficients: what it draws, and what it says where there is no estimate."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from made_up_material import material
from section_tools import charts_of, section_of

from toposcope.probes.feature import Feature
from toposcope.report.study_data import StudyData
from toposcope.study.study import FRAME_SCHEMA
from toposcope_experiments.learning_coefficient.section import SECTION, degeneracy_chart

ESTIMATE = Feature("degeneracy", "", "learning_coefficient", "spectrum")
REASON = "chains disagree (R-hat 1.32 above 1.1); take more draws or a larger localisation"


def measured(*, without: tuple[int, ...] = ()) -> StudyData:
    """Three runs whose coefficient grows by one a checkpoint; no estimate at some places of the first."""
    plain = material(3, 10)
    trajectories, rows = [], []
    for k, t in enumerate(plain.trajectories):
        values = 5.0 + np.arange(len(t.steps), dtype=np.float64)
        if k == 0:
            values[list(without)] = np.nan
            for i in without:
                place = {"run": t.run, "step": int(t.steps[i]), "layer": "network", "role": "network", "options": "{}"}
                for name in ("convergence@r_hat", "chain@0"):
                    row = {"statistic": name, "kind": "control", "value": 1.32, "flag": f"no estimate: {REASON}"}
                    rows.append({**place, "probe": "degeneracy", **row})
        features, noise = {ESTIMATE: values}, {ESTIMATE: 0.25 + 0 * values}
        trajectories.append(dataclasses.replace(t, features={**t.features, **features}, noise={**t.noise, **noise}))
    labels = pl.DataFrame({"probe": ["degeneracy"], "options": ["{}"], "label": ["degeneracy"]})
    frame = pl.DataFrame(rows, schema=FRAME_SCHEMA)
    return dataclasses.replace(plain, trajectories=trajectories, labels=labels, frame=frame)


def datasets(material: StudyData) -> list[dict[str, object]]:
    chart = charts_of(degeneracy_chart, material)["learning-coefficient"]
    return [row for rows in chart.spec()["datasets"].values() for row in rows]


def test_the_chart_has_values_and_an_interval_of_two_standard_errors() -> None:
    study = measured(without=(0, 4))
    rows = datasets(study)
    first = study.trajectories[0].run
    drawn = {row["step"]: row["value"] for row in rows if row.get("run") == first and {"step", "value"} <= row.keys()}
    assert {100: 6.0, 200: 7.0, 500: 10.0, 900: 14.0}.items() <= drawn.items()
    assert drawn.keys().isdisjoint({0, 400})
    bands = {(row["run"], row["step"]): (row["low"], row["high"]) for row in rows if "low" in row}
    assert len(bands) == 28
    assert bands[first, 100] == (5.5, 6.5)


def test_it_says_where_there_is_no_estimate() -> None:
    study = measured(without=(0, 4))
    assert SECTION.finding(study) == "the local learning coefficient rises in all 3 runs"
    text = repr(section_of("degeneracy", study))
    assert "No estimate at 2 checkpoints (step 0 of run-0, step 400 of run-0)" in text
    assert REASON in text


def test_without_any_estimate_only_that_is_said() -> None:
    study = measured(without=(0, 4))
    bare = dataclasses.replace(study, trajectories=material(3, 10).trajectories)
    assert SECTION.finding(bare) == "no estimate at 2 checkpoints"
    assert degeneracy_chart(bare) is None
    assert "No estimate at 2 checkpoints" in repr(section_of("degeneracy", bare))


@pytest.mark.parametrize("study", [material(2)])
def test_without_the_probe_there_is_no_section(study: StudyData) -> None:
    assert SECTION.finding(study) == ""
    assert degeneracy_chart(study) is None
    assert section_of("degeneracy", study) is None
    assert list(SECTION.methods(study)) == []
