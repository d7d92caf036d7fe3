"""The file of JSON lines, and the terminal."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
from monitored_events import alert, forecasted, measured

from toposcope.errors import ToposcopeError
from toposcope.logs import read_logs
from toposcope.monitor.events import Alert, Logged
from toposcope.monitor.sinks import terminal
from toposcope.monitor.sinks.jsonl import JsonlSink
from toposcope.monitor.sinks.terminal import TerminalSink


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_event_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "below" / "events.jsonl"
    sink = JsonlSink(path)
    for event in (Logged(1, {"loss": math.inf, "event": 3.0}), measured(1), alert(1), forecasted(1)):
        sink.put(event)
    assert len(lines(path)) == 4
    sink.close()
    log, measurement, warning, forecast = lines(path)
    assert log == {"event": "log", "step": 1, "loss": "inf"}
    assert measurement["skipped"] == ["distances: over budget"]
    assert {"layer": "layers.0.attn.weight", "probe": "rips", "total persistence": 1.5} in measurement["rows"]  # type: ignore[operator]
    assert warning["evidence"] == {"value": "nan"}
    assert warning["message"] == "The loss rose to nan at step 1."
    assert (forecast["loss"], forecast["advice"]) == (2.5, "Go on.")


def test_it_is_a_training_log(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "events.jsonl")
    for step in range(1, 40):
        sink.put(Logged(step, {"loss": 3 - step / 100}))
    sink.close()
    (log,) = read_logs(tmp_path / "events.jsonl").logs
    assert log.steps.tolist() == list(range(1, 40))


def test_a_killed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for cut in (0, 1, 5, 30):
        path.unlink(missing_ok=True)
        first = JsonlSink(path)
        for step in range(3):
            first.put(Logged(step, {"loss": 1.0}))
        first.close()
        path.write_bytes(path.read_bytes()[: -cut or None])
        again = JsonlSink(path)
        again.put(Logged(3, {"loss": 1.0}))
        again.close()
        assert [row["step"] for row in lines(path)] == ([0, 1, 2, 3] if cut == 0 else [0, 1, 3])


@pytest.mark.parametrize("content", [b"import torch\n", b"\x80\x04", b"{" + b"a" * 100_000])
def test_another_file_is_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(ToposcopeError, match="is not a file of JSON lines; name another file"):
        JsonlSink(path)
    assert path.read_bytes() == content


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match="cannot be written"):
        JsonlSink(tmp_path)


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
        terminal.say("step 4")
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
        terminal.say("step 4, loss 3.25")
        progress.refresh()
    written = stream.getvalue()
    assert "toposcope: step 4, loss 3.25\n" in written
    assert "40%" in written[written.index("toposcope") :]
