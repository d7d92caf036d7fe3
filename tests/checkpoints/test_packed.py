"""Checkpoints of one run in the files of many: listed as ordinary ones, read where they lie, refused when damaged."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from toposcope.checkpoints import Checkpoint, series
from toposcope.checkpoints.sources import CheckpointError
from toposcope.checkpoints.sources.packed import POINTER, PackPointer, file_name
from toposcope.errors import ToposcopeError

NAMES = ["low", "middle", "high"]
STEPS = [0, 10, 200]


def own_tensors(run: int, step: int) -> dict[str, np.ndarray]:
    """What a run has of its own, in several dtypes and shapes."""
    draw = np.random.default_rng([run, step])
    return {
        "layers.0.weight": draw.normal(size=(6, 5)).astype(np.float32),
        "layers.0.bias": draw.normal(size=6).astype(np.float32),
        "half": draw.normal(size=(3, 4)).astype(np.float16),
        "scalar": np.array(draw.normal()),
        "count": np.array([run, step], dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float32),
    }


def write_pack(folder: Path, step: int) -> Path:
    each = [own_tensors(run, step) for run in range(len(NAMES))]
    joined = {name: np.stack([tensors[name] for tensors in each]) for name in each[0]}
    path = folder / file_name(step)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.numpy.save(joined, metadata={"runs": json.dumps(NAMES)}))
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for step in STEPS:
        write_pack(tmp_path / "packs" / "one", step)
    for name in NAMES:
        folder = tmp_path / "runs" / name / "checkpoints"
        folder.mkdir(parents=True)
        pointer = PackPointer(pack="../../../packs/one", run=name, steps=STEPS, status="complete", step=200)
        (folder / POINTER).write_bytes(msgspec.json.encode(pointer))
        (folder.parent / "log.csv").write_text("step,loss\n0,\n10,4.5\n")
    return tmp_path


def test_a_run_in_a_pack_is_a_series(study: Path) -> None:
    for run, name in enumerate(NAMES):
        opened = series(study / "runs" / name)
        assert opened.steps == STEPS
        assert opened.ignored == ()
        for checkpoint in opened:
            expected = own_tensors(run, checkpoint.step)
            assert {entry.name for entry in checkpoint.entries} == set(expected)
            for entry in checkpoint.entries:
                np.testing.assert_array_equal(entry.whole(), expected[entry.name])
                assert entry.shape == expected[entry.name].shape
            own = safetensors.numpy.save(expected, metadata={"format": "pt"})
            (study / "own.safetensors").write_bytes(own)
            assert checkpoint.content_hash() == Checkpoint(study / "own.safetensors", 0).content_hash()


def test_the_text_of_a_place_opens_it_again(study: Path) -> None:
    for checkpoint in series(study / "runs" / "high"):
        assert not Path(checkpoint.location).exists()
        (again,) = series(checkpoint.location)
        assert again.step == checkpoint.step
        assert again.content_hash() == checkpoint.content_hash()
        assert again.fingerprint() == checkpoint.fingerprint()
    assert series(f"{study}/runs/high/checkpoints").steps == STEPS


def test_a_folder_that_moves_as_a_whole_is_read_as_before(study: Path, tmp_path: Path) -> None:
    before = [c.content_hash() for c in series(study / "runs" / "low")]
    (tmp_path / "moved").mkdir()
    for part in ("runs", "packs"):
        (study / part).rename(tmp_path / "moved" / part)
    assert [c.content_hash() for c in series(tmp_path / "moved" / "runs" / "low")] == before


def test_only_the_rows_of_the_run_are_read(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = os.read

    def counted(file: int, count: int) -> bytes:
        content = original(file, count)
        read.append(len(content))
        return content

    monkeypatch.setattr(os, "read", counted)
    checkpoint = series(study / "runs" / "middle")[0]
    assert not read
    (entry,) = (entry for entry in checkpoint.entries if entry.name == "layers.0.weight")
    read.clear()
    entry.whole()
    assert sum(read) == entry.n_bytes


def test_a_file_of_its_own_comes_before_the_pack(study: Path) -> None:
    own = study / "runs" / "low" / "checkpoints" / file_name(10)
    own.write_bytes(safetensors.numpy.save({"w": np.ones((2, 2), np.float32)}))
    checkpoint = series(study / "runs" / "low")[1]
    assert [entry.name for entry in checkpoint.entries] == ["w"]
    assert series(study / "runs" / "low").steps == STEPS


def test_a_new_pack_has_another_fingerprint(study: Path) -> None:
    checkpoint = series(study / "runs" / "low")[0]
    before, (listed,) = checkpoint.fingerprint(), checkpoint.files.values()
    path = study / "packs" / "one" / file_name(0)
    os.utime(path, ns=(1, 1))
    assert checkpoint.fingerprint() != before
    with pytest.raises(CheckpointError, match="changed while it was in use"):
        listed.read(0, 10)


def pointer(study: Path) -> Path:
    return study / "runs" / "low" / "checkpoints" / POINTER


def pack(study: Path) -> Path:
    return study / "packs" / "one" / file_name(10)


def replaced(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


FEWER_ROWS = safetensors.numpy.save({"w": np.ones((2, 4, 4), np.float32)}, metadata={"runs": json.dumps(NAMES)})
DAMAGE: dict[str, Callable[[Path], object]] = {
    "the run is not in the pack": lambda study: replaced(pointer(study), '"low"', '"lower"'),
    "an unknown field": lambda study: replaced(pointer(study), '"run"', '"rum"'),
    "a negative step": lambda study: replaced(pointer(study), "[0,", "[-5,"),
    "no JSON": lambda study: pointer(study).write_bytes(b"\xff" * 20),
    "missing": lambda study: pack(study).unlink(),
    "truncated": lambda study: pack(study).write_bytes(pack(study).read_bytes()[:-50]),
    "cut in the header": lambda study: pack(study).write_bytes(pack(study).read_bytes()[:30]),
    "empty": lambda study: pack(study).write_bytes(b""),
    "no pack": lambda study: pack(study).write_bytes(safetensors.numpy.save(own_tensors(0, 10))),
    "fewer rows": lambda study: pack(study).write_bytes(FEWER_ROWS),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_in_a_line(study: Path, damage: str) -> None:
    DAMAGE[damage](study)
    with pytest.raises(ToposcopeError) as caught:
        _ = [checkpoint.entries for checkpoint in series(study / "runs" / "low")]
    assert "\n" not in str(caught.value)
    assert str(study) in str(caught.value)
