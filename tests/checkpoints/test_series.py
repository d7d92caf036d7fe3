"""From a path to checkpoints in order."""

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import ANALYSED, WRITERS, Writer, every_format, family_weights, model_folder, refused, torch_file
from small_checkpoints import safetensors_file as write_safetensors
from stored_tensors import tensor_of

from toposcope.checkpoints import Checkpoint, Series, series
from toposcope.checkpoints.sources import LocalSource
from toposcope.errors import ToposcopeError

STEPS = [0, 5, 40, 300, 1000, 20000]
"""Sorted as text, 1000 would come before 300."""


def touch(folder: Path, *names: str) -> None:
    """Files whose content no series looks at."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def write_run(folder: Path, write: Writer = WRITERS["pt model_state_dict"]) -> Path:
    """One checkpoint a step, written in another order."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in [300, 0, 20000, 5, 1000, 40]:
        write(folder, step, family_weights(seed=step))
    return folder


def assert_is_the_run(found: Series) -> None:
    """Every checkpoint under its own step, with the weights written there."""
    assert found.steps == STEPS
    for checkpoint in found:
        head = checkpoint.analysed()[0]
        assert torch.equal(tensor_of(head), family_weights(seed=checkpoint.step)["head.weight"])


# Folders


@every_format
def test_a_folder_of_checkpoints(write: Writer, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", write)
    found = series(folder)
    assert_is_the_run(found)
    assert (found.name, found.spec, found.ignored) == ("run", str(folder), ())
    assert [layer.name for layer in found[-1].analysed()] == ANALYSED


def test_a_run_of_ours(tmp_path: Path) -> None:
    write_run(tmp_path / "small-1" / "checkpoints", write_safetensors)
    touch(tmp_path / "small-1", "log.csv", "config.json", "state.safetensors")
    found = series(tmp_path / "small-1")
    assert_is_the_run(found)
    assert (found.name, found.spec, found.ignored) == ("small-1", str(tmp_path / "small-1"), ())
    assert_is_the_run(series(tmp_path / "small-1" / "checkpoints"))


# One checkpoint


@every_format
def test_one_checkpoint_alone(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, 300, family_weights(seed=300))
    found = series(path)
    assert found.steps == [300]
    assert (found.name, found.spec, found[0].location) == (path.name, str(path), str(path))
    assert torch.equal(tensor_of(found[0].analysed()[0]), family_weights(seed=300)["head.weight"])
    assert series(tmp_path).steps == [300]


def test_one_checkpoint_need_not_tell_its_step(tmp_path: Path) -> None:
    torch_file()(tmp_path, 1, family_weights()).rename(tmp_path / "best.pt")
    for path in (tmp_path / "best.pt", tmp_path):
        found = series(path)
        assert found.steps == [0]
        assert found[0].location == str(tmp_path / "best.pt")
    folder = model_folder(".safetensors", name="final")(tmp_path, 1, family_weights())
    assert series(folder).steps == [0]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    touch(tmp_path, os.fsdecode(b"step_1\xff.pt"), os.fsdecode(b"notes\xff.txt"), "config.json")
    with refused(tmp_path, "no checkpoints that can be read", r"step_1\udcff.pt"):
        series(tmp_path)
    touch(tmp_path, "step_2.pt", "best.pt")
    touch(tmp_path / os.fsdecode(b"step_3\xff"), "model.safetensors")
    found = series(tmp_path)
    assert found.steps == [2]
    assert found.ignored == ("best.pt", r"step_1\udcff.pt", r"step_3\udcff")
    for path in (tmp_path / os.fsdecode(b"step_1\xff.pt"), os.fsdecode(b"\xff/gone")):
        with pytest.raises(ToposcopeError, match="not UTF-8; rename it"):
            series(path)


@pytest.mark.parametrize(
    ("folder", "names", "weights"),
    [
        ("step-000100", ["lit_model.pth", "model_config.yaml", "hyperparameters.yaml"], "lit_model.pth"),
        ("step100-unsharded", ["model.pt", "optim.pt", "train.pt", "config.yaml"], "model.pt"),
        (
            "global_step100",
            ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"],
            "mp_rank_00_model_states.pt",
        ),
        ("step100", ["weights.safetensors", "config.json", "logs/a.pt"], "weights.safetensors"),
        (
            "checkpoint-100",
            ["adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin"],
            "adapter_model.safetensors",
        ),
    ],
)
def test_a_folder_that_holds_one_file_of_weights(folder: str, names: list[str], weights: str, tmp_path: Path) -> None:
    where = tmp_path / "run" / folder
    for name in names:
        touch((where / name).parent, Path(name).name)
    (save_file if weights.endswith(".safetensors") else torch.save)(family_weights(), where / weights)
    (tmp_path / "run" / "config.json").write_text("{}")
    for spec in (where, where.parent):
        (checkpoint,) = series(spec)
        assert (checkpoint.step, checkpoint.location) == (100, str(where))
        if not (where / "config.json").exists():
            assert [layer.name for layer in checkpoint.analysed()] == ANALYSED


# Links


def test_a_link_is_known_by_its_own_name(tmp_path: Path) -> None:
    """As the cache of the hub has it: a snapshot of links to files that are called by their hashes."""
    blob, snapshot = tmp_path / "blobs" / "deadbeef", tmp_path / "snapshots" / "abc"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    save_file(family_weights(), blob)
    (snapshot / "model.safetensors").symlink_to("../../blobs/deadbeef")
    (tmp_path / "step77.safetensors").symlink_to(blob)
    (tmp_path / "step_500").symlink_to(snapshot)
    for name, step in (("snapshots/abc/model.safetensors", 0), ("step77.safetensors", 77), ("step_500", 500)):
        for spec in (str(tmp_path / name), f"file://{tmp_path / name}"):
            found = series(spec)
            assert (found.name, found.steps) == (Path(name).name, [step])
            assert [layer.name for layer in found[0].analysed()] == ANALYSED


def test_links_in_circles_and_to_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder)
    (folder / "self").symlink_to("self")
    (folder / "up").symlink_to("..")
    for name in ("step_7.pt", "best.pt", "notes.txt"):
        (folder / name).symlink_to("nowhere")
    found = series(folder)
    assert_is_the_run(found)
    assert found.ignored == ("best.pt", "step_7.pt")
    listed = LocalSource(folder).files()
    assert [name for name in listed if not name.startswith("step_0")] == [
        "best.pt/",
        "notes.txt/",
        "self/",
        "step_7.pt/",
    ]
    with refused(folder / "best.pt", "No such file"):
        listed["best.pt/"].read(0, 0)


def test_a_folder_that_may_not_be_read_spares_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: Path) -> object:
        if Path(path).name in ("step_7", "private"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    listing = os.scandir
    touch(tmp_path / "step_7", "model.safetensors")
    touch(tmp_path / "private", "notes.txt")
    write_run(tmp_path)
    monkeypatch.setattr(os, "scandir", scandir)
    found = series(tmp_path)
    assert_is_the_run(found)
    assert found.ignored == ("step_7",)


# Where a run keeps its checkpoints

OF_A_TRAINER = ("rng_state_0.pth", "scheduler.pt", "training_args.bin", "trainer_state.json")


@pytest.mark.parametrize(
    ("names", "steps", "ignored"),
    [
        (["model.safetensors", "checkpoint/readme.txt"], [0], []),
        (["step_1.pt", "checkpoints/notes.txt"], [1], []),
        (["step_1.pt", "best.pt", "checkpoints/step_2.pt", "checkpoints/step_3.pt"], [1], ["best.pt", "checkpoints"]),
        (
            ["final.pt", "state.safetensors", "checkpoints/step_2.pt", "checkpoints/last.pt"],
            [2],
            ["last.pt", "final.pt"],
        ),
        (["checkpoints/step_2.pt", "checkpoint/step_3.pt"], [2], ["checkpoint"]),
        (["model.safetensors.index.json", "checkpoints/step_2.pt"], [2], ["model.safetensors.index.json"]),
        (["last.pt", "checkpoint/model.safetensors", "checkpoint/config.json"], [0], ["last.pt"]),
        (["step_2.pt", "step_1.pt", "best.pt", "last.ckpt", "a.txt", ".step_3.pt"], [1, 2], ["best.pt", "last.ckpt"]),
        ([f"checkpoint-5/{name}" for name in ("model.safetensors", *OF_A_TRAINER)], [5], []),
    ],
)
def test_what_lies_beside_a_folder_of_checkpoints(
    names: list[str], steps: list[int], ignored: list[str], tmp_path: Path
) -> None:
    for name in names:
        touch((tmp_path / name).parent, Path(name).name)
    found = series(tmp_path)
    assert found.steps == steps
    assert list(found.ignored) == ignored


# Paths


def test_a_path_as_text_with_a_home_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "run")
    for path in (str(tmp_path / "run"), f"{tmp_path}/run/", "~/run", ".", "../run"):
        found = series(path)
        assert found.name == "run"
        assert_is_the_run(found)


# A series is a sequence


def test_slices_of_a_series_of_which_no_checkpoint_is_opened(tmp_path: Path) -> None:
    touch(tmp_path, "best.pt", *(f"step_{step}.pt" for step in STEPS))
    whole = series(tmp_path)
    assert isinstance(whole, Sequence)
    assert whole[0] == Checkpoint(tmp_path / "step_0.pt", 0)
    with pytest.raises(IndexError):
        whole[len(STEPS)]
    for part in (slice(2), slice(1, -1), slice(None, None, 2), slice(-2, None), slice(None, None, -1), slice(9, None)):
        found = whole[part]
        assert isinstance(found, Series)
        assert found.steps == STEPS[part]
        assert (found.name, found.spec, found.ignored) == (whole.name, whole.spec, whole.ignored)


# What is refused


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "a study of several runs": (
        ["study.toml", "runs/small-1/checkpoints/step_1.pt", "runs/small-2/checkpoints/step_1.pt"],
        ["2 runs", "runs/small-1, runs/small-2", "name one"],
    ),
    "a folder of runs": (
        [f"{run}/{name}" for run in "ab" for name in ("run.json", "state.safetensors", "checkpoints/step_1.pt")],
        ["a folder of 2 runs, among them a, b; name one, such as"],
    ),
    "a study without checkpoints": (["study.toml"], ["keeps no checkpoints itself", "name the folder of its series"]),
    "several without a step": (["best.pt", "last.pt"], ["2 checkpoints", "none with a step", "step_000100"]),
    "several files of weights in a folder": (["step_1/a.pt", "step_1/b.pt"], ["none with a step in its name"]),
    "a folder of an optimizer": (["step_1/optim.pt", "step_1/train.pt"], ["no checkpoints"]),
    "one shard": (["step_1/w-00001-of-00002.pt", "step_1/c.json"], ["no checkpoints"]),
    "one step, padded": (["step_0.pt", "step_1.pt", "step_000001.pt"], ["step_1.pt", "step_000001.pt", "step 1;"]),
    "one step, two formats": (["step_1.pt", "step_1.safetensors"], ["step_1.pt", "step_1.safetensors", "step 1;"]),
    "one step, two words": (["checkpoint-1.pt", "step1.pt", "step_2.pt"], ["checkpoint-1.pt", "step1.pt", "step 1;"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    names, words = REFUSED[what]
    for name in names:
        touch((tmp_path / name).parent, Path(name).name)
    with refused(tmp_path, *words):
        series(tmp_path)


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "step_1.json")
    for spec, words in (
        (tmp_path / "gone.pt", "no such file"),
        (tmp_path / "step_1.json", "no checkpoints"),
        ("~nobody-of-that-name/x", "cannot be accessed"),
        ("x" * 300, "too long"),
        (tmp_path / "a\0b", "no such file"),
    ):
        with pytest.raises(ToposcopeError, match=words) as caught:
            series(spec)
        assert len(str(caught.value)) < 400


def test_a_checkpoint_goes_to_another_process_without_its_open_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(model_folder(".safetensors")(tmp_path, 500, family_weights()), 500)
    names = [layer.name for layer in checkpoint.layers()]
    copied = pickle.loads(pickle.dumps(checkpoint))  # noqa: S301 - our own bytes
    assert copied == checkpoint
    assert [layer.name for layer in copied.layers()] == names


def test_a_choice_that_is_none_is_refused(tmp_path: Path) -> None:
    steps: Any
    for steps in ("0,10", []):
        with pytest.raises(ToposcopeError, match="steps is"):
            series(tmp_path, steps=steps)
