"""A monitored run: an ordinary study, whatever happens to it."""

import json
import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from monitored import EVERY, SAVE_EVERY, Attempt, SlowSteps, model_of
from property_examples import repeated
from torch import nn

from toposcope.errors import ToposcopeError
from toposcope.logs import COLUMNS
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.session import Session
from toposcope.study import Study
from toposcope.study.runner import locked
from toposcope.study.store import Store

pytestmark = pytest.mark.usefixtures("compiled_probes")


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
    clock = SlowSteps()  # the ends are measured with all probes on a machine of any speed
    with Monitor(model := model_of(), tmp_path / "run", every=10, budget=0.5, quiet=True, clock=clock) as monitor:
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
    assert {"cost_seconds", "skipped"} <= json.loads(study.meta("monitor run")).keys()


def test_its_numbers_are_those_of_a_saved_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    import toposcope as ts

    model = model_of()
    with Monitor(model, tmp_path / "run", every=10, quiet=True, clock=SlowSteps()) as monitor:
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


def test_a_run_that_begins_anew_is_another_and_the_newest_resumes(run: tuple[Path, list[float]]) -> None:
    directory, _ = run
    with Monitor(model := model_of(), directory, every=10, quiet=True) as monitor:
        train(model, monitor, 20)
    study = Study.load(directory)
    assert study.runs()["run"].to_list() == ["run", "run-2"]
    assert len(study.log()) == 60
    with Monitor(model, directory, every=10, quiet=True) as monitor:
        train(model, monitor, 5, first=15)
    log = Study.load(directory).log()
    assert log.group_by("run", maintain_order=True).agg(pl.col("step").max())["step"].to_list() == [40, 20]


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


def test_a_run_that_was_not_monitored_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "study.db")
    store.put_run("run", 0, "series", None, "")
    store.append_log("run", {7: {"loss": 1.0}})
    store.close()
    with Monitor(model := model_of(), tmp_path, name="run", every=10, quiet=True) as monitor:
        train(model, monitor, 5, first=3)
    store = Store(tmp_path / "study.db")
    assert store.log_rows("run") == {7: {"loss": 1.0}}
    assert sorted(store.log_rows("run-2")) == [4, 5, 6, 7, 8]
    store.close()


def test_a_study_can_be_read_while_it_grows(tmp_path: Path) -> None:
    model = model_of()
    monitor = Monitor(model, tmp_path / "run", every=5, quiet=True)
    train(model, monitor, 20)
    study = Study.load(tmp_path / "run")
    assert study.runs()["status"].to_list() == ["running"]
    monitor.close()
    assert len(study.log()) == 20


def stored(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a study but those that tell how long measuring took, without their numbers."""
    queries = {
        "measured": "SELECT run, step, layer, role, probe, options, key, flag, diagrams, statistic, value "
        "FROM measurements JOIN features ON measurement = id",
        **{
            table: f"SELECT * FROM {table}" for table in ("runs", "log_nan", "checkpoints", "layers", "kinds", "errors")
        },
        "log": f"SELECT run, step, {', '.join(COLUMNS)} FROM log",
        "log_targets": "SELECT run, step, target, unit, value FROM log_targets",
        "diagrams": "SELECT file, content FROM diagrams WHERE file IN (SELECT diagrams FROM measurements)",
    }
    with closing(sqlite3.connect(f"file:{directory / 'study.db'}?mode=ro", uri=True)) as c:
        return {name: sorted(c.execute(query).fetchall(), key=repr) for name, query in queries.items()}


def attempts_of(rng: random.Random, n_kills: int, steps: int) -> list[Attempt]:
    """A run that is killed at random steps and goes on from any earlier save; last, it is complete."""
    every, attempts, first = rng.choice(list(EVERY)), list[Attempt](), 0
    for _ in range(n_kills):
        kill_at = rng.randint(first + 1, min(first + steps // 3, steps))
        attempts.append(Attempt(steps, kill_at, first if attempts else None, rng.random() < 0.5, every))
        n_saves = (kill_at - attempts[-1].mid_step) // SAVE_EVERY
        first = SAVE_EVERY * rng.choice([n_saves, n_saves, n_saves, rng.randint(0, n_saves)])
    return [*attempts, Attempt(steps, resume_at=first if attempts else None, every=every)]


def made(folder: Path, cases: dict[str, list[Attempt]]) -> str:
    """Make all attempts of some cases; return what was printed."""
    (folder / "cases.json").write_text(json.dumps({n: [asdict(a) for a in of] for n, of in cases.items()}))
    command = [sys.executable, "-m", "monitored", str(folder), str(folder / "cases.json")]
    one_thread = {
        f"{name}_NUM_THREADS": "1" for name in ("OMP", "NUMBA", "OPENBLAS", "MKL")
    }  # others do not survive a fork
    result = subprocess.run(
        command,
        cwd=Path(__file__).parents[1] / "support",
        env={**os.environ, **one_thread},
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stderr.decode()


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_that_of_one_never_killed(tmp_path: Path) -> None:
    cases: dict[str, list[Attempt]] = {}
    kills = repeated([(2, 63), (1, 60), (7, 100)])
    for seed, (n_kills, steps) in enumerate(kills):
        killed = attempts_of(random.Random(seed), n_kills, steps)
        again = replace(killed[-1], resume_at=None)
        cases |= {f"killed {seed}": killed, f"undisturbed {seed}": [again], f"again {seed}": [*killed, again]}
    assert "disagrees" not in made(tmp_path, cases)
    for seed in range(len(kills)):
        expected = stored(tmp_path / f"undisturbed {seed}" / "run")
        assert stored(tmp_path / f"killed {seed}" / "run") == expected
        assert stored(tmp_path / f"again {seed}" / "run") == expected


def test_a_finished_script_that_is_started_again_changes_nothing(run: tuple[Path, list[float]]) -> None:
    directory, _ = run
    model = model_of()
    with Monitor(model, directory, every=10, budget=0.5, quiet=True) as monitor:
        train(model, monitor, 20, first=40)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    with Monitor(model, directory, every=10, quiet=True) as monitor:
        train(model, monitor, 0, first=60)
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before


def test_what_is_measured_again_and_disagrees_is_said_once_and_not_stored(
    run: tuple[Path, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = run
    rows = [row for row in stored(directory)["measured"] if row[1] == 40]
    with Monitor(model := model_of().double(), directory, every=10, quiet=True) as monitor:
        monitor.attach(torch.optim.SGD(model.parameters(), lr=1e-2), step=40)
    said = capsys.readouterr().err
    assert said.count("step 40, measured again, disagrees with what is stored, which is kept") == 1
    assert [row for row in stored(directory)["measured"] if row[1] == 40] == rows


class Broken(Exception):
    """A fault of the monitor's own."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["end_step", "handle", "_dispatch"])
def test_a_failure_is_said_once_and_training_goes_on(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise Broken("a fault")

    def losses(name: str) -> list[float]:
        with Monitor(model := model_of(), tmp_path / name, every=5, quiet=True) as monitor:
            return train(model, monitor, 20)

    undisturbed = losses("undisturbed")
    monkeypatch.setattr(Session, method, fail)
    capsys.readouterr()
    assert losses("run") == undisturbed
    assert capsys.readouterr().err.count("a fault; training continues without the monitor") == 1
    with locked(tmp_path / "run"):  # another process may write there
        pass


@pytest.mark.slow
def test_a_full_disk_is_said_once_and_nothing_is_lost_when_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, room = Store.append_log, list[bool]()

    def append_log(store: Store, *arguments: Any) -> None:
        if not room:
            raise ToposcopeError("study.db: database or disk is full; free some disk space")
        written(store, *arguments)

    monkeypatch.setattr(Store, "append_log", append_log)
    monkeypatch.setattr("toposcope.monitor.recording.RETRY_SECONDS", 0.0)
    model = model_of()
    monitor = Monitor(model, tmp_path / "run", every=5, quiet=True)
    train(model, monitor, 20)
    room.append(True)
    monitor.close()
    words = capsys.readouterr().err
    assert words.count("disk is full") <= 1
    assert len(Study.load(tmp_path / "run").log()) == 20


@pytest.mark.slow
def test_a_directory_in_use_is_said_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True)
    train(model, first, 5)
    second = Monitor(other := model_of(), tmp_path / "run", every=5, quiet=True)
    assert len(train(other, second, 5)) == 5
    second.close()
    first.close()
    assert "this process already runs this study" in capsys.readouterr().err
    assert len(Study.load(tmp_path / "run").log()) == 5


@pytest.mark.parametrize("budget", [0, 1, -0.1, 2.0])
def test_a_budget_is_a_share(budget: float, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="budget is"):
        Monitor(model_of(), tmp_path, budget=budget)


def test_a_saved_checkpoint_is_examined(tmp_path: Path) -> None:
    from safetensors.torch import save_file

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
    store = Store(tmp_path / "run" / "study.db")
    facts = json.loads(store.meta("monitor run") or "")
    store.close()
    assert facts["checkpoints"] == {"folder": str(saved), "steps": [1, 2, 3, 4, 5, 6]}
    assert study.findings().filter(severity="fault")["steps"].list.contains(5).any()
    assert len(list(saved.iterdir())) == 6
    alerts = study.alerts()
    assert alerts.filter(pl.col("check").str.starts_with("doctor")).height


@pytest.mark.slow
def test_a_checkpoint_that_is_gone_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True) as monitor:
        monitor.attach(torch.optim.SGD(model.parameters(), lr=1e-2))
        (tmp_path / "gone").mkdir()
        monitor.saved(tmp_path / "gone", 3)
        (tmp_path / "gone").rmdir()
        monitor.saved(tmp_path / "never", 4)
    assert Study.load(tmp_path / "run").findings().is_empty()
    said = capsys.readouterr().err
    assert "gone:" not in said
    assert "never: no such file or folder; not examined" in said


def test_a_model_without_matrices_has_norms_and_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    with Monitor(model, tmp_path / "run", every=5, budget=0.5, quiet=True) as monitor:
        train(model, monitor, 10)
    study = Study.load(tmp_path / "run")
    assert len(study.log()) == 10
    assert set(study.frame()["layer"]) == {"network"}
    assert "without the monitor" not in capsys.readouterr().err


def test_other_optimizers_and_parameters_that_cannot_be_measured_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of()
    model.register_parameter("counts", nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False))
    own = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.attach(torch.optim.SGD(model_of().parameters(), lr=1e-2))
        said = capsys.readouterr().err
        assert "none of the model's parameters" in said
        assert "counts: not measured, because its dtype is int64" in said
        monitor.attach(own)
        assert "second optimizer is ignored" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_that_is_deleted_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(model := model_of(), tmp_path / "run", every=5, quiet=True) as monitor:
        train(model, monitor, 5)
        for file in (tmp_path / "run").glob("study.db*"):
            file.unlink()
    assert capsys.readouterr().err.count("study.db: deleted during training") == 1


def test_what_is_not_recorded_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of()
    with Monitor(model, tmp_path / "run", quiet=True) as monitor:
        monitor.log(loss=1.0)
        monitor.log(loss=1.0)
        assert capsys.readouterr().err.count("log: nothing is recorded before monitor.attach(optimizer)") == 1
        with pytest.raises(ToposcopeError, match="attach: expected an optimizer, got Sequential"):
            monitor.attach(model)  # type: ignore[arg-type]
        monitor.attach(torch.optim.SGD(model.parameters(), lr=1e-2))
        for step in (1, 2):
            monitor.log(step=step, loss="high", parts=[1.0, 2.0], lr=0.1)
    assert capsys.readouterr().err.count("log: loss, parts: not a number; ignored") == 1


def test_probes_by_name(tmp_path: Path) -> None:
    with Monitor(model := model_of(), tmp_path / "run", probes=["controls"], quiet=True) as monitor:
        train(model, monitor, 2)
    assert "controls" in set(Study.load(tmp_path / "run").frame()["probe"])
    for probes, refusal in (
        (["neural_persistance"], "did you mean 'neural_persistence'"),
        ([{"name": "rips", "pooled": True}], "needs whole checkpoints"),
    ):
        with pytest.raises(ToposcopeError, match=refusal):
            Monitor(model, tmp_path / "other", probes=probes)


@pytest.mark.slow
@pytest.mark.parametrize("to_none", [True, False])
def test_a_layer_that_is_frozen_or_thawed_on_purpose_is_a_note_and_no_alert(
    to_none: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {31: ("2.weight", False), 43: ("0.bias", False), 57: ("2.weight", True), 64: ("0.bias", True)}

    def losses(directory: Path | None) -> list[float]:
        model, found = model_of(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        clock = SlowSteps()
        monitor = Monitor(model, directory or tmp_path / "none", every=1, quiet=True, clock=clock)
        if directory is not None:
            monitor.attach(optimizer)
        for step in range(1, 81):
            if step in changes:
                name, trained = changes[step]
                model.get_parameter(name).requires_grad_(trained)
            optimizer.zero_grad(set_to_none=to_none)
            loss = model(torch.randn(16, 8, generator=torch.Generator().manual_seed(step))).square().mean()
            loss.backward()
            clock.before_step(monitor)
            optimizer.step()
            # The gradients of thawed layers are those of a larger loss: a level, and no spike.
            monitor.log(loss=loss, grad_norm=100.0 if step >= 57 else 1 + step % 3)
            found.append(loss.item())
        monitor.close()
        return found

    assert losses(tmp_path / "run") == losses(None)
    notes = [
        "layer 2.weight is frozen since step 31 (requires_grad=False)",
        "layer 0.bias is frozen since step 43 (requires_grad=False)",
        "layer 2.weight is trained since step 57 (requires_grad=True)",
        "layer 0.bias is trained since step 64 (requires_grad=True)",
    ]
    said = capsys.readouterr().err
    assert [said.count(note) for note in notes] == [1, 1, 1, 1]
    study = Study.load(tmp_path / "run")
    assert [note.partition(": ")[2].partition(": ")[2] for note in study.notes() if note.startswith("run: ")] == notes
    assert study.alerts().is_empty()
    gradients = study.frame().filter(pl.col("statistic") == "gradient_norm", layer="2.weight")["step"].to_list()
    assert [step for step in gradients if 31 <= step < 57] == []


@pytest.mark.slow
def test_layers_outside_the_groups_of_the_optimizer_are_noted_and_new_ones_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of()
    head: nn.Linear = model[2]  # type: ignore[index]
    head.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    other = torch.optim.SGD(head.parameters(), lr=1e-2)  # updates that are not those of the attached optimizer
    with Monitor(model, tmp_path / "run", every=1, budget=0.5, quiet=True, clock=(clock := SlowSteps())) as monitor:
        monitor.attach(optimizer)
        for step in range(1, 25):
            if step == 5:
                head.requires_grad_(True)
            if step == 9:
                optimizer.add_param_group({"params": list(head.parameters())})
            if step == 12:
                assert "not measured" not in capsys.readouterr().err
                model[4] = nn.Linear(24, 4)  # type: ignore[operator]
            model(torch.ones(4, 8)).square().mean().backward()
            clock.before_step(monitor)
            optimizer.step()
            other.step()
    said = capsys.readouterr().err
    notes = Study.load(tmp_path / "run").notes()
    assert [note.split(": ", 2)[2] for note in notes if note.startswith("run: ")] == [
        "layers 2.weight, 2.bias are not updated since step 5: in no group of the optimizer",
        "layers 2.weight, 2.bias are trained since step 9 (added to the optimizer)",
    ]
    assert said.count("4.weight and 1 more: added after attach, so not measured") == 1
    updates = Study.load(tmp_path / "run").frame().filter(pl.col("statistic") == "update_norm", layer="2.weight")
    assert min(updates["step"]) >= 9
