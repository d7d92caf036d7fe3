"""Averages of checkpoints: their values by hand, what is copied, and what has no average."""

import itertools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import (
    Weights,
    Writer,
    assert_refused,
    every_format,
    family_weights,
    refused,
    safetensors_file,
)

from toposcope import ToposcopeError, doctor, merge, series
from toposcope.checkpoints import decay_weights
from toposcope.checkpoints.sources import Access
from toposcope.checkpoints.sources.merged import roots, with_path

STEPS = [100, 200, 400, 1000]


def a_run(folder: Path, write: Writer = safetensors_file, dtype: torch.dtype = torch.float32) -> list[Weights]:
    """Checkpoints at `STEPS`, in a format; return their weights."""
    runs = [family_weights(k, dtype) for k in range(len(STEPS))]
    for step, weights in zip(STEPS, runs, strict=True):
        write(folder, step, weights)
    return runs


def by_hand(runs: list[Weights], weights: Any) -> dict[str, Any]:
    """The average in double precision, rounded once."""
    average = dict[str, Any]()
    for name in runs[0]:
        parts = [float(w) * run[name].to(torch.float64).numpy() for w, run in zip(weights, runs, strict=True)]
        average[name] = np.sum(parts, axis=0).astype(np.float32)
    return average


def assert_equal(found: Weights, right: dict[str, Any]) -> None:
    assert found.keys() == right.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), right[name], err_msg=name)


@every_format
def test_an_average_is_that_of_the_stored_numbers_in_double_precision(tmp_path: Path, write: Writer) -> None:
    runs = a_run(tmp_path, write)
    for decay in ("linear", "1-sqrt", "cosine", "ema"):
        average = merge(tmp_path, decay=decay)
        assert_equal(average.tensors(), by_hand(runs, decay_weights(STEPS, decay)))
    assert average.step == 1000


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64]
)
def test_numbers_are_averaged_without_rounding_on_the_way(tmp_path: Path, dtype: torch.dtype) -> None:
    runs = a_run(tmp_path, dtype=dtype)
    found, right = merge(tmp_path).tensors(), by_hand(runs, decay_weights(STEPS))
    if dtype != torch.float64:
        assert_equal(found, right)
    for name, tensor in found.items():
        assert tensor.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(tensor.numpy(), right[name], rtol=1e-6)


def test_a_text_opens_the_same_as_a_call(tmp_path: Path) -> None:
    runs = a_run(tmp_path)
    for spec, members, weights in (
        (f"merged:{tmp_path}@150..1000", [1, 2, 3], decay_weights(STEPS[1:])),
        (f"merged:{tmp_path}@200..400,1-sqrt", [1, 2], decay_weights([200, 400], "1-sqrt")),
        (f"merged:{tmp_path}@100..400,1 2 5", [0, 1, 2], [1 / 8, 2 / 8, 5 / 8]),
        (f"merged:{tmp_path}@100+400+1000", [0, 2, 3], decay_weights([100, 400, 1000])),
    ):
        (average,) = series(spec)
        assert average.location == spec
        assert average.step == STEPS[members[-1]]
        assert_equal(average.tensors(), by_hand([runs[k] for k in members], weights))
        again = series(merge(series(tmp_path, steps=[STEPS[k] for k in members])).location)[0]
        assert again.step == average.step
    soup = merge(tmp_path, window=(100, 400), weights=[1, 2, 5])
    assert soup.source.weights == (1 / 8, 2 / 8, 5 / 8)
    assert "divided by their sum 8" in soup.notes[0]
    assert series(soup.location)[0].content_hash() == soup.content_hash()


def test_a_key_of_a_model_in_each_file_and_an_at_sign_in_its_name_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run@home, no 2"
    folder.mkdir()
    for step in (1, 2):
        torch.save({"model": family_weights(step), "ema": family_weights(step + 10)}, folder / f"step_{step}.pt")
    (average,) = series(f"merged:{folder}:ema@1..2")
    assert_equal(average.tensors(), by_hand([family_weights(11), family_weights(12)], [0.5, 0.5]))
    assert len(average.described_by.source.files()) == 1


def test_any_rows_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path)
    average = merge(tmp_path)
    whole = {entry.name: entry.whole() for entry in average.entries}
    monkeypatch.setattr("toposcope.checkpoints.averaging.AVERAGED_BYTES", 40)
    for entry in average.entries:
        np.testing.assert_array_equal(entry.whole(), whole[entry.name])
        for start, stop in itertools.combinations(range(entry.shape[0] + 1), 2):
            np.testing.assert_array_equal(entry.read(start, stop), whole[entry.name][start:stop])


def test_tensors_without_axes_or_rows_are_averaged_too(tmp_path: Path) -> None:
    for step in (1, 2):
        scalars = {"scale": torch.tensor(float(step)), "none.weight": torch.zeros(0, 4), "w.weight": torch.eye(3)}
        save_file(scalars, tmp_path / f"step_{step}.safetensors")
    found = merge(tmp_path).tensors()
    assert found["scale"].item() == 1.5
    assert found["none.weight"].shape == (0, 4)


def test_it_is_sent_to_another_process_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    a_run(tmp_path)
    average = merge(tmp_path)
    before = average.fingerprint()
    copy = pickle.loads(pickle.dumps(average))  # noqa: S301 - our own
    assert copy == average
    assert copy.content_hash() == average.content_hash()
    path = safetensors_file(tmp_path, 200, family_weights(9))
    os.utime(path, ns=(1, 1))
    assert average.fingerprint() != before
    with refused(tmp_path, "changed while it was in use"):
        copy.entries[0].whole()


def test_masks_tables_and_counters_are_copied_from_the_last_and_named(tmp_path: Path) -> None:
    for step in (1, 2):
        buffers = {
            "h.0.attn.bias": torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6).bool(),
            "mask": torch.full((4, 4), -torch.inf).triu(1),
            "inv_freq": torch.arange(4.0),
            "num_updates": torch.tensor(step),
        }
        state = {f"optim.{FC1}": torch.zeros(16, 4)}
        save_file(family_weights(step) | buffers | state, tmp_path / f"step_{step}.safetensors")
    average = merge(tmp_path)
    found = average.tensors()
    assert f"optim.{FC1}" not in found
    assert "left out" in average.notes[2]
    for name, right in buffers.items():
        assert torch.equal(found[name], right)
        assert found[name].dtype == right.dtype
    assert average.notes[1].startswith("copied from step 2, not averaged: h.0.attn.bias, inv_freq, mask")
    assert not doctor(series(average.location), deep=True).faults


def with_(weights: Weights, **changed: Any) -> Weights:
    """Weights with some replaced, or left out where None."""
    return {name: tensor for name, tensor in (weights | changed).items() if tensor is not None}


HEAD, FC1 = "head.weight", "layers.0.mlp.fc1.weight"
UNLIKE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "shape": ({FC1: torch.zeros(20, 4)}, (FC1, "[20, 4]", "[16, 4]")),
    "absent": ({FC1: None}, (FC1, "lacks the tensor")),
    "more": ({"extra.weight": torch.zeros(3, 3)}, ("extra.weight", "lacks the tensor")),
    "no head": ({HEAD: None}, (HEAD, "tied in one and not in the other")),
    "integers": ({FC1: torch.zeros(16, 4, dtype=torch.int64)}, (FC1, "int64")),
}
"""What the first of two checkpoints has of its own."""
ALIKE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "batch norm": ({"bn.running_mean": torch.zeros(4)}, ("bn.running_mean", "batch norm", "update_bn")),
    "quantised": (
        {FC1: torch.ones(16, 4, dtype=torch.int8), FC1.replace("weight", "SCB"): torch.ones(16)},
        (FC1, "quantised"),
    ),
    "optimizer": (
        {**dict.fromkeys(family_weights()), f"{FC1}.exp_avg": torch.zeros(16, 4)},
        ("state of an optimizer",),
    ),
    "complex": ({FC1: torch.zeros(16, 4, dtype=torch.complex64)}, (FC1, "complex64")),
}
"""What both have."""


@pytest.mark.parametrize("case", [*UNLIKE, *ALIKE])
def test_what_has_no_average_is_refused(tmp_path: Path, case: str) -> None:
    changed, words = (UNLIKE | ALIKE)[case]
    for step in (1, 2):
        safetensors_file(tmp_path, step, with_(family_weights(), **(changed if step == 1 or case in ALIKE else {})))
    with refused(tmp_path, "step_00000", *words):
        merge(tmp_path).tensors()
    (finding,) = doctor(series(f"merged:{tmp_path}@1..2")).findings
    assert words[0] in finding.message


def test_adapters_are_averaged_factor_by_factor(tmp_path: Path) -> None:
    for step in (1, 2):
        (folder := tmp_path / f"checkpoint-{step}").mkdir()
        factors = {f"base_model.model.h.0.q.lora_{c}.weight": torch.full((2, 2), float(step)) for c in "AB"}
        save_file(factors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    average = merge(tmp_path)
    assert "adapter_model.safetensors" in average.files
    assert any("A and B are averaged each by itself" in note for note in average.notes)
    (layer,) = average.layers()
    np.testing.assert_allclose(layer.read(), np.full((2, 2), 2 * 1.5**2))


def test_windows_and_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    a_run(tmp_path)
    for recipe, words in (
        ("", "no window after the last @"),
        ("@step*", "no window after the last @"),
        ("@100..200@1..2", "no such file or folder"),
        ("@2000..3000", "no checkpoint in the window"),
        ("@400..100", "no checkpoint in the window"),
        ("@150..200", "only the one of step 200"),
        ("@100+300", "no checkpoint at step 300"),
        ("@100..200,sqrt", "neither a decay"),
        ("@100..400,1 2", "2 weights for the 3"),
        ("@100..200,1 -1", "from 0 on"),
        ("@100..200,0 0", "not all of them 0"),
        ("@100..200,nan 1", "from 0 on"),
    ):
        with pytest.raises(ToposcopeError, match=words) as caught:
            series(f"merged:{tmp_path}{recipe}")
        assert_refused(caught.value, tmp_path)
    with refused(tmp_path, "an average of an average"):
        series(f"merged:merged:{tmp_path}@100..1000@100..1000")
    with pytest.raises(ToposcopeError, match="an average of an average"):
        series("merged:" * 2000 + "x" + "@100..1000" * 2000)
    with refused(tmp_path, "no window of two steps"):
        merge(tmp_path, window=(-3, 200))
    with pytest.raises(ToposcopeError, match="where a file or a folder is needed"):
        roots("merged:x@1..2", Access())


def test_paths_of_declarations_are_made_absolute_inside_it() -> None:
    def below(path: Path) -> str:
        return f"/data/{path}"

    assert with_path("runs/x", below) == "/data/runs/x"
    assert with_path("merged:m@1..2,1 2", below) == "merged:/data/m@1..2,1 2"
    assert with_path("merged:hf:a/b@step*@1..2", below) == "merged:hf:a/b@step*@1..2"
    assert with_path("hf:a/b", below) == "hf:a/b"
