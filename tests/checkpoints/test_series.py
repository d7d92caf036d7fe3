"""From a path to checkpoints in order."""

import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import ANALYSED, WRITERS, Writer, every_format, family_weights, model_folder, refused, torch_file
from small_checkpoints import safetensors_file as write_safetensors

from toposcope.checkpoints import Checkpoint, Series, series

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
        assert torch.equal(head.read(), family_weights(seed=checkpoint.step)["head.weight"])


# Folders


@every_format
def test_a_folder_of_checkpoints(write: Writer, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", write)
    found = series(folder)
    assert_is_the_run(found)
    assert (found.name, found.spec, found.ignored) == ("run", str(folder), ())
    assert [layer.name for layer in found[-1].analysed()] == ANALYSED


@pytest.mark.parametrize("names", ["step_{}.pt", "step{}.pt", "checkpoint-{}.safetensors", "{}.bin", "ckpt_{}.pth"])
def test_steps_are_sorted_as_numbers(names: str, tmp_path: Path) -> None:
    touch(tmp_path, *(names.format(step) for step in STEPS))
    found = series(tmp_path)
    assert found.steps == STEPS
    assert [Path(checkpoint.location).name for checkpoint in found] == [names.format(step) for step in STEPS]


def test_formats_may_be_mixed(tmp_path: Path) -> None:
    for step, write in enumerate(WRITERS.values()):
        write(tmp_path, step, family_weights(seed=step))
    found = series(tmp_path)
    assert found.steps == list(range(len(WRITERS)))
    for checkpoint in found:
        assert torch.equal(checkpoint.tensors()["head.weight"], family_weights(seed=checkpoint.step)["head.weight"])


def test_a_run_of_ours(tmp_path: Path) -> None:
    write_run(tmp_path / "small-1" / "checkpoints", write_safetensors)
    touch(tmp_path / "small-1", "log.csv", "config.json", "state.pt")
    found = series(tmp_path / "small-1")
    assert_is_the_run(found)
    assert (found.name, found.spec) == ("small-1", str(tmp_path / "small-1"))
    assert_is_the_run(series(tmp_path / "small-1" / "checkpoints"))


def test_a_study_of_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small-1" / "checkpoints", write_safetensors)
    touch(tmp_path, "study.toml")
    touch(tmp_path / "runs" / "not-begun", "log.csv")
    assert_is_the_run(series(tmp_path))


@pytest.mark.parametrize(("runs", "told"), [(["small-1", "small-2"], "small-1, small-2"), ([], "none yet")])
def test_a_study_of_several_runs_or_none_is_refused(runs: list[str], told: str, tmp_path: Path) -> None:
    touch(tmp_path, "study.toml")
    (tmp_path / "runs").mkdir()
    for run in runs:
        touch(tmp_path / "runs" / run / "checkpoints", "step_1.pt")
    with refused(tmp_path, told, f"{len(runs)} runs", str(tmp_path / "runs")):
        series(tmp_path)


def test_files_that_tell_no_step_are_ignored_and_told(tmp_path: Path) -> None:
    touch(tmp_path, "step_2.pt", "step_1.pt", "best.pt", "last.ckpt", "notes.txt", "config.json", ".step_3.pt")
    found = series(tmp_path)
    assert found.steps == [1, 2]
    assert list(found.ignored) == ["best.pt", "last.ckpt"]


def test_the_output_folder_of_a_trainer(tmp_path: Path) -> None:
    for step in (500, 1000):
        model_folder(".safetensors")(tmp_path, step, family_weights(seed=step))
    save_file(family_weights(), tmp_path / "model.safetensors")
    touch(tmp_path, "training_args.bin", "config.json")
    touch(tmp_path / "runs" / "Jan01", "events.out")
    found = series(tmp_path)
    assert found.steps == [500, 1000]
    assert list(found.ignored) == ["model.safetensors", "training_args.bin"]


def test_the_output_folder_of_a_trainer_that_shards(tmp_path: Path) -> None:
    for step in (500, 1000):
        model_folder(".safetensors", n_shards=3)(tmp_path, step, family_weights(seed=step))
    final = model_folder(".safetensors", n_shards=3)(tmp_path, 1000000, family_weights())
    for path in final.iterdir():
        path.rename(tmp_path / path.name)
    final.rmdir()
    assert series(tmp_path).steps == [500, 1000]


# One checkpoint


@every_format
def test_one_checkpoint_alone(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, 300, family_weights(seed=300))
    found = series(path)
    assert found.steps == [300]
    assert (found.name, found.spec, found[0].location) == (path.name, str(path), str(path))
    assert torch.equal(found[0].analysed()[0].read(), family_weights(seed=300)["head.weight"])


@every_format
def test_a_folder_of_one_checkpoint(write: Writer, tmp_path: Path) -> None:
    write(tmp_path, 300, family_weights())
    assert series(tmp_path).steps == [300]


def test_one_checkpoint_need_not_tell_its_step(tmp_path: Path) -> None:
    torch_file()(tmp_path, 1, family_weights()).rename(tmp_path / "best.pt")
    for path in (tmp_path / "best.pt", tmp_path):
        found = series(path)
        assert found.steps == [0]
        assert found[0].location == str(tmp_path / "best.pt")
    folder = model_folder(".safetensors", name="final")(tmp_path, 1, family_weights())
    assert series(folder).steps == [0]


def test_a_folder_tells_the_step_of_the_one_file_in_it(tmp_path: Path) -> None:
    for folder in (tmp_path / "step70", tmp_path / "checkpoint-70"):
        folder.mkdir()
        save_file(family_weights(), folder / "model.safetensors")
        assert series(folder).steps == [70]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    torch.save(family_weights(), tmp_path / os.fsdecode(b"step_1\xff.pt"))
    (checkpoint,) = series(tmp_path)
    assert len(checkpoint.fingerprint()) == 64
    assert checkpoint.layers()


@pytest.mark.parametrize("name", ["safetensors", "nanoGPT", "OLMo-core"])
def test_listing_is_quick(name: str, tmp_path: Path) -> None:
    weights = {f"layers.{k}.{part}.weight": torch.zeros(4, 4) for k in range(30) for part in "abcde"}
    for step in range(12):
        WRITERS[name](tmp_path, step, weights)
    begin = time.process_time()
    count = sum(len(checkpoint.layers()) for checkpoint in series(tmp_path))
    assert count == 12 * 150
    # A tenth of that on an idle machine.
    assert time.process_time() - begin < count / 1000


def test_a_model_folder_with_what_a_trainer_leaves_beside_it(tmp_path: Path) -> None:
    folder = model_folder(".safetensors")(tmp_path, 500, family_weights())
    touch(folder, "rng_state_0.pth", "scheduler.pt", "training_args.bin", "trainer_state.json")
    assert series(folder).steps == [500]
    assert series(folder)[0].location == str(folder)


# Paths


def test_a_path_as_text_with_a_home_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "run")
    for path in (str(tmp_path / "run"), f"{tmp_path}/run/", "~/run", ".", "../run"):
        found = series(path)
        assert found.name == "run"
        assert_is_the_run(found)


def test_a_model_folder_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_folder(".safetensors")(tmp_path, 500, family_weights()))
    assert series(".").steps == [500]


def test_opening_a_series_opens_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    write_run(tmp_path)
    monkeypatch.setattr("toposcope.checkpoints.formats.entries", entries)
    assert series(tmp_path).steps == STEPS


def test_a_damaged_checkpoint_spares_the_others(tmp_path: Path) -> None:
    write_run(tmp_path)
    damaged = tmp_path / "step_000040.pt"
    damaged.write_bytes(b"")
    found = series(tmp_path)
    assert found.steps == STEPS
    with refused(damaged):
        found[2].analysed()
    assert [layer.name for layer in found[3].analysed()] == ANALYSED


# A series is a sequence


def test_slices(tmp_path: Path) -> None:
    touch(tmp_path, "best.pt", *(f"step_{step}.pt" for step in STEPS))
    whole = series(tmp_path)
    for part in (slice(2), slice(1, -1), slice(None, None, 2), slice(-2, None), slice(None, None, -1), slice(9, None)):
        found = whole[part]
        assert isinstance(found, Series)
        assert found.steps == STEPS[part]
        assert (found.name, found.spec, found.ignored) == (whole.name, whole.spec, whole.ignored)


def test_a_sequence_of_checkpoints(tmp_path: Path) -> None:
    touch(tmp_path, *(f"step_{step}.pt" for step in STEPS))
    found = series(tmp_path)
    assert isinstance(found, Sequence)
    assert len(found) == len(STEPS)
    assert found[0] == Checkpoint(tmp_path / "step_0.pt", 0)
    assert found[-1].step == 20000
    assert [checkpoint.step for checkpoint in reversed(found)] == STEPS[::-1]
    assert found[2] in found
    with pytest.raises(IndexError):
        found[len(STEPS)]


# What is refused


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step_1.pt", "step_000001.pt"),
        ("step_1.pt", "step_1.safetensors"),
        ("checkpoint-1.pt", "step1.pt"),
        ("optimizer_step_1.pt", "step_1.pt"),
    ],
)
def test_two_checkpoints_of_one_step_are_refused(first: str, second: str, tmp_path: Path) -> None:
    touch(tmp_path, "step_0.pt", first, second, "step_2.pt")
    with refused(tmp_path, first, second, "step 1;"):
        series(tmp_path)


@pytest.mark.parametrize("names", [[], ["notes.txt", "config.json", ".hidden.pt"]])
def test_a_folder_without_checkpoints_is_refused(names: list[str], tmp_path: Path) -> None:
    touch(tmp_path / "run", *names)
    with refused(tmp_path / "run", "no checkpoints", ".safetensors"):
        series(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").mkdir()
    with refused(tmp_path / "run", "no checkpoints"):
        series(tmp_path / "run")


def test_several_checkpoints_without_a_step_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "best.pt", "last.pt")
    with refused(tmp_path, "2 checkpoints", "none with a step", "step_000100"):
        series(tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in ("gone", "gone.pt"):
        with refused(tmp_path / name, "no such file or folder"):
            series(tmp_path / name)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "step_1.npz")
    with refused(tmp_path / "step_1.npz", "no checkpoints", ".safetensors"):
        series(tmp_path / "step_1.npz")


@pytest.mark.reference
@pytest.mark.parametrize(("size", "count"), [("tiny-3k", 2936), ("med-21k", 20640)])
def test_parameters_of_the_published_checkpoints(published_study: Path, size: str, count: int) -> None:
    assert series(published_study / "checkpoints" / size)[-1].n_parameters() == count


def test_masks_are_no_parameters_and_an_untied_head_counts(tmp_path: Path) -> None:
    tensors = {
        "embed_in.weight": torch.zeros(4, 3),
        "embed_out.weight": torch.ones(4, 3),
        "layers.0.attention.bias": torch.ones(1, 1, 8, 8),
        "layers.0.attention.dense.bias": torch.ones(3),
        "layers.0.attention.rotary_emb.inv_freq": torch.ones(2),
        "steps": torch.tensor([1]),
    }
    save_file(tensors, tmp_path / "step_1.safetensors")
    assert series(tmp_path)[0].n_parameters() == 4 * 3 * 2 + 3


def test_a_checkpoint_goes_to_another_process_without_its_open_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(model_folder(".safetensors")(tmp_path, 500, family_weights()), 500)
    names = [layer.name for layer in checkpoint.layers()]
    copied = pickle.loads(pickle.dumps(checkpoint))  # noqa: S301 - our own bytes
    assert copied == checkpoint
    assert [layer.name for layer in copied.layers()] == names


def test_a_head_of_another_dtype_is_not_tied(tmp_path: Path) -> None:
    tensors = {"embed_in.weight": torch.zeros(4, 3), "embed_out.weight": torch.zeros(4, 3, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "step_1.safetensors")
    assert series(tmp_path)[0].n_parameters() == 4 * 3 * 2
