"""The tables of a study: what the methods page says of the published checkpoints must come out of the real ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from made_studies import trajectory

from toposcope.analysis import association_table, scaling_table, table, trajectories
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries

H0_TOTAL = "rips:max_dimension=0 H0.total"


@pytest.fixture(scope="module")
def published(published_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("published")
    series = [DeclaredSeries(path=str(published_study / "checkpoints" / name)) for name in ("tiny-3k", "med-21k")]
    probes: list[dict[str, Any]] = [
        {"name": "neural_persistence"},
        {"name": "rips", "max_dimension": 0},
        {"name": "controls"},
    ]
    assert not run_study(Declaration(name="published", series=series, probes=probes), folder, workers=1)
    return Study.load(folder)


@pytest.mark.reference
def test_h0_total_says_what_the_step_says(published: Study) -> None:
    found = trajectories(published.frame(), published.labels(), published.log())
    rows = association_table(found).filter(feature=H0_TOTAL, group="network")
    assert set(rows.get_column("target")) == {"smoothed_loss", "batch_loss"}
    assert "beyond trend" not in set(rows.get_column("verdict"))
    # To the last bit but one: ranks are the same, sums are not taken in the same order.
    np.testing.assert_allclose(rows.get_column("rho"), rows.get_column("rho_step"), rtol=1e-12)
    np.testing.assert_allclose(rows.get_column("rho"), rows.get_column("rho_weight_norm"), rtol=1e-12)
    assert not np.isfinite(rows.get_column("rho_given_step").to_numpy()).any()
    batch = dict(rows.filter(target="batch_loss").select("run", "rho").iter_rows())
    assert batch["tiny-3k"] == pytest.approx(-0.590, abs=5e-4)
    assert batch["med-21k"] == pytest.approx(-0.946, abs=5e-4)


@pytest.mark.reference
def test_published_correlation_of_neural_persistence(published: Study, published_study: Path) -> None:
    found = trajectories(published.frame(), published.labels(), published.log())
    expected = json.loads((published_study / "analysis.json").read_bytes())["correlations"]
    rows = association_table(found).filter(feature="neural_persistence np_mean", target="batch_loss", group="network")
    for run, rho, p in rows.select("run", "rho", "p").iter_rows():
        assert rho == pytest.approx(expected[run]["np_mean_vs_loss"]["rho"], abs=1e-9)
        assert p == pytest.approx(expected[run]["np_mean_vs_loss"]["p"], rel=1e-6)


def _frames(n: int, loss: bool) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """A study of one run whose single feature is the step."""
    steps = list(range(0, 100 * n, 100))
    features = pl.DataFrame(
        {
            "run": ["a"] * n, "step": steps, "layer": ["network"] * n, "role": ["network"] * n,
            "probe": ["rips"] * n, "options": ["{}"] * n, "statistic": ["H0.total"] * n,
            "kind": ["topology"] * n,
            "value": [float(s) for s in steps], "flag": [""] * n,
        }
    )  # fmt: skip
    labels = pl.DataFrame({"probe": ["rips"], "options": ["{}"], "label": ["rips"]})
    columns = ("loss", "learning_rate", "grad_norm", "tokens", "flops", "validation_loss")
    log = pl.DataFrame(
        {"run": ["a"] * n, "step": steps, **{c: [5.0 - s / 1000 for s in steps] for c in columns}}
    ).filter(loss)
    runs = pl.DataFrame(
        {"run": ["a"], "kind": ["series"], "n_parameters": [None], "status": ["complete"], "last_step": [None]}
    )
    return features, labels, log, runs.cast({"n_parameters": pl.Int64, "last_step": pl.Int64})


def test_without_a_loss_there_is_no_association() -> None:
    found = trajectories(*_frames(10, loss=False)[:3])
    assert len(association_table(found)) == 0
    assert found[0].targets == {}


def test_one_checkpoint_is_no_error() -> None:
    *frames, runs = _frames(1, loss=True)
    found = trajectories(*frames)
    assert len(scaling_table(found, runs)) == 0
    assert set(association_table(found).get_column("verdict")) == {"cannot be told"}
    assert set(association_table(found).get_column("needs")) == {"more checkpoints"}


def test_a_run_of_failures_alone_is_no_error() -> None:
    features, labels, log, _ = _frames(10, loss=True)
    found = trajectories(features.with_columns(layer=pl.lit("w")), labels, log)
    assert found == []
    assert len(association_table(found)) == 0


def test_a_sparse_validation_loss_is_not_the_target() -> None:
    features, labels, log, _ = _frames(30, loss=True)
    between = log.with_columns(step=pl.col("step") + 50, loss=pl.col("loss") + 1)
    sparse = pl.concat([log, between]).sort("step")
    sparse = sparse.with_columns(
        validation_loss=pl.when(pl.col("step") % 500 == 0).then(pl.col("validation_loss"))  # 6 of 30
    )
    (trajectory,) = trajectories(features, labels, sparse)
    assert next(iter(trajectory.targets)) == "smoothed_loss"


def test_equal_input_gives_equal_tables() -> None:
    first, second = (association_table(trajectories(*_frames(20, loss=True)[:3])) for _ in range(2))
    assert first.equals(second)
    assert set(first.get_column("target")) == {"validation_loss", "batch_loss"}


def test_each_block_is_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [trajectory(f"run-{i}", i, "information") for i in range(8)]
    monkeypatch.setattr(table, "MAX_COMPARED", 4)
    both = association_table(runs)
    assert both["run"].unique(maintain_order=True).to_list() == [run.run for run in runs]
    assert both["n_others"].max() == 3
    columns = ["run", "feature", "rho", "share_others", "p_pairing"]
    halves = pl.concat([association_table(part) for part in (runs[:4], runs[4:])])
    assert both.select(columns).equals(halves.select(columns), null_equal=True)


def test_without_runs_there_is_an_empty_table() -> None:
    assert association_table([]).is_empty()
