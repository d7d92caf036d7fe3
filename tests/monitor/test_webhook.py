"""The webhook, against a server on this machine; its address is a secret."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from live_server import WAIT_SECONDS, served
from monitored_events import alert, forecasted, ignored, measured

from toposcope.errors import ToposcopeError
from toposcope.monitor.events import Logged
from toposcope.monitor.sinks import webhook
from toposcope.monitor.sinks.opening import RunSinks
from toposcope.monitor.sinks.webhook import WebhookSink

SECRET = "T0K3N-abc"


class Handler(BaseHTTPRequestHandler):
    """Keeps what is posted, and answers with the next of the wanted statuses."""

    posted: ClassVar[list[dict[str, Any]]]
    statuses: ClassVar[list[int]]
    paths: ClassVar[list[str]]
    address: ClassVar[str]
    waits: ClassVar[float] = 0.0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).paths.append(self.path)
        time.sleep(self.waits)
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            type(self).posted.append(json.loads(body))
        self.send_response(status)
        if status in {302, 307}:
            self.send_header("Location", f"http://127.0.0.1:{self.connection.getsockname()[1]}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[type[Handler]]:
    Handler.posted, Handler.statuses, Handler.paths, Handler.waits = [], [], [], 0.0
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.address = f"http://127.0.0.1:{running.server_address[1]}/{SECRET}"
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield Handler
    running.shutdown()
    running.server_close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(webhook, "time", clock)
    return clock


def test_beginning_alerts_and_end_are_sent(server: Any, clock: Clock) -> None:
    sink = WebhookSink(server.address, "mine")
    sink.put(Logged(1, {"loss": 3.0}))
    clock.now += 2
    for event in (measured(100), forecasted(100), alert(101)):
        sink.put(event)
    sink.close()
    assert [post["text"] for post in server.posted] == [
        "mine: training started",
        "mine, step 101: The loss rose to nan at step 101.",
        "mine: the monitor stopped at step 101",
    ]
    (event,) = server.posted[1]["events"]
    assert event["evidence"] == {"value": "nan"}
    assert (event["event"], event["kind"], event["step"], event["since"]) == ("alert", "loss spike", 101, 100)


def test_alerts_that_come_fast_are_sent_together(server: Any, clock: Clock) -> None:
    sink = WebhookSink(server.address, "mine")
    for step in range(50):
        sink.put(alert(step))
    sink.close()
    assert len(server.posted) == 2
    assert len(server.posted[1]["events"]) == 50
    assert server.posted[1]["text"].splitlines()[-1] == "and 30 more"


def test_a_failure_that_passes_loses_nothing(server: Any, clock: Clock) -> None:
    server.statuses[:] = [503, 429]
    sink = WebhookSink(server.address, "mine")
    sink.put(alert(1))
    sink.put(alert(2))
    assert len(server.paths) == 1
    clock.now += 2
    sink.put(alert(3))
    clock.now += 8
    sink.put(Logged(4, {}))
    assert len(server.paths) == 3
    (post,) = server.posted
    assert [event["step"] for event in post["events"]] == [0, 1, 2, 3]


def test_it_gives_up_after_a_few_tries(server: Any, clock: Clock) -> None:
    server.statuses[:] = [500] * 100
    sink = WebhookSink(server.address, "mine")
    for step in range(webhook.MAX_TRIES - 1):
        sink.put(Logged(step, {}))
        clock.now += 10_000
    with pytest.raises(ToposcopeError, match="it answered with status 500"):
        sink.put(Logged(9, {}))
    assert len(server.paths) == webhook.MAX_TRIES


@pytest.mark.parametrize("status", [302, 307, 400, 404])
def test_a_refusal_or_redirect_is_final(server: Any, status: int) -> None:
    server.statuses[:] = [status]
    sink = WebhookSink(server.address, "mine")
    with pytest.raises(ToposcopeError, match=f"it answered with status {status}") as raised:
        sink.put(alert(1))
    assert server.paths == [f"/{SECRET}"]
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_the_address_is_not_shown_anywhere(
    server: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    sinks = RunSinks(tmp_path, ignored)
    server.statuses[:] = [200, 404]
    sink = WebhookSink(server.address, "mine")
    sinks.add("webhook", sink)
    sinks.put(Logged(1, {}))
    sinks.close()
    printed = capfd.readouterr()
    assert printed.err == (
        "toposcope: webhook failed and is closed: it answered with status 404; check the URL, and that it accepts JSON;"
        " training and other trackers continue\n"
    )
    shown = "".join((repr(sink), caplog.text, *printed))
    assert SECRET not in shown
    assert "127.0.0.1" not in shown


def test_without_an_answer_it_goes_on(server: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_SECONDS", 0.05)
    server.waits = 1.0
    sink = WebhookSink(server.address, "mine")
    sink.put(alert(1))
    assert server.posted == []
    server.waits = 0.0
    monkeypatch.setattr(webhook, "TIMEOUT_SECONDS", 10.0)
    clock.now += 10
    sink.put(Logged(2, {}))
    assert [event["event"] for event in server.posted[-1]["events"]] == ["begin", "alert"]


def test_without_a_server_it_goes_on(clock: Clock) -> None:
    sink = WebhookSink(f"http://127.0.0.1:1/{SECRET}", "mine")
    sink.put(alert(1))
    with pytest.raises(ToposcopeError, match="no connection") as raised:
        sink.close()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        f"http://example.org/{SECRET}",
        f"http://127.0.0.1.example.org/{SECRET}",
        f"https:///{SECRET}",
        f"ftp://localhost/{SECRET}",
        f"file:///{SECRET}",
        f"https://user:{SECRET}@example.org/",
        f"https://example.org:{SECRET}/",
        f"https://[{SECRET}/",
        SECRET,
        "",
    ],
)
def test_other_addresses_are_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ToposcopeError, match="webhook: the URL must be https") as raised:
        WebhookSink(address, "mine")
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("address", ["https://example.org/x", "http://localhost:1/x", "http://[::1]:80/x"])
def test_these_are_taken(address: str) -> None:
    WebhookSink(address, "mine")


@pytest.mark.slow
def test_the_live_page_posts_a_run_that_comes_to_need_a_person_and_none_that_did_before(
    tmp_path: Path, server: Any
) -> None:
    rows = "".join(f"step {k}/400: train loss {2 + 3 * k**-0.4:.4f}\n" for k in range(1, 201))
    logs = {name: tmp_path / "runs" / name / "train.log" for name in ("old", "mine")}
    for name, log in logs.items():
        log.parent.mkdir(parents=True)
        log.write_text(rows + "step 201/400: train loss nan\n" * (name == "old"))
    with served(tmp_path / "runs", tmp_path / "cache", "--webhook", server.address) as page, page.events() as events:
        next(m for _, m in events if all(f'title="{name}"' in m["html"]["runs"] for name in logs))
        with logs["mine"].open("a") as file:
            file.write("step 201/400: train loss nan\n")
        message = next(m for _, m in events if m["needs"])
        until = time.monotonic() + WAIT_SECONDS
        while not (posts := [post for post in server.posted if post["events"][0]["event"] == "attention"]):
            assert time.monotonic() < until
            time.sleep(0.1)
    (post,) = posts
    assert message["needs"].keys() == {"mine"}
    assert [(each["event"], each["run"], each["step"]) for each in post["events"]] == [("attention", "mine", 201)]
    assert post["text"].startswith("mine: Diverged.")
    assert SECRET not in json.dumps([message, post])
