"""The section on diffusion potentials: its tables against the coordinates, its chart, and what it says."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from chart_checks import check_chart
from scipy.spatial.distance import pdist
from section_tools import charts_of, section_of
from small_studies import RIPS, checkpoint_file, series_study, write_weights

from toposcope.report.document import Details, Paragraph
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table
from toposcope.report.writing import study_page
from toposcope.study import Study, run_study
from toposcope_experiments.diffusion_potential.section import POINTS, SECTION, TABLE, potential_chart

STEPS = [10 * k for k in range(12)]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyData, np.ndarray]:
    """A random walk of twelve checkpoints, and these as rows."""
    folder: Path = tmp_path_factory.mktemp("walks")
    points = np.cumsum(np.random.default_rng(0).normal(size=(len(STEPS), 20, 6)), axis=0)
    for step, matrix in zip(STEPS, points, strict=True):
        weights = {"layers.0.mlp.fc1.weight": torch.from_numpy(matrix.copy())}
        write_weights(checkpoint_file(folder / "walk", step), weights)
    declared = series_study(folder / "walk", [RIPS, {"name": "trajectory"}])
    assert run_study(declared, folder / "study", workers=1) == {}
    return study_page(Study.load(folder / "study")).data, points.reshape(len(STEPS), -1)


def test_the_tables_are_those_of_the_weights(walk: tuple[StudyData, np.ndarray]) -> None:
    data, points = walk
    (row,) = data.tables[TABLE].to_dicts()
    assert row["mds_converged"]
    assert row["potential_converged"]
    assert 1 <= row["potential_time"] <= 100
    assert 0 <= row["potential_floored"] <= 1
    found = data.tables[POINTS].filter(run=row["run"])
    assert found["step"].to_list() == STEPS
    wanted, drawn = pdist(points), pdist(found.select("mds1", "mds2").to_numpy())
    assert row["mds_stress"] == pytest.approx(np.sqrt(((drawn - wanted) ** 2).sum() / (wanted**2).sum()), abs=1e-9)
    ends = found.select("mds1", "potential1").to_numpy()[[0, -1]]
    assert (ends[1] >= ends[0]).all()  # from left to right


def test_the_section_has_a_chart_and_a_table(walk: tuple[StudyData, np.ndarray]) -> None:
    data, _ = walk
    chart = charts_of(potential_chart, data)["weight-potentials"]
    check_chart(chart)
    assert SECTION.finding(data) == chart.title
    section = section_of("diffusion-potential", data)
    assert section is not None
    blocks = [b for block in section.blocks for b in (block.blocks if isinstance(block, Details) else (block,))]
    (paths,) = (b for b in blocks if isinstance(b, Table))
    assert [column.title for column in paths.columns] == ["run", "distances", "potentials", "floored"]


def test_a_scaling_that_has_not_converged_is_named(walk: tuple[StudyData, np.ndarray]) -> None:
    data, _ = walk
    table = data.tables[TABLE].with_columns(mds_converged=pl.lit(False))
    section = section_of("diffusion-potential", dataclasses.replace(data, tables={**data.tables, TABLE: table}))
    assert section is not None
    said = [str(block.parts[0]) for block in section.blocks if isinstance(block, Paragraph)]
    assert "Scaling to the plane had not converged for walk." in said


def test_without_the_probe_there_is_no_section(walk: tuple[StudyData, np.ndarray]) -> None:
    data, _ = walk
    labels = data.labels.filter(pl.col("probe") != "trajectory")
    empty = {name: data.tables[name].clear() for name in (TABLE, POINTS)}
    without = dataclasses.replace(data, labels=labels, tables={**data.tables, **empty})
    assert potential_chart(without) is None
    assert section_of("diffusion-potential", without) is None
    assert list(SECTION.methods(without)) == []
