"""A monitored run: an ordinary study, whatever happens to it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from monitored import model_of
from torch import nn

from toposcope.errors import ToposcopeError
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.session import Session
from toposcope.study import Study
from toposcope.study.store import Store


def train(model: nn.Module, monitor: Monitor, steps: int, first: int = 0) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    monitor.attach(optimizer, step=first)
    losses = []
    for step in range(first + 1, first + steps + 1):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(16, 8, generator=generator)).square().mean() + 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss, lr=1e-2)
        losses.append(loss.item())
    return losses


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[float]]:
    """A finished run of 40 steps."""
    with Monitor(model := model_of(), tmp_path / "run", every=10, budget=0.5, quiet=True) as monitor:
        losses = train(model, monitor, 40)
    return tmp_path / "run", losses


def test_it_is_an_ordinary_study(run: tuple[Path, list[float]]) -> None:
    directory, losses = run
    study = Study.load(directory)
    assert study.runs().to_dicts() == [
        {
            "run": "run",
            "kind": "live",
            "n_parameters": 916,
            "status": "complete",
            "last_step": 40,
            "n_checkpoints": len(study.checkpoints()),
        }
    ]
    log = study.log()
    assert log["step"].to_list() == list(range(1, 41))
    assert log["loss"].to_list() == pytest.approx(losses, rel=1e-6)
    assert set(log["learning_rate"]) == {1e-2}
    frame = study.frame()
    assert {0, 40} <= set(frame["step"])
    of_ends = frame.filter(pl.col("step").is_in([0, 40]), layer="network")
    assert {"training", "neural_persistence", "controls", "rips"} == set(of_ends.filter(step=0)["probe"])
    assert "distances" in set(of_ends.filter(step=40)["probe"])
    assert study.errors().is_empty()


def test_its_numbers_are_those_of_a_saved_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    import toposcope as ts

    model = model_of()
    with Monitor(model, tmp_path / "run", every=10, quiet=True) as monitor:
        train(model, monitor, 20)
    (tmp_path / "saved").mkdir()
    save_file(model.state_dict(), tmp_path / "saved" / "step_20.safetensors")
    saved = ts.measure(
        tmp_path / "saved", probes=[{"name": "neural_persistence"}, {"name": "rips", "max_dimension": 0}]
    )
    live = Study.load(tmp_path / "run").frame().filter(step=20)
    columns = ["layer", "role", "probe", "statistic", "value"]
    shared = live.filter(pl.col("probe").is_in(["neural_persistence", "rips"])).select(columns)
    assert shared.sort(columns).equals(saved.select(columns).sort(columns))


def test_what_it_cost_and_left_out_is_stored(run: tuple[Path, list[float]]) -> None:
    status = Study.load(run[0]).meta("monitor run")
    assert '"cost_seconds"' in status
    assert '"skipped"' in status


def test_a_run_that_begins_anew_stands_beside_the_older_one(run: tuple[Path, list[float]]) -> None:
    directory, _ = run
    with Monitor(model := model_of(), directory, every=10, quiet=True) as monitor:
        train(model, monitor, 20)
    study = Study.load(directory)
    assert study.runs()["run"].to_list() == ["run", "run-2"]
    assert len(study.log()) == 60


def test_a_run_that_goes_on_is_cut_where_it_does(run: tuple[Path, list[float]]) -> None:
    directory, losses = run
    with Monitor(model := model_of(), directory, every=10, quiet=True) as monitor:
        again = train(model, monitor, 30, first=30)
    study = Study.load(directory)
    assert study.runs()["run"].to_list() == ["run"]
    log = study.log()
    assert log["step"].to_list() == list(range(1, 61))
    assert log["loss"].to_list() == pytest.approx(losses[:30] + again, rel=1e-6)
    assert '"resumed": [30, 40]' in study.meta("monitor run")


def test_a_study_can_be_read_while_it_grows(tmp_path: Path) -> None:
    model = model_of()
    monitor = Monitor(model, tmp_path / "run", every=5, quiet=True)
    train(model, monitor, 20)
    study = Study.load(tmp_path / "run")
    assert study.runs()["status"].to_list() == ["running"]
    monitor.close()
    assert len(study.log()) == 20


@pytest.mark.slow
def test_killed_ten_times_it_is_one_log(tmp_path: Path) -> None:
    for kill_at in (3, 12, 13, 27, 38, 44, 51, 66, 78, 90, None):
        command = [sys.executable, "-m", "monitored", str(tmp_path), "100", *([str(kill_at)] if kill_at else [])]
        result = subprocess.run(command, cwd=Path(__file__).parents[1] / "support", capture_output=True, check=False)
        assert result.returncode == (-9 if kill_at else 0), result.stderr.decode()
    study = Study.load(tmp_path / "run")
    assert study.runs()["run"].to_list() == ["run"]
    steps = study.log()["step"].to_list()
    assert len(set(steps)) == len(steps)
    assert steps[-1] == 100
    assert study.frame().select("step", "layer", "probe", "statistic").is_unique().all()
    # A killed run loses what waited to be written, half a second at most; the rest of the steps is there.
    assert set(range(91, 101)) <= set(steps)


class Broken(Exception):
    """A fault of the monitor's own."""


def _losses_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[float], str]:
    with Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True) as monitor:
        losses = train(model, monitor, 20)
    return losses, capsys.readouterr().err


@pytest.fixture
def undisturbed(tmp_path: Path) -> list[float]:
    with Monitor(model := model_of(), tmp_path / "undisturbed", every=5, quiet=True) as monitor:
        return train(model, monitor, 20)


@pytest.mark.parametrize("method", ["_end_step", "handle", "_pass_on"])
def test_a_failure_is_said_once_and_training_goes_on(
    method: str,
    undisturbed: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> None:
        raise Broken("a fault")

    monkeypatch.setattr(Session, method, fail)
    capsys.readouterr()
    losses, words = _losses_and_words(tmp_path, capsys)
    assert losses == undisturbed
    assert words.count("a fault; training goes on without the monitor") == 1


def test_a_full_disk_is_said_once_and_nothing_is_lost_when_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, room = Store.append_log, list[bool]()

    def append_log(store: Store, *arguments: Any) -> None:
        if not room:
            raise ToposcopeError("study.db: database or disk is full; free some disk space")
        written(store, *arguments)

    monkeypatch.setattr(Store, "append_log", append_log)
    monkeypatch.setattr("toposcope.monitor.session.RETRY_SECONDS", 0.0)
    model = model_of()
    monitor = Monitor(model, tmp_path / "run", every=5, quiet=True)
    train(model, monitor, 20)
    room.append(True)
    monitor.close()
    words = capsys.readouterr().err
    assert words.count("disk is full") <= 1
    assert len(Study.load(tmp_path / "run").log()) == 20


def test_a_directory_in_use_is_said_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True)
    train(model, first, 5)
    second = Monitor(other := model_of(), tmp_path / "run", every=5, quiet=True)
    assert len(train(other, second, 5)) == 5
    second.close()
    first.close()
    assert "another process" in capsys.readouterr().err
    assert len(Study.load(tmp_path / "run").log()) == 5


@pytest.mark.parametrize("budget", [0, 1, -0.1, 2.0])
def test_a_budget_is_a_share(budget: float, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="budget is"):
        Monitor(model_of(), tmp_path, budget=budget)


def test_probes_that_need_a_whole_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="layer by layer"):
        Monitor(model_of(), tmp_path, probes=[{"name": "rips", "pooled": True}])


def test_a_saved_checkpoint_has_a_manifest_and_is_examined(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    import toposcope as ts

    model = model_of()
    saved = tmp_path / "saved"
    saved.mkdir()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Monitor(model, tmp_path / "run", every=5, quiet=True) as monitor:
        monitor.attach(optimizer)
        for step in range(1, 7):
            if step == 5:
                with torch.no_grad():
                    model[2].weight[3, 3] = torch.nan  # type: ignore[index]
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
            save_file(model.state_dict(), saved / f"step_{step}.safetensors")
            monitor.saved(saved / f"step_{step}.safetensors")
    study = Study.load(tmp_path / "run")
    assert study.examined() == ["run"]
    assert study.findings().filter(severity="fault")["steps"].list.contains(5).any()
    assert (saved / "step_3.safetensors.manifest.json").exists()
    alerts = study.alerts()
    assert alerts.filter(pl.col("check").str.starts_with("doctor")).height
    # Whoever reads the checkpoint later sees that it was changed.
    content = bytearray((saved / "step_3.safetensors").read_bytes())
    content[-1] ^= 1
    (saved / "step_3.safetensors").write_bytes(bytes(content))
    assert any(f.check == "manifest" and 3 in f.steps for f in ts.doctor(saved, deep=True).findings)


def test_a_checkpoint_that_is_gone_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True) as monitor:
        monitor.attach(torch.optim.SGD(model.parameters(), lr=1e-2))
        monitor.saved(tmp_path / "gone", 3)
    assert Study.load(tmp_path / "run").findings().is_empty()
    assert "gone" not in capsys.readouterr().err


def test_a_model_without_matrices_has_norms_and_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    with Monitor(model, tmp_path / "run", every=5, budget=0.5, quiet=True) as monitor:
        train(model, monitor, 10)
    study = Study.load(tmp_path / "run")
    assert len(study.log()) == 10
    assert set(study.frame()["layer"]) == {"network"}
    assert "without the monitor" not in capsys.readouterr().err


def test_an_optimizer_of_another_model_and_a_second_one_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of()
    own = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.attach(torch.optim.SGD(model_of().parameters(), lr=1e-2))
        assert "none of the model's parameters" in capsys.readouterr().err
        monitor.attach(own)
        assert "only the first optimizer's" in capsys.readouterr().err
