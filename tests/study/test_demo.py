"""The demo: its design finds what is planted in it, it leaves a run to forecast, and its first screen is definite."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toposcope.analysis.given_covariates import covariate_basis, noise_given
from toposcope.analysis.table import association_table
from toposcope.analysis.trajectory import Trajectory
from toposcope.analysis.verdict import BEYOND
from toposcope.forecasting import forecast
from toposcope.logs import read_log
from toposcope.report.first_screen import first_screen
from toposcope.report.study_data import StudyData
from toposcope.report.writing import study_page
from toposcope.study import Study
from toposcope.study.declaration import load_declaration, shipped_study
from toposcope.study.kinds import feature_named

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TOPOSCOPE_DEMO" not in os.environ, reason="make test-slow makes the demo, and names it"),
]
N_PLANTED = 8


@pytest.fixture(scope="module")
def data() -> StudyData:
    return study_page(Study.load(os.environ["TOPOSCOPE_DEMO"])).data


def planted(run: Trajectory, correlation: float, seed: int) -> Trajectory:
    """The run with further features that drift, and have a correlation with its loss given the covariates."""
    loss = next(iter(run.targets.values()))
    basis = covariate_basis(run.steps, run.covariates)
    noise = noise_given(loss, basis)
    draws = noise.colour(np.random.default_rng(seed).standard_normal((len(loss), N_PLANTED))).T
    white = noise.whiten(np.vstack([loss, draws]).T).T
    sizes = [np.linalg.norm(row - basis @ (basis.T @ row)) for row in white]
    left, others = loss - basis @ (basis.T @ loss), draws - (draws @ basis) @ basis.T
    trend = run.features[feature_named("rips H0.total")]
    trend = 30 * (trend - trend.mean()) / np.ptp(trend)
    made = {
        feature_named(f"rips planted_{i}"): trend
        + correlation * left / sizes[0]
        + np.sqrt(1 - correlation**2) * other / size
        for i, (other, size) in enumerate(zip(others, sizes[1:], strict=True))
    }
    return replace(run, features=run.features | made)


def test_the_demos_design_finds_a_partial_correlation_of_one_half(data: StudyData) -> None:
    found = [
        association_table([planted(run, 0.5, 100 * seed + i) for i, run in enumerate(data.trajectories)])
        for seed in range(3)
    ]
    rows = pl.concat(found).filter(pl.col("feature").str.contains("planted"), group="network", target="validation_loss")
    assert len(rows) == 3 * 5 * N_PLANTED
    assert float((rows.get_column("verdict") == BEYOND).mean()) >= 0.8  # type: ignore[arg-type]


def test_its_first_screen_says_what_each_quantity_does(data: StudyData) -> None:
    screen = first_screen(data)
    assert "cannot be told" not in screen.first + screen.second
    assert "weight norm follow the step exactly" in screen.second
    for quantity in ("H0 total", "H1 total", "eural persistence", "H0 entropy", "stable rank"):
        assert quantity in screen.second
    assert not screen.command


def test_one_run_is_left_to_forecast() -> None:
    folder = Path(os.environ["TOPOSCOPE_DEMO"]) / "runs"
    unfinished = [run.name for run in shipped_study("quickstart").resolved_runs() if run.training.stop_at]
    for place in sorted(folder.iterdir()):
        report = forecast(read_log(place))
        assert (report.default is not None) == (place.name in unfinished), place


def test_what_cannot_be_told_comes_with_the_study_that_would_tell(data: StudyData, tmp_path: Path) -> None:
    every_fifth = [
        replace(
            t,
            steps=t.steps[::5],
            tokens=t.tokens[::5],
            features={feature: values[::5] for feature, values in t.features.items()},
            targets={name: values[::5] for name, values in t.targets.items()},
            covariates={name: values[::5] for name, values in t.covariates.items()},
            groups={},
            twins={},
            noise={},
        )
        for t in data.trajectories
    ]
    coarse = replace(
        data,
        trajectories=every_fifth,
        tables=dict(data.tables.items()) | {"association": association_table(every_fifth)},
    )
    screen = first_screen(coarse)
    assert "follow the step exactly" in screen.first
    assert "cannot be told" in screen.second
    assert "would tell." in screen.second
    assert screen.command.startswith("toposcope study run ")
    from toposcope.report.learnt import proposal

    would_tell = proposal(coarse)
    assert would_tell is not None
    (tmp_path / "finer.toml").write_text(would_tell.declaration)
    finer = load_declaration(tmp_path / "finer.toml")
    assert len(finer.resolved_runs()) >= 5
    assert {run.training.checkpoint_every for run in finer.resolved_runs()} < set(range(2, 15))
