"""`toposcope show` on runs without a monitor: the real command, from before the run exists until everything ends."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import served

WAIT_SECONDS = 60


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


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


@pytest.mark.slow
def test_a_run_that_does_not_exist_yet_is_shown_as_it_grows(tmp_path: Path, cache: Path) -> None:
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
        until(events, lambda m: any(200 in steps for *_, steps, _ in m["lines"]))
        assert [path.name for path in out.iterdir()] == ["train.log"]
