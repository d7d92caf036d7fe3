"""Folders as trainers leave them: the one run in them is found, several are named, none is said."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import family_weights, refused

from toposcope.checkpoints import Checkpoint, series


def saved(path: Path, step: int = 0) -> None:
    """One checkpoint: of Lightning, of nanoGPT, or plain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(family_weights(), path)
    elif path.suffix == ".ckpt":
        state = {f"model.{name}": tensor for name, tensor in family_weights().items()}
        torch.save({"state_dict": state, "global_step": step, "pytorch-lightning_version": "2.5.0"}, path)
    else:
        torch.save({"model": family_weights(), "iter_num": step, "optimizer": {"state": {}}}, path)


def lightning(folder: Path, *versions: int) -> None:
    for version in versions:
        checkpoints = folder / "lightning_logs" / f"version_{version}" / "checkpoints"
        for step in (100, 200):
            saved(checkpoints / f"epoch={step // 100}-step={step}.ckpt", step)
        saved(checkpoints / "last.ckpt", 200)
        (checkpoints.parent / "metrics.csv").write_text("step,loss\n100,3.5\n200,3.1\n")


@pytest.mark.parametrize("below", ["", "lightning_logs", "lightning_logs/version_0"])
def test_the_one_version_of_lightning(below: str, tmp_path: Path) -> None:
    lightning(tmp_path, 0)
    opened = series(tmp_path / below)
    assert opened.steps == [100, 200]
    assert opened.ignored == ("last.ckpt",)
    assert opened.notes[-1] == "not among the steps: last.ckpt"
    assert len(opened.notes) == 1 + (below != "lightning_logs/version_0")
    assert len(opened[0].analysed()) == 9


def test_a_model_beside_the_versions_of_lightning_is_not_the_run(tmp_path: Path) -> None:
    lightning(tmp_path, 0)
    saved(tmp_path / "final.pt", 200)
    opened = series(tmp_path)
    assert (opened.steps, opened.ignored) == ([100, 200], ("last.ckpt", "final.pt"))


def test_the_state_of_a_run_is_not_its_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "runs" / "tiny" / "state.safetensors")
    saved(tmp_path / "runs" / "tiny" / "checkpoints" / "step_3.safetensors")
    assert series(tmp_path).steps == [3]


@pytest.mark.parametrize("versions", [1, 2])
def test_versions_of_one_checkpoint_each(versions: int, tmp_path: Path) -> None:
    for k in range(versions):
        saved(tmp_path / "lightning_logs" / f"version_{k}" / "checkpoints" / "last.ckpt", 7)
    if versions == 1:
        assert series(tmp_path).steps == [7]
    else:
        with refused(tmp_path, "2 runs", "version_0"):
            series(tmp_path)


def test_the_output_folder_of_a_trainer(tmp_path: Path) -> None:
    for step in (500, 1000):
        saved(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    saved(tmp_path / "model.safetensors")
    (tmp_path / "runs" / "Nov25").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "runs/Nov25/events.out.tfevents.1"):
        (tmp_path / name).write_text("{}")
    opened = series(tmp_path)
    assert opened.steps == [500, 1000]
    assert opened.ignored == ("model.safetensors",)


def test_the_out_folder_of_nanogpt(tmp_path: Path) -> None:
    saved(tmp_path / "out" / "ckpt.pt", 300)
    (tmp_path / "out" / "train.log").write_text("iter 300: loss 3.1\n")
    for below in ("", "out"):
        assert series(tmp_path / below).steps == [300]


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["runA_step100.pt", "runB_step200.pt"], None),
        (["seed0-checkpoint-1.pt", "seed0-checkpoint-2.pt", "seed1-checkpoint-3.pt", "seed1-checkpoint-4.pt"], None),
        (["gpt_step100.pt", "gpt_step200.pt", "other_step300.pt"], [100, 200]),
        (["ckpt_100.pt", "ckpt_200.pt", "best_ckpt_150.pt", "final.pt"], [100, 200]),
        (["epoch=1-step=100.pt", "epoch=2-step=200.pt", "val_loss=2.1-step=300.pt"], [100, 200, 300]),
        (["stage1-step1000.pt", "stage2-step2000.pt", "2024-05-01_step3000.pt"], [1000, 2000, 3000]),
    ],
)
def test_two_runs_in_one_folder_are_not_one(names: list[str], steps: list[int] | None, tmp_path: Path) -> None:
    for name in names:
        saved(tmp_path / name)
    if steps is None:
        prefix = names[0].partition("1")[0] if "step" in names[0] else "seed0\\-checkpoint\\-"
        with refused(tmp_path, "2 runs by their names", names[0], f"--step-pattern '{prefix}(\\d+)'"):
            series(tmp_path)
        assert len(series(tmp_path, pattern=f"{prefix}(\\d+)")) == len(names) // 2
    else:
        opened = series(tmp_path)
        assert opened.steps == steps
        assert all(name in " ".join(opened.notes) for name in opened.ignored)


@pytest.mark.parametrize(
    "aside",
    [
        *("ema_ckpt_{}.pt", "ckpt_{}_ema.pt", "swa_ckpt_{}.pt", "ckpt_{}_rank1_optim.pt", "optimizer_{}.pt"),
        *("ckpt_{}_rng.pt", "ckpt_{}_rank0.pt", "rank1_ckpt_{}.pt", "ckpt_{}_best.pt", "epoch_{}.pt"),
    ],
)
def test_what_lies_next_to_every_step_is_set_aside_and_named(aside: str, tmp_path: Path) -> None:
    beside = [aside.format(step) for step in (100, 200)]
    for name in ("step_100.pt", "step_200.pt", "step_300.pt", *beside):
        saved(tmp_path / name.replace("step", "step" if "epoch" in aside else "ckpt"))
    opened = series(tmp_path)
    assert (opened.steps, sorted(opened.ignored)) == ([100, 200, 300], sorted(beside))
    assert opened.notes == (f"not among the steps: {beside[0]} and 1 like it",)


@pytest.mark.parametrize("word", ["last", "final", "copy", "fp16"])
def test_a_step_saved_twice_is_one_and_once_is_a_step(word: str, tmp_path: Path) -> None:
    for name in ("ckpt_1.pt", "ckpt_2.pt", f"ckpt_2_{word}.pt", f"ckpt_3_{word}.pt"):
        saved(tmp_path / name)
    opened = series(tmp_path)
    assert (opened.steps, opened.ignored) == ([1, 2, 3], (f"ckpt_2_{word}.pt",))


@pytest.mark.parametrize("names", [["ckpt_{}_rank0.pt", "ckpt_{}_rank1.pt"], ["rank0_step_{}.pt", "rank1_step_{}.pt"]])
def test_files_by_rank_alone_are_refused(names: list[str], tmp_path: Path) -> None:
    for step in (1, 2):
        for name in names:
            saved(tmp_path / name.format(step))
    with refused(tmp_path, "ranks or parts of one model"):
        series(tmp_path)


def test_several_runs_are_named(tmp_path: Path) -> None:
    lightning(tmp_path, 0, 1)
    for below in ("", "lightning_logs"):
        with refused(tmp_path / below, "2 runs", "version_0", "version_1", "name one"):
            series(tmp_path / below)
    for run in ("a", "c/d"):
        saved(tmp_path / run / "step_1.safetensors")
        saved(tmp_path / run / "step_2.safetensors")
    with refused(tmp_path, "4 runs", "a, c/d"):
        series(tmp_path)


@pytest.mark.parametrize("names", [[], ["checkpoints/config.json"], ["notes.txt", "a/b/c.json", ".hidden.pt"]])
def test_an_empty_run_says_what_was_expected(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with refused(tmp_path, "no checkpoints; expected"):
        series(tmp_path)


@pytest.mark.parametrize("stem", ["ft-model", "model", "pytorch_model"])
def test_the_only_shard_of_a_model_is_the_model(stem: str, tmp_path: Path) -> None:
    for epoch in (0, 1):
        saved(tmp_path / f"epoch_{epoch}" / f"{stem}-00001-of-00001.safetensors")
        (tmp_path / f"epoch_{epoch}" / "config.json").write_text("{}")
    opened = series(tmp_path)
    assert opened.steps == [0, 1]
    assert len(opened[0].entries) == len(family_weights())


def test_the_folder_of_accelerate_is_its_first_model(tmp_path: Path) -> None:
    save_file(family_weights(), tmp_path / "model.safetensors")
    save_file(family_weights(1), tmp_path / "model_1.safetensors")
    for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl"):
        torch.save({"shadow_params": [torch.ones(3, 3)]}, tmp_path / name)
    (checkpoint,) = series(tmp_path)
    assert [entry.name for entry in checkpoint.entries] == [
        e.name for e in Checkpoint(tmp_path / "model.safetensors", 0).entries
    ]
    assert checkpoint.notes == ["also holds other models: model_1.safetensors; name the file to read one"]
