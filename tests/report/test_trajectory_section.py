"""The section on paths: its tables against NumPy, its charts, and what it says."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from chart_checks import check_chart, encodings, rows_of_chart
from numpy.testing import assert_allclose
from section_tools import section_of
from small_studies import RIPS, checkpoint_file, series_study, write_weights

from toposcope.analysis.weight_paths import weight_paths
from toposcope.homology import random_walk_shares_of
from toposcope.report.document import Details
from toposcope.report.sections.trajectory import (
    MAX_RUNS,
    component_chart,
    component_title,
)
from toposcope.report.study_data import StudyData
from toposcope.report.tables import Table
from toposcope.report.writing import study_page
from toposcope.study import Study, run_study
from toposcope.study.declaration import DeclaredSeries

TRAJECTORY: dict[str, Any] = {"name": "trajectory"}
SHAPES = {"layers.0.mlp.fc1.weight": (20, 6), "layers.0.mlp.fc2.weight": (6, 20)}
STEPS = [10 * k for k in range(12)]
DRIFTS = {"walk": 0.0, "drift": 0.2}
"""Length of the drift in a step, by run, as a share of a direction."""


def write_walk(folder: Path, seed: int, drift: float) -> np.ndarray:
    """A random walk with a drift, twelve checkpoints; return them as rows."""
    draw = np.random.default_rng(seed)
    start = {name: draw.normal(size=shape) for name, shape in SHAPES.items()}
    directions = {name: draw.normal(size=shape) for name, shape in SHAPES.items()}
    rows = []
    for step in STEPS:
        write_weights(checkpoint_file(folder, step), {name: torch.from_numpy(w.copy()) for name, w in start.items()})
        rows.append(np.concatenate([w.ravel() for w in start.values()]))
        for name, w in start.items():
            w += 0.05 * draw.normal(size=w.shape) + drift * directions[name]
    return np.array(rows)


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("walks")
    points = {name: write_walk(folder / name, seed, drift) for seed, (name, drift) in enumerate(DRIFTS.items())}
    declared = series_study(folder / "walk", [RIPS, TRAJECTORY])
    declared.series.append(DeclaredSeries(path=str(folder / "drift")))
    assert run_study(declared, folder / "study", workers=1) == {}
    return Study.load(folder / "study"), points


@pytest.fixture(scope="module")
def material(walks: tuple[Study, dict[str, np.ndarray]]) -> StudyData:
    return study_page(walks[0]).data


def test_the_tables_are_those_of_the_weights(walks: tuple[Study, dict[str, np.ndarray]], material: StudyData) -> None:
    for row in material.tables["weight_paths"].to_dicts():
        points = walks[1][row["run"]]
        norms = np.linalg.norm(np.diff(points, axis=0), axis=1)
        U, sigma, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
        assert row["path_length"] == pytest.approx(norms.sum())
        assert row["straightness"] == pytest.approx(np.linalg.norm(points[-1] - points[0]) / norms.sum())
        assert row["pc1_share"] == pytest.approx(sigma[0] ** 2 / (sigma**2).sum())
        assert row["pc2_walk_same_steps"] == pytest.approx(random_walk_shares_of(norms)[1])
        found = material.tables["weight_path_points"].filter(run=row["run"])
        assert found["step"].to_list() == STEPS
        assert_allclose(np.abs(found.select("pc1", "pc2").to_numpy()), np.abs(U * sigma)[:, :2], atol=1e-9)
        assert found["pc1"][-1] >= found["pc1"][0]  # from left to right


@pytest.mark.slow
def test_the_charts(material: StudyData) -> None:
    chart = component_chart(material)
    assert chart is not None
    assert chart.name == "weight-paths"
    check_chart(chart)
    assert chart.render("svg") == component_chart(material).render("svg")  # type: ignore[union-attr]
    assert {row["step"] for row in rows_of_chart(chart, "x", "y", "place")} == set(STEPS)
    titles = [x["title"] for x in encodings(chart)["x"]]
    shares = material.tables["weight_paths"]["pc1_share"].to_list()
    assert all(any(f"PC1: {100 * share:.0f}% (random walk: " in title for title in titles) for share in shares)


def test_what_is_said_of_one_run_and_of_several(material: StudyData) -> None:
    rows = material.tables["weight_paths"].to_dicts()
    drift = next(row for row in rows if row["run"] == "drift")
    assert component_title([drift]) == (
        f"PC1 holds {100 * drift['pc1_share']:.0f}% of the variance of the path, and "
        f"{100 * drift['pc1_walk_same_steps']:.0f}% of that of a random walk of the same steps"
    )
    assert drift["pc1_share"] > 0.9 > drift["pc1_walk_same_steps"]
    above = [{**drift, "pc1_share": share} for share in (0.9, 0.1)]
    assert component_title(above).endswith("in 1 of 2 runs")


def test_the_section(material: StudyData) -> None:
    section = section_of("trajectory", material)
    assert section is not None
    blocks = [b for block in section.blocks for b in (block.blocks if isinstance(block, Details) else (block,))]
    (paths,) = (b for b in blocks if isinstance(b, Table))
    assert [row[0] for row in paths.rows] == ["walk", "drift"]
    assert {column.group for column in paths.columns} >= {"variance in PC1", "variance in PC2"}


def test_of_many_runs_a_few_are_drawn(material: StudyData) -> None:
    first = material.trajectories[0]
    names = [f"run-{i}" for i in range(MAX_RUNS + 3)]
    copies = {
        table: pl.concat(material.tables[table].filter(run=first.run).with_columns(run=pl.lit(name)) for name in names)
        for table in ("weight_paths", "weight_path_points")
    }
    runs = pl.DataFrame({"run": names, "n_parameters": range(len(names))})
    many = dataclasses.replace(
        material, trajectories=[dataclasses.replace(first, run=n) for n in names], runs=runs,
        tables={**material.tables, **copies},
    )  # fmt: skip
    chart = component_chart(many)
    assert chart is not None
    check_chart(chart)
    assert len({row["run"] for row in rows_of_chart(chart, "run", "x")}) == MAX_RUNS
    assert f"{MAX_RUNS} of {len(names)} runs are shown" in chart.caption


def test_a_checkpoint_whose_row_is_missing_is_left_out(material: StudyData) -> None:
    missing = material.frame.filter(~((pl.col("step") == STEPS[4]) & (pl.col("run") == "walk")))
    paths = {path.run: path for path in weight_paths(missing, material.labels)}
    assert paths["walk"].steps.tolist() == [step for step in STEPS if step != STEPS[4]]
    assert paths["drift"].steps.tolist() == STEPS
    later = material.frame.filter(pl.col("statistic") != f"distance@step.{STEPS[0]}")
    assert weight_paths(later.filter(run="walk"), material.labels) == []


def test_without_the_probe_there_is_no_section(material: StudyData) -> None:
    labels = material.labels.filter(pl.col("probe") != "trajectory")
    assert weight_paths(material.frame, labels) == []
    empty = {name: material.tables[name].clear() for name in ("weight_paths", "weight_path_points")}
    without = dataclasses.replace(material, labels=labels, tables={**material.tables, **empty})
    assert component_chart(without) is None
    assert section_of("trajectory", without) is None
