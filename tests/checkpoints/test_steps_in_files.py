"""The steps that files state, and several models in one file."""

import argparse
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import Weights, family_weights, model_folder, random_weights, refused
from stored_tensors import assert_holds, saved

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.sources import CheckpointError
from toposcope.checkpoints.steps import disagreement

WEIGHTS = random_weights({"embed.weight": (5, 4), "layers.0.fc.weight": (4, 4), "layers.0.fc.bias": (4,)})


def at(step: int) -> Weights:
    return family_weights(seed=step)


STEPS = [0, 5, 9]


def three() -> list[Weights]:
    return [at(step) for step in STEPS]


def by_step() -> dict[int, Weights]:
    return dict(zip(STEPS, three(), strict=True))


SEVERAL: dict[str, tuple[Callable[[], Any], str, int]] = {
    "a list and its steps": (lambda: {"checkpoints": three(), "checkpoint_epochs": STEPS}, "checkpoints.1", 1),
    "a counter in each": (lambda: [{"step": torch.tensor(step), "model": at(step)} for step in STEPS], "1", 1),
    "a default dictionary": (lambda: {"saved": collections.defaultdict(dict, by_step())}, "saved.5", 5),
    "whole numbers as keys": (by_step, "5", 5),
    "steps as keys": (lambda: {"a": 1} | {f"step_{k}": {"state_dict": w} for k, w in by_step().items()}, "step_5", 5),
}
"""What is saved, the key of the model of step 5, and the step that the key says."""


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("what", SEVERAL)
def test_several_steps_in_one_file_are_refused_with_the_keys(what: str, zipped: bool, tmp_path: Path) -> None:
    make, key, step = SEVERAL[what]
    path = saved(tmp_path / "run.pt", make(), _use_new_zipfile_serialization=zipped)
    (whole,) = series(tmp_path)
    with refused(
        path, "holds 3 models", f"choose one with {path}:", "save each in a file of its own, such as step_100"
    ):
        whole.layers()
    (chosen,) = series(f"{path}:{key}")
    assert chosen.step == step
    assert_holds(chosen, at(5))


def test_a_model_next_to_those_of_other_steps_is_read(tmp_path: Path) -> None:
    (checkpoint,) = series(saved(tmp_path / "run.pt", {"model": at(9), "checkpoints": three()}))
    assert_holds(checkpoint, at(9))
    assert checkpoint.notes[0].startswith("also holds checkpoints")


def test_lists_of_models_are_refused_or_named(tmp_path: Path) -> None:
    two = saved(tmp_path / "b.pt", {"model": at(0), "models": [at(0), at(1)]})
    assert series(two)[0].notes[0].startswith("also holds models")
    with refused(saved(tmp_path / "d.pt", {"model": [at(0), at(1)]}), "2 models", ":model.0"):
        Checkpoint(tmp_path / "d.pt", 0).layers()


# Steps inside a file


STATED: dict[str, tuple[dict[str, Any], int]] = {
    "nanoGPT": ({"iter_num": 300}, 300),
    "a tensor": ({"step": torch.tensor(300)}, 300),
    "a tensor of one": ({"step": torch.tensor([300.0])}, 300),
    "a number of NumPy": ({"global_step": np.int64(300)}, 300),
    "a float": ({"iteration": 300.0}, 300),
    "a state": ({"train_state": {"step": 300}}, 300),
    "an object": ({"trainer_state": argparse.Namespace(global_step=300)}, 300),
    "Megatron's arguments": ({"args": argparse.Namespace(iteration=300, steps=9)}, 300),
    "a step and an epoch": ({"epoch": 2, "global_step": 300}, 300),
    "within": ({"model": None, "checkpoint": {"model": WEIGHTS, "iter": 300}}, 300),
    "an epoch": ({"epoch": 2}, 2),
    "a plan": ({"args": argparse.Namespace(steps=9), "config": {"steps": 9}}, 0),
    "half a step": ({"step": 1.5}, 0),
    "a truth": ({"step": True}, 0),
    "a negative one": ({"step": -1}, 0),
}


@pytest.mark.parametrize("what", STATED)
def test_the_step_inside_a_file_without_one_in_its_name(what: str, tmp_path: Path) -> None:
    stated, step = STATED[what]
    path = saved(tmp_path / "ckpt.pt", {"model": WEIGHTS, **stated})
    assert series(path).steps == series(tmp_path).steps == [step]


def test_steps_in_text(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors", {"step": "70", "format": "pt"})
    assert series(tmp_path / "model.safetensors").steps == [70]
    folder = model_folder(".safetensors", name="final")(tmp_path, 1, family_weights())
    (folder / "trainer_state.json").write_text('{"global_step": 50, "epoch": 1.5, "log_history": []}')
    assert series(folder).steps == series(folder / "model.safetensors").steps == [50]
    saved(tmp_path / "weights.pt", WEIGHTS)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("80\n")
    assert series(tmp_path / "weights.pt").steps == [80]


def test_several_files_with_steps_inside(tmp_path: Path) -> None:
    for name, step in (("best", 200), ("last", 300), ("final", None)):
        saved(tmp_path / f"{name}.pt", {"model": WEIGHTS} | ({} if step is None else {"iter_num": step}))
    found = series(tmp_path)
    assert (found.steps, found.ignored) == ([200, 300], ("final.pt",))
    assert found.notes[0] == "steps from inside the files: best.pt 200, last.pt 300"
    saved(tmp_path / "best.pt", {"model": WEIGHTS, "iter_num": 300})
    with refused(tmp_path, "best.pt and last.pt both have step 300"):
        series(tmp_path)


@pytest.mark.parametrize(
    ("name", "stated", "words"),
    [
        ("step_300.pt", {"iter_num": 300}, ""),
        ("step_300.pt", {"iter_num": 250}, "step 300 by its name, but iter_num inside is 250"),
        ("step_300.pt", {"epoch": 2}, ""),
        ("step_300.pt", {}, ""),
        ("step_300.pt", {"step": 12, "global_step": 300}, ""),
        ("epoch_3.pt", {"epoch": 2, "global_step": 900}, ""),
        ("epoch_3.pt", {"epoch": 4}, ""),
        ("epoch_3.pt", {"epoch": 7}, "epoch 3 by its name, but epoch inside is 7"),
        ("epoch_3.pt", {"global_step": 900}, ""),
        ("checkpoint_3.pt", {"epoch": 2, "step": 900}, ""),
        ("3.pt", {"epoch": 9, "step": 900}, "step 3 by its name, but step inside is 900"),
        ("best.pt", {"step": 900}, ""),
    ],
)
def test_names_and_counters_are_compared(name: str, stated: dict[str, int], words: str, tmp_path: Path) -> None:
    (checkpoint,) = series(saved(tmp_path / name, {"model": WEIGHTS, **stated}))
    assert checkpoint.stated == stated
    assert disagreement(checkpoint.source.spec, checkpoint.step, checkpoint.stated) == words


def test_what_cannot_be_read_states_nothing(tmp_path: Path) -> None:
    (tmp_path / "step_1.pt").write_bytes(b"\x80\x02damaged")
    assert series(tmp_path / "step_1.pt")[0].stated == {}


# Models that are no checkpoints of one run


@pytest.mark.parametrize("blocks", ["h", "layers", "blocks"])
def test_blocks_are_no_series(blocks: str, tmp_path: Path) -> None:
    block = {"w1": {"weight": torch.ones(8, 4)}}
    content = {"wte": {"embedding": torch.ones(9, 4)}, blocks: {str(k): block for k in range(3)}}
    torch.save(content, tmp_path / "params.pkl")
    (checkpoint,) = series(tmp_path / "params.pkl")
    assert len(checkpoint.entries) == 4


@pytest.mark.parametrize(
    "content",
    [
        lambda: {"models": [family_weights(k) for k in range(3)], "seeds": [1, 2, 3]},
        lambda: {"model_1": family_weights(1), "model_2": family_weights(2)},
        lambda: {"clients": {0: family_weights(0), 1: family_weights(1)}},
    ],
)
def test_different_models_are_no_series(content: Callable[[], Any], tmp_path: Path) -> None:
    torch.save(content(), tmp_path / "file.pt")
    with pytest.raises(CheckpointError) as caught:
        _ = series(tmp_path / "file.pt")[0].entries
    assert caught.value.kind == "unsupported"
