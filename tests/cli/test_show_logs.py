"""`toposcope show` on runs without a monitor: the real command, from before the run exists until everything ends."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import LiveServer, served

WAIT_SECONDS = 60


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the server."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def rows(first: int, last: int) -> str:
    return "".join(f"step {k}/400: train loss {2 + 3 * k**-0.4:.4f}, lr {3e-4:.1e}\n" for k in range(first, last + 1))


def until(events: Iterator[tuple[str, Any]], seen: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first message of a kind."""
    deadline = time.monotonic() + WAIT_SECONDS
    for _, message in events:
        if seen(message):
            return message  # type: ignore[no-any-return]
        assert time.monotonic() < deadline, message["html"]
    raise AssertionError("the stream ended")


def workers() -> set[int]:
    """Processes that read logs."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"toposcope.monitor.mirror" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def children(server: LiveServer) -> set[int]:
    return {pid for pid in workers() if f"\nPPid:\t{server.process.pid}\n" in Path(f"/proc/{pid}/status").read_text()}


def gone(pids: set[int], folder: Path) -> bool:
    """Wait until processes and what they made have gone."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if not pids & workers() and not list(folder.iterdir()):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_run_that_does_not_exist_yet_is_shown_as_it_grows(tmp_path: Path, cache: Path, scratch: Path) -> None:
    out = tmp_path / "out"
    with served(out, cache) as server, server.events() as events:
        message = next(events)[1]
        assert "here yet" in message["html"]["now"]
        out.mkdir()
        log = out / "train.log"
        log.write_text("number of parameters: 0.1M\n" + rows(1, 100))
        message = until(events, lambda m: bool(m["forecasts"]))
        end = message["forecasts"][-1]
        assert (end["run"], end["step"]) == ("out", 400)
        with log.open("a") as file:
            file.write(rows(101, 200))
        until(events, lambda m: any(200 in line["rows"]["step"] for line in m["lines"]))
        assert [path.name for path in out.iterdir()] == ["train.log"]
        pids = children(server)
        assert len(pids) == 1
    assert gone(pids, scratch)


@pytest.mark.slow
def test_a_killed_reader_is_started_again_and_none_outlives_the_server(
    tmp_path: Path, cache: Path, scratch: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(rows(1, 100))
    with served(log, cache) as server, server.events() as events:
        until(events, lambda m: bool(m["forecasts"]))
        (first,) = children(server)
        os.kill(first, signal.SIGKILL)
        with log.open("a") as file:
            file.write(rows(101, 200))
        message = until(events, lambda m: any(200 in line["rows"]["step"] for line in m["lines"]))
        assert "train" in message["html"]["now"]
        pids = children(server)
        assert pids != {first}
        server.process.kill()
    assert gone(pids, scratch)
