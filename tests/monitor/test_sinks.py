"""The registry of sinks, and the thread that each has."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored_events import alert, ignored, measured
from outside_package import install

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Event
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.sinks import opening
from toposcope.monitor.sinks.opening import RunSinks, open_sinks, sink_makers
from toposcope.monitor.sinks.sink import Sink


class Recorder:
    """Keeps what it is given."""

    def __init__(self, fails_at: int = -1, gate: threading.Event | None = None) -> None:
        self.events: list[Event] = []
        self.closed = 0
        self._fails_at, self._gate = fails_at, gate

    def put(self, event: Event) -> None:
        if self._gate is not None:
            self._gate.wait()
        if event.step == self._fails_at:
            raise OSError("disk full\nagain")
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1
        if self._fails_at >= 0:
            raise OSError("cannot be closed")


@pytest.fixture
def no_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSinks:
    monkeypatch.setattr(opening, "sink_makers", dict)
    return RunSinks(tmp_path, ignored)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("toposcope: ") for line in capsys.readouterr().err.splitlines()]


def test_all_trackers_are_found() -> None:
    assert set(sink_makers()) == {"mlflow", "tensorboard", "trackio", "wandb"}


def test_nothing_is_imported_or_opened_where_no_tracker_is_in_use(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from toposcope.monitor.sinks.opening import RunSinks\n"
        "sinks = RunSinks(Path('.'), print); sinks.search(); assert not sinks._threads\n"
        "print([m for m in ('wandb', 'mlflow', 'trackio', 'tensorboard', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_begins_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, active = [], False

    def maker(directory: Path) -> Sink | None:
        calls.append(directory)
        return Recorder() if active else None

    def broken(directory: Path) -> Sink | None:
        raise OSError("no such thing")

    monkeypatch.setattr("toposcope.monitor.sinks.opening.sink_makers", lambda: {"late": maker, "broken": broken})
    sinks, found = RunSinks(tmp_path, ignored), []
    monkeypatch.setattr(sinks, "add", lambda name, _: found.append((call, name)))
    for call in range(1, 20):
        active = call >= 3
        sinks.search()
    assert found == [(4, "late")]
    assert len(calls) == 3
    assert capsys.readouterr().err.count("broken: not used (no such thing)") == 1


def test_a_failing_sink_is_closed_alone_and_said_once(
    no_trackers: RunSinks, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = Recorder(), Recorder(fails_at=2)
    sinks = no_trackers
    sinks.add("good", good)
    sinks.add("bad", bad)
    for step in range(5):
        sinks.put(measured(step))
    sinks.close()
    assert [event.step for event in good.events] == [0, 1, 2, 3, 4]
    assert [event.step for event in bad.events] == [0, 1]
    assert (good.closed, bad.closed) == (1, 1)
    assert said(capsys) == ["bad failed and is closed: cannot be closed; training and other trackers continue"]


def test_a_slow_sink_holds_up_nobody(no_trackers: RunSinks, capsys: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    slow, quick = Recorder(gate=gate), Recorder()
    sinks = no_trackers
    sinks.add("slow", slow)
    sinks.add("quick", quick)
    for step in range(10):
        sinks.put(alert(step))
    sinks.close(timeout=0.05)
    assert said(capsys)[0] == "slow did not finish in time; the events that it had not written are lost there"
    assert [event.step for event in quick.events] == list(range(10))
    gate.set()


def test_events_that_were_dropped_are_counted(
    no_trackers: RunSinks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "MAX_WAITING", 3)
    gate, began = threading.Event(), threading.Event()

    class Slow(Recorder):
        def put(self, event: Event) -> None:
            began.set()
            super().put(event)

    slow = Slow(gate=gate)
    sinks = no_trackers
    sinks.add("slow", slow)
    sinks.put(alert(0))
    assert began.wait(10)
    for step in range(1, 10):
        sinks.put(alert(step))
    gate.set()
    sinks.close()
    assert [event.step for event in slow.events] == [0, 7, 8, 9]
    assert said(capsys) == ["slow could not keep up; 6 events were dropped there"]


def test_the_sinks_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = Recorder()
    active: list[Sink] = []

    def maker(directory: Path) -> Sink | None:
        return active[0] if active else None

    def broken(directory: Path) -> Sink | None:
        raise OSError("not of this version")

    monkeypatch.setattr("toposcope.monitor.sinks.opening.sink_makers", lambda: {"late": maker, "broken": broken})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.db").touch()
    sink = open_sinks(tmp_path / "mine", ignored, jsonl=tmp_path / "events.jsonl")
    active.append(late)
    sink.put(measured(100))
    sink.put(alert(101))
    sink.close()
    assert [event.step for event in late.events] == [100, 101]
    assert len((tmp_path / "events.jsonl").read_text("utf-8").splitlines()) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "toposcope: broken: not used (not of this version)"
    assert second.endswith(f"live page: toposcope show {tmp_path / 'mine'}")
    assert third == "toposcope: ALERT at step 101: The loss rose to nan at step 101."


def test_a_file_that_cannot_be_used_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text("import torch\n")
    sink = open_sinks(tmp_path, ignored, jsonl=tmp_path / "events.jsonl", quiet=True)
    sink.put(measured(1))
    sink.put(alert(1))
    sink.close()
    first, second = said(capsys)
    assert first.endswith("name another file; events are not written to it")
    assert second.startswith("ALERT")


def test_a_wrong_address_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="webhook: the URL must be"):
        Monitor(directory=tmp_path, webhook="http://example.org/secret")


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    sink_makers.cache_clear()
    yield
    sink_makers.cache_clear()


def test_another_package_adds_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_registry: None) -> None:
    code = """
class Pager:
    def __init__(self, directory):
        self.file = directory / "pages.txt"

    def put(self, event):
        with self.file.open("a") as stream:
            stream.write(f"{type(event).__name__} {event.step}\\n")

    def close(self):
        self.file.open("a").write("closed")


SINK = Pager
"""
    install(tmp_path / "site", monkeypatch, "toposcope.sinks", "pager", code)
    sink = open_sinks(tmp_path, ignored, quiet=True)
    sink.put(measured(100))
    sink.close()
    assert (tmp_path / "pages.txt").read_text() == "Measured 100\nclosed"


def test_a_package_at_fault_leaves_the_monitor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_registry: None, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "site", monkeypatch, "toposcope.sinks", "pager", "1 / 0", package="careless")
    sink = open_sinks(tmp_path, ignored, quiet=True)
    sink.put(measured(100))
    sink.put(alert(101))
    sink.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("toposcope: trackers: not used (careless, entry point pager = ")
    assert "ZeroDivisionError" in first
    assert second.startswith("toposcope: ALERT")


def test_what_sinks_take_is_counted(tmp_path: Path) -> None:
    class Busy(Recorder):
        def put(self, event: Event) -> None:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass

    spent: list[float] = []
    sinks = RunSinks(tmp_path, spent.append)
    sinks.add("busy", Busy())
    for step in range(3):
        sinks.put(alert(step))
    sinks.close()
    assert len(spent) == 3
    assert sum(spent) >= 0.06
