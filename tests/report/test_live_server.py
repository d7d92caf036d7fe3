"""The live page's server: who may read, what is sent when."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from commands import complaint_of
from live_server import LiveServer, served
from live_studies import live_study

from toposcope.report.live.security import MAX_CONNECTIONS, MAX_REQUEST_BYTES, REQUEST_SECONDS

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[LiveServer]:
    study = live_study(tmp_path_factory.mktemp("runs") / "mine", steps=120, every=40)
    with served(study.directory, cache) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[LiveServer]:
    study = live_study(tmp_path_factory.mktemp("others") / "mine", steps=20, every=10)
    with served(study.directory, cache, "--host", "0.0.0.0", token=TOKEN) as running:
        yield running


def test_the_page_holds_no_row_and_no_script(server: LiveServer) -> None:
    answer = server.get()
    assert answer.status == 200
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', answer.body, re.DOTALL)
    assert found
    live = json.loads(found[1])["live"]
    assert live["lines"] == []
    assert live["runs"] == ["mine"]
    assert "neural_persistence np_mean" in [each["key"] for each in live["features"]]
    assert not re.search(r"<(iframe|img)\b|\bstyle=|<style|\bon\w+=", answer.body)
    assert [tag for tag in re.findall(r"<script[^>]*>", answer.body) if "json" not in tag and "src=" not in tag] == []
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    for name in re.findall(r'(?:src|href)="(\w+\.(?:js|css))"', answer.body):
        assert server.get(name).status == 200, name


def test_answers_are_not_stored_framed_or_read_elsewhere(server: LiveServer) -> None:
    headers = server.get().headers
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not {"access-control-allow-origin", "server"} & headers.keys()


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx"]
)
def test_a_request_without_end_is_refused(server: LiveServer, begin: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client, pytest.raises(ConnectionError):
        client.sendall(begin + b"x" * 256 * MAX_REQUEST_BYTES)


def test_half_a_request_ends_and_makes_room(server: LiveServer) -> None:
    halves = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_CONNECTIONS + 20)]
    for half in halves:
        half.sendall(b"GET / HTTP/1.1\r\n")
    assert server.get().status == 200
    began = time.monotonic()
    with suppress(ConnectionError):
        assert halves[-1].recv(1) == b""
    assert time.monotonic() - began < 3 * REQUEST_SECONDS
    for half in halves:
        half.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading(server: LiveServer, method: str) -> None:
    assert server.get("", method).status == 405


@pytest.mark.parametrize("path", ["", "events", "page.js"])
def test_another_name_is_refused(server: LiveServer, path: str) -> None:
    for name in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        assert server.get(path, host=name).status in (400, 421), name
    for name in ("192.168.0.7", "0x7f.1", "[::ffff:8.8.8.8]"):
        assert server.get(path, host=name).status == 421, name


def test_a_tunnel_from_another_port_is_let_through(server: LiveServer) -> None:
    for name in ("localhost:9000", "127.0.0.1:1", "[::1]:9000"):
        assert server.get(host=name).status == 200, name


def test_another_origin_is_refused(server: LiveServer) -> None:
    path = "page.js"
    own = server.root.rstrip("/")
    assert server.get(path, origin=own).status == 200
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{server.port + 1}", f"{own}.evil.example"):
        assert server.get(path, origin=origin).status == 403, origin
    assert server.get(path, sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    assert server.get(path, sec_fetch_site="same-site", sec_fetch_mode="cors").status == 403
    assert server.get("", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


def test_other_machines_need_the_token(guarded: LiveServer) -> None:
    assert guarded.address.endswith(f"/?token={TOKEN}")
    for path in ("", "events", "page.js", "?token=wrong", "?token=", f"?token={TOKEN}x"):
        assert guarded.get(path, host="10.0.0.5").status == 403, path
    assert guarded.get("", cookie=f"toposcope-{guarded.port}=wrong").status == 403
    assert guarded.get("", host="evil.example").status == 421
    answer = guarded.get(f"?token={TOKEN}")
    assert answer.status == 303
    assert TOKEN not in answer.headers["location"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert guarded.get("", cookie=cookie.partition(";")[0]).status == 200


def test_a_token_is_made_where_none_is_given(tmp_path: Path, cache: Path) -> None:
    study = live_study(tmp_path / "mine", steps=5, every=5)
    with served(study.directory, cache, "--host", "0.0.0.0") as running:
        assert len(running.address.partition("token=")[2]) >= 30


def losses(message: dict[str, Any]) -> list[int]:
    """The steps of the losses in a message."""
    return [step for key, _, _, steps, _ in message["lines"] if key == "log loss" for step in steps]


def test_hostile_choices_are_no_queries(server: LiveServer) -> None:
    with server.events("events?run=mine&quantity='%20OR%201=1--&study=%00") as events:
        _, message = next(events)
    assert {layer for _, _, layer, *_ in message["lines"]} == {"", "network"}


@pytest.mark.slow
def test_rows_arrive_once_and_a_restart_goes_on(tmp_path: Path, cache: Path) -> None:
    study = live_study(tmp_path / "mine", steps=100, every=50)
    with served(study.directory, cache) as running:
        with running.events() as events:
            last, first = next(events)
            assert losses(first) == list(range(1, 101))
            study.log([101])
            while not losses(first := next(events)[1]):
                pass
            assert losses(first) == [101]
        port = str(running.port)
    study.log([102, 103])
    with served(study.directory, cache, "--port", port) as running:
        for known in ({"last_event_id": last}, {}):  # of a browser that reconnects; of one that shows other layers
            with running.events("events" if known else f"events?after={quote(last)}", **known) as events:
                assert losses(next(events)[1]) == [101, 102, 103]


@pytest.mark.parametrize(
    "known",
    [
        "",
        "{",
        "7",
        '{"mine":3}',
        '{"mine":["a",1,1,1,1,1]}',
        '{"mine":[1,2]}',
        "[" * 9000,
        '{"mine":[9999999999999999999999,1,1,1,1,1]}',
    ],
)
def test_a_position_that_is_not_understood_begins_anew(server: LiveServer, known: str) -> None:
    with server.events(last_event_id=known) as events:
        _, message = next(events)
    assert losses(message) == list(range(1, 121))


def test_tabs_of_one_browser_take_turns(tmp_path: Path, cache: Path) -> None:
    study = live_study(tmp_path / "mine", steps=20, every=10)
    with served(study.directory, cache) as running, running.events(user_agent="a") as first:
        next(first)
        for _ in range(4):
            with running.events(user_agent="b") as other:
                next(other)
        opened = [running.events(user_agent="a") for _ in range(4)]
        for each in opened:
            next(each.__enter__())
        assert list(first) == []  # it has ended; the browser opens it again
        for each in opened:
            each.__exit__(None, None, None)


def test_the_second_script_is_small_and_knows_no_other_server() -> None:
    script = resources.files("toposcope.report").joinpath("script", "live.js").read_text(encoding="utf-8")
    assert len(script.encode()) < 11_000
    assert not re.search(r"https?:|innerHTML|eval|import\(|XMLHttp", script)


@pytest.mark.slow
def test_a_folder_without_a_study_waits_for_one(tmp_path: Path, cache: Path) -> None:
    with served(tmp_path, cache) as running, running.events() as events:
        _, message = next(events)
        assert "No run here yet" in message["html"]["now"]
        shape = message["shape"]
        live_study(tmp_path / "mine", steps=5, every=5)
        while message["shape"] == shape:
            _, message = next(events)
        assert "Loss spike at step 2" in message["html"]["now"]


def test_mistakes_are_one_line(tmp_path: Path, server: LiveServer) -> None:
    assert "cannot listen" in complaint_of("show", tmp_path, "--port", str(server.port))
    assert "cannot listen" in complaint_of("show", tmp_path, "--host", "192.0.2.1")
    picture = tmp_path / "loss.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    assert "loss.png: not a training log of a known format" in complaint_of("show", picture)
