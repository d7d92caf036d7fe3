"""What the probes need is compiled once on a machine, however many monitors begin."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import torch
from compiled_kernels import newly_compiled
from filelock import FileLock

import toposcope as ts
from toposcope.monitor import measuring
from toposcope.monitor.monitor import DEFAULT_PROBES


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(measuring, "marker", lambda dtype: tmp_path / dtype)

    def compile_all(_probes: object, dtype: str) -> None:
        compiled.append(dtype)
        (tmp_path / dtype).touch()

    monkeypatch.setattr(measuring, "warm_up", compile_all)
    for dtype in ("float32", "float32", "bfloat16"):
        measuring.warm_up_once(DEFAULT_PROBES, dtype)
    assert compiled == ["float32", "bfloat16"]


def test_monitors_that_begin_while_another_process_compiles_start_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "marker", lambda dtype: tmp_path / dtype)
    monkeypatch.setattr(measuring, "_in_background", lambda *_: pytest.fail("a second process"))
    compiled: list[str] = []
    monkeypatch.setattr(measuring, "warm_up", lambda _probes, dtype: compiled.append(dtype))
    with FileLock(tmp_path / "float32.lock"):
        several = [measuring.Compilation(DEFAULT_PROBES, "float32") for _ in range(3)]
        assert not any(each.is_ready for each in several)
        (tmp_path / "float32").touch()
        assert all(each.is_ready for each in several)
    assert compiled == ["float32"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", measuring.DTYPES)
def test_a_process_of_its_own_compiles_for_every_dtype(dtype: str) -> None:
    compiling = measuring.Compilation(DEFAULT_PROBES, dtype)
    if compiling._process is not None:
        assert compiling._process.wait() == 0
    assert compiling.is_ready
    assert measuring.marker(dtype).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_a_run_that_ends_before_waits_and_measures_its_last_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "marker", lambda dtype: tmp_path / dtype)
    model = torch.nn.Linear(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.attach(optimizer)
        optimizer.step()
    rows = ts.Study.load(tmp_path / "run").frame()
    assert rows.filter(pl.col("probe") == "neural_persistence")["step"].unique().to_list() == [1]
    assert "waiting for kernels to be compiled, once on this machine" in capsys.readouterr().err


def test_a_run_that_fails_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error would be shown a minute late."""
    monkeypatch.setattr(measuring, "marker", lambda dtype: tmp_path / dtype)
    monkeypatch.setattr(measuring.Compilation, "wait", lambda *_: pytest.fail("it waits"))
    model = torch.nn.Linear(8, 16)
    with FileLock(tmp_path / "float32.lock"), suppress(ZeroDivisionError), ts.Monitor(model, tmp_path / "run"):
        raise ZeroDivisionError
    assert "waiting" not in capsys.readouterr().err


@pytest.mark.slow
def test_no_kernel_is_left_to_compile_while_training() -> None:
    shapes = [(384, 384), (1152, 384), (384, 1536), (3000, 128), (8, 5), (2000, 2), (2, 700), (700, 700)]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(newly_compiled, shapes).result() == []
