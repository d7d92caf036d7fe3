"""The registry of sinks, the thread that each has, the file of JSON lines, and the terminal."""

import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored_events import alert, forecasted, ignored, measured
from outside_package import install

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Alert, Event, Logged
from toposcope.monitor.monitor import Monitor
from toposcope.monitor.sinks import opening, terminal
from toposcope.monitor.sinks.opening import RunSinks, open_sinks, sink_makers
from toposcope.monitor.sinks.sink import Sink
from toposcope.monitor.sinks.terminal import TerminalSink


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
    sinks, found, call = RunSinks(tmp_path, ignored), list[tuple[int, str]](), 0
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
    sink = open_sinks(tmp_path / "mine", ignored)
    active.append(late)
    sink.put(measured(100))
    sink.put(alert(101))
    sink.close()
    assert [event.step for event in late.events] == [100, 101]
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "toposcope: broken: not used (not of this version)"
    assert second.endswith(f"live page: toposcope show {tmp_path / 'mine'}")
    assert third == "toposcope: ALERT at step 101: The loss rose to nan at step 101."


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


def test_there_is_one_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    sink = TerminalSink(lambda: "live page: toposcope show runs/mine")
    for step in range(0, 3000, 100):
        sink.put(Logged(step, {"loss": 3.25}))
        sink.put(measured(step, 0.25))
        sink.put(forecasted(step))
        clock[0] += 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "toposcope: step 0, loss 3.25, gradient norm 0.5, live page: toposcope show runs/mine",
        "toposcope: step 1,000, loss 3.25, gradient norm 0.5, final loss 2.5 (2.4 to 2.7)",
        "toposcope: step 2,000, loss 3.25, gradient norm 0.5, final loss 2.5 (2.4 to 2.7)",
    ]


def test_alerts_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    sink = TerminalSink()
    sink.put(alert(7))
    for layer in range(200):
        sink.put(Alert("dead", 8, 8, f"layers.{layer}", f"Layer {layer} \x1b[2J died."))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "toposcope: ALERT at step 7: The loss rose to nan at step 7."
    assert said[1] == "toposcope: ALERT at step 8: Layer 0 ?[2J died."
    assert len(said) == 1 + terminal.MAX_ALERTS_PER_STEP + 1


def test_bars_of_tqdm_stay_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with tqdm.tqdm(total=10, file=stream, ascii=True, mininterval=0) as bar:
        bar.update(4)
        terminal.echo("step 4")
        bar.update(1)
    written = stream.getvalue()
    before, after = written.split("toposcope: step 4\n")
    # the bar is wiped before the line, and drawn again below it
    assert before.endswith("\r")
    assert "4/10" in after


def test_bars_of_rich_stay_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.progress import Progress

    monkeypatch.delitem(sys.modules, "tqdm", raising=False)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with Progress(console=console, auto_refresh=False) as progress:
        task = progress.add_task("train", total=10)
        progress.update(task, advance=4)
        progress.refresh()
        terminal.echo("step 4, loss 3.25")
        progress.refresh()
    written = stream.getvalue()
    assert "toposcope: step 4, loss 3.25\n" in written
    assert "40%" in written[written.index("toposcope") :]
