"""Manifests: what was saved is compared with what is read later, in every format and under every fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import WRITERS, model_folder, safetensors_file, torch_file

from toposcope.checkpoints import Checkpoint, series
from toposcope.errors import ToposcopeError
from toposcope.integrity import doctor, write_manifest
from toposcope.integrity.manifest import FILE, SUFFIX, manifest_of

Write = Callable[[Path, int, dict[str, torch.Tensor]], object]
FORMATS: dict[str, Write] = {
    "safetensors": safetensors_file,
    "pt": torch_file("model"),
    "folder": model_folder(".safetensors", name="step{}", n_shards=2),
    "folder of bin": model_folder(".bin", name="step{}", n_shards=1),
}


def tensors(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    names = [f"layers.{k}.mlp.up_proj.weight" for k in range(3)]
    return {name: torch.randn(16, 8, generator=draw) + 0.01 * step for name in names}


def saved(folder: Path, write: Write) -> None:
    for step in (100, 200, 300):
        write(folder, step, tensors(step))
        (checkpoint,) = [c for c in series(folder) if c.step == step]
        write_manifest(checkpoint)


def rewrite(folder: Path, write: Write, step: int, weights: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint again, under the manifest of the one before."""
    inside = folder / f"step{step}"
    manifest = (inside / FILE).read_bytes() if inside.is_dir() else b""
    shutil.rmtree(inside, ignore_errors=True)
    write(folder, step, weights)
    if manifest:
        (inside / FILE).write_bytes(manifest)


def found(folder: Path, deep: bool) -> list[tuple[str, tuple[int, ...], str]]:
    return [(f.severity, f.steps, f.message) for f in doctor(folder, deep=deep).findings if f.check == "manifest"]


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_as_it_was_saved_has_no_finding(tmp_path: Path, name: str) -> None:
    saved(tmp_path, WRITERS[name])
    assert [c.step for c in series(tmp_path)] == [100, 200, 300]
    assert all(manifest_of(checkpoint) is not None for checkpoint in series(tmp_path))
    assert doctor(tmp_path).findings == [] == doctor(tmp_path, deep=True).findings


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_tensor_is_a_fault_of_a_deep_look(tmp_path: Path, name: str) -> None:
    saved(tmp_path, FORMATS[name])
    changed = tensors(200)
    changed["layers.1.mlp.up_proj.weight"][3, 4] += 1e-6
    rewrite(tmp_path, FORMATS[name], 200, changed)
    ((severity, steps, message),) = found(tmp_path, deep=True)
    assert (severity, steps) == ("fault", (200,))
    assert message.startswith("layers.1.mlp.up_proj.weight: has other values at step 200")


def test_absent_added_and_reshaped_tensors_are_faults_of_a_shallow_look(tmp_path: Path) -> None:
    saved(tmp_path, safetensors_file)
    changed = tensors(200)
    first, second, third = changed
    del changed[first]
    changed[second] = changed[second].half()
    changed["extra.weight"] = changed[third] + 1
    save_file(changed, next(tmp_path.glob("*200*.safetensors")))
    messages = sorted(message.partition(" at ")[0] for _, _, message in found(tmp_path, deep=False))
    assert messages == [
        "extra.weight: added", "layers.0.mlp.up_proj.weight: absent",
        "layers.1.mlp.up_proj.weight: has another shape or dtype",
    ]  # fmt: skip


def test_a_manifest_holds_in_another_format(tmp_path: Path) -> None:
    for name in ("saved", "now"):
        (tmp_path / name).mkdir()
    saved(tmp_path / "saved", torch_file("model"))
    for step in (100, 200, 300):
        safetensors_file(tmp_path / "now", step, tensors(step))
    for file in (tmp_path / "now").glob("*.safetensors"):
        (manifest,) = (tmp_path / "saved").glob(f"{file.stem}*{SUFFIX}")
        shutil.copy(manifest, file.with_name(file.name + SUFFIX))
    assert all(manifest_of(checkpoint) is not None for checkpoint in series(tmp_path / "now"))
    assert found(tmp_path / "now", deep=True) == []


def test_it_is_plain_json(tmp_path: Path) -> None:
    safetensors_file(tmp_path, 100, tensors(100))
    (checkpoint,) = series(tmp_path)
    content = json.loads(write_manifest(checkpoint).read_text())
    assert content["step"] == 100
    name = "layers.0.mlp.up_proj.weight"
    hashes = {entry.name: entry.content_hash() for entry in checkpoint.entries}
    assert content["tensors"][name] == {"dtype": "float32", "shape": [16, 8], "sha256": hashes[name]}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": 1}', '{"step": 1, "tensors": {"a": 3}}', "[" * 100_000])
def test_a_manifest_that_cannot_be_understood_is_a_note(tmp_path: Path, content: str) -> None:
    saved(tmp_path, model_folder(".safetensors", name="step{}", n_shards=1))
    (tmp_path / "step200" / FILE).write_text(content)
    ((severity, steps, message),) = found(tmp_path, deep=True)
    assert (severity, steps) == ("note", (200,))
    assert "manifest" in message
    assert "\n" not in message


def test_a_manifest_is_written_where_the_checkpoint_is_saved_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="nothing"):
        write_manifest(Checkpoint(tmp_path / "nothing.pt", 1))
    assert list(tmp_path.iterdir()) == []
