"""Studies of series that lie elsewhere: what is fetched, how often, and what stands in the study."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save
from small_studies import WEIGHT_PROBES, frame

from toposcope.checkpoints import Access
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries

STEPS = [0, 100, 200, 300, 400, 500]
SHAPES = {"layers.0.mlp.fc1.weight": (400, 100), "layers.0.mlp.fc2.weight": (100, 400)}
STORED = 2 * 400 * 100 * 4
"""Bytes of one checkpoint."""


@pytest.fixture
def bucket() -> Iterator[str]:
    """A series in fsspec's memory."""
    memory = fsspec.filesystem("memory")
    for step in STEPS:
        drawn = {n: torch.randn(s, generator=torch.Generator().manual_seed(step)) for n, s in SHAPES.items()}
        memory.pipe_file(f"/bucket/run/step{step}.safetensors", save(drawn))
    yield "memory://bucket/run"
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every range that was fetched."""
    ranges: list[int] = []
    whole = MemoryFileSystem.cat_file

    def counted(self: Any, path: str, start: Any = None, end: Any = None, **more: Any) -> Any:
        content = whole(self, path, start=start, end=end, **more)
        ranges.append(len(content))
        return content

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    return ranges


def study_of(bucket: str, probes: list[dict[str, Any]]) -> Declaration:
    return Declaration(name="far", series=[DeclaredSeries(path=bucket)], probes=probes)


def test_what_may_lie_on_the_disk_is_fetched_once(bucket: str, fetched: list[int], tmp_path: Path) -> None:
    """Half of what may be kept holds one checkpoint: a window at a time, nothing is fetched a second time."""
    access = Access(keep=4 * STORED, folder=tmp_path / "kept")
    assert run_study(study_of(bucket, WEIGHT_PROBES), tmp_path / "study", workers=1, access=access) == {}
    assert set(frame(tmp_path / "study")["step"]) == set(STEPS)
    assert sum(fetched) < 1.1 * len(STEPS) * STORED
    # Again, nothing has changed and nothing is fetched but headers.
    before = sum(fetched)
    assert run_study(study_of(bucket, WEIGHT_PROBES), tmp_path / "study", workers=1, access=access) == {}
    assert sum(fetched) - before < len(STEPS) * STORED / 2


def test_nothing_kept_gives_the_same_numbers(bucket: str, fetched: list[int], tmp_path: Path) -> None:
    for name, keep in (("none", 0), ("all", None)):
        access = Access(keep=keep, folder=tmp_path / name / "kept")
        assert run_study(study_of(bucket, WEIGHT_PROBES), tmp_path / name, workers=1, access=access) == {}
    assert frame(tmp_path / "none").rows() == frame(tmp_path / "all").rows()
    assert not (tmp_path / "none" / "kept").exists()


def test_offline_a_study_goes_on_with_what_was_kept(bucket: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = study_of(bucket, [{"name": "neural_persistence"}])
    assert run_study(first, tmp_path / "study", workers=1, access=Access(keep=None, folder=kept)) == {}
    fsspec.filesystem("memory").rm("/bucket/run/step100.safetensors")
    offline = Access(keep=None, offline=True, folder=kept)
    assert run_study(study_of(bucket, WEIGHT_PROBES), tmp_path / "study", workers=1, access=offline) == {}
    assert set(frame(tmp_path / "study").filter(probe="rips")["step"]) == set(STEPS)


def test_a_file_that_is_replaced_is_measured_again(bucket: str, tmp_path: Path) -> None:
    access = Access(keep=None, folder=tmp_path / "kept")
    declaration = study_of(bucket, [{"name": "neural_persistence"}])
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    before = frame(tmp_path / "study")
    other = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    fsspec.filesystem("memory").pipe_file("/bucket/run/step300.safetensors", save(other))
    assert run_study(declaration, tmp_path / "study", workers=1, access=access) == {}
    after = frame(tmp_path / "study")
    assert before.filter(step=200).rows() == after.filter(step=200).rows()
    assert before.filter(step=300).rows() != after.filter(step=300).rows()
    (place,) = set(Study.load(tmp_path / "study").checkpoints().filter(step=300)["path"])
    assert place == f"{bucket}/step300.safetensors"
