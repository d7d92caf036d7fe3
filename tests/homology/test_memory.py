"""What would not fit in memory is refused before it starts."""

import os
from pathlib import Path
from typing import Any

import pytest

from toposcope.errors import ToposcopeError
from toposcope.homology import memory


def test_refusal_names_what_is_needed_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**9)
    memory.check_fits(10**9, "rips", "use fewer points")
    with pytest.raises(ToposcopeError) as refusal:
        memory.check_fits(32 * 10**9, "rips of 63246 points", "use fewer points")
    assert str(refusal.value) == "rips of 63246 points: needs 32 GB of memory, 1 GB are free; use fewer points"


def test_the_kernel_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "MemTotal: 4000 kB\nMemFree:  100 kB\nMemAvailable:    3000 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: said)
    assert memory.free_memory() == 3000 * 1024


@pytest.mark.parametrize("said", ["", "MemTotal: 4000 kB\n", "MemAvailable: many kB\n", None])
def test_free_pages_are_counted_elsewhere(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    def read_text(*_: Any, **__: Any) -> str:
        if said is None:
            raise FileNotFoundError
        return said

    monkeypatch.setattr(Path, "read_text", read_text)
    counts = {"SC_AVPHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", counts.__getitem__, raising=False)
    assert memory.free_memory() == 5 * 4096


@pytest.mark.parametrize("error", [ValueError, OSError, AttributeError])
def test_nothing_is_refused_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    monkeypatch.setattr(os, "sysconf", unknown, raising=False)
    assert memory.free_memory() is None
    memory.check_fits(10**30, "anything", "nothing")


def test_this_machine_has_memory() -> None:
    free = memory.free_memory()
    assert free is None or free > 0


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    whole, free = memory.total_memory(), memory.free_memory()
    assert whole is not None
    assert free is not None
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("max\n")
    assert memory.total_memory() == whole
    (tmp_path / limit).write_text("5000000\n")
    (tmp_path / used).write_text("2000000\n")
    assert memory.total_memory() == 5_000_000
    assert memory.free_memory() == 3_000_000
    (tmp_path / limit).write_text(f"{10**18}\n")
    assert memory.total_memory() == whole
