"""What a monitor needs is compiled once, however many runs begin or are killed."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from toposcope.monitor import warm_up

PROBES: list[dict[str, object]] = [{"name": "controls"}]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dtypes that were compiled for; nothing is compiled."""
    made: list[str] = []

    def record(_: Any, dtype: str) -> None:
        made.append(dtype)
        warm_up.marker(dtype).touch()

    monkeypatch.setattr(warm_up, "marker", lambda dtype: tmp_path / dtype)
    monkeypatch.setattr(warm_up, "warm_up", record)
    monkeypatch.setattr(warm_up, "POLL_SECONDS", 0.001)
    return made


def test_it_is_compiled_once(made: list[str]) -> None:
    for _ in range(3):
        warm_up.in_turn(PROBES, "float32", os.getppid())
    warm_up.in_turn(PROBES, "float64", os.getppid())
    assert made == ["float32", "float64"]


def test_a_process_whose_run_was_killed_does_not_wait_for_another(made: list[str]) -> None:
    with FileLock(f"{warm_up.marker('float32')}.lock"):
        warm_up.in_turn(PROBES, "float32", parent=-1)
    assert made == []


def test_it_waits_for_another(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    other = FileLock(f"{warm_up.marker('float32')}.lock")
    other.acquire()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            warm_up.marker("float32").touch()
            other.release()

    monkeypatch.setattr(time, "sleep", sleep)
    warm_up.in_turn(PROBES, "float32", os.getppid())
    assert len(slept) == 3
    assert made == []


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FileLock, *_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    warm_up.in_turn(PROBES, "float32", os.getppid())
    assert made == ["float32"]
