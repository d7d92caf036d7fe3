"""The shipped study of nine seeds each, from a stand-in of the hub: the two disturbed runs are named, no others."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
import torch
from hub_stand_in import hub_of
from polypythias_stand_in import PLANTED, declaration, models_in, repository, text_file, train_all
from safetensors.torch import save_file

from toposcope.checkpoints import Access
from toposcope.report import write_report
from toposcope.report.sections import report_sections
from toposcope.report.study_data import StudyData
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries

STEPS = [0, 64, 1000, 8000, 16000, 24000, 48000, 80000, 120000, 143000]
SIZES = ["14m", "70m"]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_all(tmp_path / "hub", STEPS, SIZES, PLANTED)
    torch.set_num_threads(threads)
    # A seed that lacks a checkpoint.
    lacking = tmp_path / "hub" / "EleutherAI" / repository("70m", 9) / "step48000"
    lacking.rename(tmp_path / "taken-away")
    with hub_of(tmp_path / "hub", monkeypatch, models_in(tmp_path / "hub")):
        yield tmp_path


@pytest.mark.slow
def test_the_disturbed_runs_are_named_and_no_others(models: Path) -> None:
    shipped = declaration(text_file(models))
    assert len(shipped.series) == 45
    series = [msgspec.structs.replace(s, steps=STEPS) for s in shipped.series]
    fewer, access = msgspec.structs.replace(shipped, series=series), Access(folder=models / "kept")
    assert run_study(fewer, models / "study", access=access) == {}
    study = Study.load(models / "study")
    statuses = study.runs().group_by("status").len().sort("status").rows()
    assert statuses == [("complete", 18), ("unreachable", 27)]
    assert f"{repository('70m', 9)}: no checkpoint at step 48000" in study.notes()
    page, _ = write_report(study)
    tables = page.parent / "tables"
    found = pl.read_csv(tables / "outlier_runs.csv", infer_schema_length=None)
    assert set(found.filter(verdict="apart")["run"]) == set(PLANTED)
    assert found["run"].n_unique() == 18
    # From the disturbance on, not before it.
    firsts = found.filter(verdict="apart").group_by("run").agg(pl.col("first").min())
    begun = {run: STEPS[{"spike": 6, "drift": 4}[kind]] for run, kind in PLANTED.items()}
    assert all(first >= begun[run] for run, first in firsts.iter_rows())
    standings = pl.read_csv(tables / "outlier_standings.csv", infer_schema_length=None)
    assert {"text_loss", "controls frobenius_norm", "controls stable_rank"} <= set(standings["feature"])
    assert {"loss", "norm", "spectrum", "topology"} <= set(standings["kind"])
    at_gap = standings.filter(feature="controls frobenius_norm", step=48000)
    assert sorted(at_gap.filter(pl.col("run").str.contains("70m"))["n_runs"].unique()) == [8]
    content = page.read_text()
    assert "Runs that stand apart" in content
    for run in PLANTED:
        assert f"{run} stands apart: first in " in content


def test_weights_and_logs_alone_show_who_left_and_that_the_weights_did_not(tmp_path: Path) -> None:
    """Seven seeds without a text to read; the loss of one leaves the others, its weights do not."""
    rng, steps = np.random.default_rng(0), range(0, 60, 10)
    for seed in range(1, 8):
        folder = tmp_path / f"run-seed{seed}"
        folder.mkdir()
        start, way = rng.normal(size=(2, 12, 8))
        for step in steps:
            weight = torch.from_numpy(start + 0.02 * step * way)
            save_file({"weight": weight}, folder / f"step_{step}.safetensors")
        own = 1 + 0.01 * rng.normal()
        losses = (2 + np.exp(-np.arange(60) / 20)) * own * (1 + 0.002 * rng.normal(size=60))
        losses[31:] *= 2 if seed == 5 else 1
        rows = [f"{step},{loss}" for step, loss in enumerate(losses)]
        (tmp_path / f"run-seed{seed}.csv").write_text("\n".join(["step,loss", *rows]))
    declared = Declaration(
        name="x",
        series=[DeclaredSeries(path=str(tmp_path / "run-seed{1..7}"), log=str(tmp_path / "{name}.csv"))],
        probes=[{"name": "controls"}, {"name": "rips", "max_dimension": 0}],
    )
    assert run_study(declared, tmp_path / "study", workers=1) == {}
    found = StudyData.of(Study.load(tmp_path / "study"), report_sections()).tables["outlier_runs"]
    apart = found.filter(verdict="apart").select("run", "feature", "kind", "first").rows()
    assert ("run-seed5", "smoothed_loss", "loss", 40) in apart
    assert {(run, kind) for run, _, kind, _ in apart} == {("run-seed5", "loss")}
