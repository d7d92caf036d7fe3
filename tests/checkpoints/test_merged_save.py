"""Saved averages: whole or absent, and with what went into them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_checkpoints import family_weights, refused, safetensors_file, torch_file

from toposcope import ToposcopeError, merge, series

STEPS = (100, 200, 300)


def a_run(folder: Path) -> Path:
    for step in STEPS:
        safetensors_file(folder, step, family_weights(step))
    (folder / "run.json").write_text("{}")
    return folder


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    average = merge(a_run(tmp_path), decay="1-sqrt")
    folder = average.save(str(tmp_path / "out" / "average"))
    # With what lies next to the last checkpoint.
    assert sorted(path.name for path in folder.iterdir()) == ["merged.json", "model.safetensors", "run.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["average"]
    stored, read = load_file(folder / "model.safetensors"), average.tensors()
    assert stored.keys() == read.keys()
    assert all(torch.equal(stored[name], read[name]) for name in read)
    (again,) = series(folder)
    assert again.step == 300
    assert again.content_hash() == average.content_hash()


def test_the_manifest_names_what_went_into_it(tmp_path: Path) -> None:
    """With the hash of each checkpoint, also of what was copied or left out."""
    for step in (1, 2):
        buffers = {"mask": torch.ones(3, 3).tril().bool(), "optim.x": torch.full((2,), float(step))}
        torch_file("model_state_dict")(tmp_path, step, family_weights(step) | buffers)
    folder = merge(tmp_path, weights=[0, 3]).save(tmp_path / "average")
    manifest = json.loads((folder / "merged.json").read_text())
    assert manifest["merged"] == f"merged:{tmp_path}@1..2,0.0 3.0"
    for member, step, weight in zip(manifest["checkpoints"], (1, 2), (0, 1), strict=True):
        (stored,) = series(member["place"])
        assert (member["step"], member["weight"]) == (step, weight)
        assert member["sha256"] == stored.content_hash()
    assert any("mask" in note for note in manifest["notes"])


def test_a_place_that_exists_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    average = merge(a_run(tmp_path))
    with refused(tmp_path, "exists"):
        average.save(tmp_path)
    (link := tmp_path / "link").symlink_to("nowhere")
    with refused(link, "exists"):
        average.save(link)
    (tmp_path / "file").write_text("")
    with refused(tmp_path, "cannot be written"):
        average.save(tmp_path / "file" / "average")


def test_an_average_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    for step in STEPS:
        weights = family_weights(step) | {"mask": torch.full((4, 4), -torch.inf).triu(1)}
        safetensors_file(tmp_path, step, weights)
    merge(tmp_path).save(tmp_path / "average")  # a mask is copied
    weights["layers.1.mlp.fc1.weight"][3, 1] = torch.nan
    safetensors_file(tmp_path, 300, weights)
    with pytest.raises(ToposcopeError, match=r"layers\.1\.mlp\.fc1\.weight: its average over steps 100 to 300 is not"):
        merge(tmp_path).save(tmp_path / "another")
    assert not [path for path in tmp_path.iterdir() if "another" in path.name]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    average = merge(a_run(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toposcope.checkpoints.merging._write_json", full)
    with refused(tmp_path, "the disk is full"):
        average.save(tmp_path / "average")
    assert not [path for path in tmp_path.iterdir() if "average" in path.name]


KILLED = """
import os, signal, sys
from pathlib import Path
from toposcope import merge
from toposcope.checkpoints import averaging

countdown = int(sys.argv[3])

def counted(function):
    def call(*arguments, **options):
        global countdown
        countdown -= 1
        if countdown < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

averaging._rows = counted(averaging._rows)
os.fsync, Path.rename = counted(os.fsync), counted(Path.rename)
merge(sys.argv[1]).save(sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_save_leaves_nothing_half(tmp_path: Path) -> None:
    """At whatever point: between tensors, before and after each sync, before the renaming."""
    average = merge(a_run(tmp_path))
    n_tensors, n_syncs = len(average.entries), 4  # three files and the folder that holds them
    for point in (0, 1, n_tensors - 1, *range(n_tensors, n_tensors + n_syncs + 1)):
        folder = tmp_path / "average"
        code = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(folder), str(point)], check=False, timeout=60
        ).returncode
        assert code == -signal.SIGKILL, point
        assert not folder.exists(), point
        assert series(tmp_path).steps == [*STEPS]  # what is left of it is no checkpoint
    average.save(folder)
    assert series(folder)[0].content_hash() == average.content_hash()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
