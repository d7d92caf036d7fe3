"""``toposcope doctor``: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from toposcope.cli import toposcope


def weights(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {f"layers.{k}.mlp.fc1.weight": torch.randn(16, 16, generator=generator) for k in range(2)}
    moved = torch.Generator().manual_seed(1)
    for _ in range(step // 100):
        drawn = {name: tensor + 0.05 * torch.randn(16, 16, generator=moved) for name, tensor in drawn.items()}
    return drawn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in range(0, 1000, 100):
        save_file(weights(step), tmp_path / f"step_{step:06d}.safetensors")
    return tmp_path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(toposcope, ["doctor", *map(str, arguments)])


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_a_clean_series(folder: Path, deep: list[str]) -> None:
    done = run(folder, *deep)
    assert done.exit_code == 0
    assert "10 checkpoints, 20 tensors: 0 faults, 0 notes" in done.stdout


def test_a_fault_is_shown_and_told_by_the_exit_code(folder: Path) -> None:
    (folder / "step_000300.safetensors").write_bytes((folder / "step_000900.safetensors").read_bytes())
    done = run(folder)
    assert done.exit_code == 1
    assert "final weights" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("10 checkpoints, 20 tensors: 1 fault, 0 notes")


def test_notes_are_no_faults(folder: Path) -> None:
    save_file(weights(0), folder / "step_000001.safetensors")
    done = run(folder)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("11 checkpoints, 22 tensors: 0 faults, 1 note")


def test_json(folder: Path) -> None:
    bad = weights(400)
    bad["layers.1.mlp.fc1.weight"][3, 4] = float("nan")
    save_file(bad, folder / "step_000400.safetensors")
    (folder / "step_000700.safetensors").unlink()
    done = run(folder, "--deep", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (told["series"], told["deep"], told["checkpoints"], told["faults"]) == (str(folder), True, 9, 2)
    assert [(f["check"], f["severity"], f["steps"], f["layer"]) for f in told["findings"]] == [
        ("non-finite", "fault", [400], "layers.1.mlp.fc1.weight"),
        ("missing steps", "fault", [700], ""),
    ]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert run(tmp_path / "nowhere").exit_code == 2
    assert run(tmp_path).exit_code != 0


def test_a_step_pattern(folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(folder / f"at-{int(path.stem[5:])}k.safetensors")
    done = run(folder, "--step-pattern", r"at-(\d+)k")
    assert done.exit_code == 0


def test_a_monitored_study_shows_what_was_found_when_checkpoints_were_saved(tmp_path: Path) -> None:
    from live_studies import live_study

    from toposcope.integrity import Finding
    from toposcope.study.store import Store

    live_study(tmp_path / "run", steps=20, every=10)
    assert "no checkpoint was examined" in str(run(tmp_path / "run").exception)
    store = Store(tmp_path / "run" / "study.db")
    store.put_findings("run", [Finding("non-finite", "fault", (10,), "a.weight", "a.weight: 1 value is NaN")])
    store.set_meta("examined run", "2")
    store.close()
    done = run(tmp_path / "run")
    assert done.exit_code == 1
    assert "checkpoints as they were saved: 1 faults, 0 notes" in done.stdout
    assert json.loads(run(tmp_path / "run", "--json").stdout)[0]["steps"] == [10]
