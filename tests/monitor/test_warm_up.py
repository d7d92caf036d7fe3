"""What the probes need is compiled before a run begins."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import polars as pl
import pytest
import torch
from compiled_kernels import newly_compiled

import toposcope as ts
from toposcope.monitor import monitored_run


@pytest.mark.usefixtures("compiled_probes")
def test_it_is_said_and_a_run_of_one_step_measures_its_last_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitored_run, "marker", lambda dtype: tmp_path / dtype)
    model = torch.nn.Linear(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.attach(optimizer)
        optimizer.step()
    rows = ts.Study.load(tmp_path / "run").frame()
    assert rows.filter(pl.col("probe") == "neural_persistence")["step"].unique().to_list() == [0, 1]
    assert "compiling what measures, once on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_no_kernel_is_left_to_compile_while_training() -> None:
    shapes = [(384, 384), (1152, 384), (384, 1536), (3000, 128), (8, 5), (2000, 2), (2, 700), (700, 700)]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(newly_compiled, shapes).result() == []
