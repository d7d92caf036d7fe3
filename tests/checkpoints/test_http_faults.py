"""What goes wrong between a server and here: each fault is overcome or told in a line; no wrong byte is believed."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples
from range_server import Handler, RangeServer, running

from toposcope import untrusted
from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import CheckpointError, StoredFile, remote, roots, web
from toposcope.errors import ToposcopeError

MB = 1_000_000
SIZE = 6 * MB
BLOCK = remote.BLOCK_BYTES
CONTENT = np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def server(served: Path) -> Iterator[RangeServer]:
    (served / "a.bin").write_bytes(CONTENT)
    with running(RangeServer(served)) as server:
        yield server


def opened(server: RangeServer, name: str = "a.bin") -> StoredFile:
    """Return a file as it was listed, nothing of it kept."""
    ((_, root),) = roots(f"{server.url}/{name}", Access(keep=0))
    file = root.files()[name]
    assert file.size == (server.folder / name).stat().st_size
    return file


def refused(file: StoredFile, kind: str, *words: str, start: int = 5, stop: int = 5 * MB) -> None:
    with pytest.raises(CheckpointError) as caught:
        file.read(start, stop)
    message = str(caught.value)
    assert caught.value.kind == kind, message
    assert message.startswith(file.location)
    assert "\n" not in message
    assert len(message) - len(file.location) < 300
    for word in words:
        assert word in message


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, SIZE), st.integers(0, SIZE), st.integers(1, SIZE), st.integers(0, 4), st.booleans())
def test_any_range_however_often_it_is_cut(
    server: RangeServer, a: int, b: int, cut_after: int, n_cuts: int, tags: bool
) -> None:
    start, stop = sorted((a, b))
    server.conduct.tags = tags
    server.conduct.cut_after, server.conduct.n_cuts = cut_after, n_cuts
    assert opened(server).read(start, stop).tobytes() == CONTENT[start:stop]


def test_a_cut_range_is_resumed_where_it_was_cut(server: RangeServer) -> None:
    file = opened(server)
    server.conduct.cut_after, server.conduct.n_cuts = 2 * MB, 2
    assert file.read(0, SIZE).tobytes() == CONTENT
    assert server.sent == SIZE + 1
    assert [headers["range"] for headers in server.seen[1:]] == [f"bytes={k * 2 * MB}-{SIZE - 1}" for k in range(3)]


def test_a_connection_that_is_cut_every_time_is_given_up(server: RangeServer) -> None:
    file = opened(server)
    server.conduct.cut_after, server.conduct.n_cuts = 1000, 10**9
    refused(file, "unreachable", "the connection is cut", "again later")
    assert len(server.requests) == 2 + remote.MAX_CUTS
    # Where each try brings a block, it goes on.
    server.conduct.cut_after = BLOCK
    assert file.read(0, SIZE).tobytes() == CONTENT


@pytest.mark.parametrize("status", [429, 503, 500, 408])
def test_a_server_that_is_busy_is_asked_again(server: RangeServer, status: int) -> None:
    file = opened(server)
    server.conduct.statuses = [(status, {})] * 5
    assert file.read(5, 5 * MB).tobytes() == CONTENT[5 : 5 * MB]
    server.conduct.statuses = [(status, {})] * 6
    refused(file, "unreachable", f"the server answers {status}; run the same command again later")
    assert not server.conduct.statuses


def test_the_wait_is_what_the_server_asks_for(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    file = opened(server)
    server.conduct.statuses = [(429, {"Retry-After": "7"}), (429, {"RateLimit": '"resolvers";r=0;t=33'})]
    assert len(file.read(5, 10)) == 5
    assert waits[0] >= 7
    assert waits[1] >= 33


def test_a_server_that_ignores_range_is_refused_without_a_download(server: RangeServer) -> None:
    (server.folder / "large.bin").write_bytes(bytes(40 * MB))
    file = opened(server, "large.bin")
    server.conduct.ranges = False
    refused(file, "unreachable", "its server sends all of its 40000000 bytes", "download it and give its path")
    # What lies in the buffers between is not read, but counted.
    assert server.sent < 20 * MB
    assert file.read(0, 40 * MB).tobytes() == bytes(40 * MB)
    # A small one is read, as those that lie in git on the hub.
    small = opened(server)
    for start, stop in ((1000, 2000), (0, SIZE), (SIZE - 10, SIZE), (MB, 3 * MB)):
        assert small.read(start, stop).tobytes() == CONTENT[start:stop]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (f"bytes 0-{5 * MB - 1}/{SIZE}", "unreachable"),
        (f"bytes 1-{5 * BLOCK}/{SIZE}", "unreachable"),
        ("bytes 0-5111807/*", "unreachable"),
        ("0-5111807", "unreachable"),
        (f"bytes 0-5111807/{SIZE + 1}", "changed"),
        (f"bytes 0-5111807/{(1 << 62) // 10}", "changed"),
        ("x" * 5000, "unreachable"),
    ],
)
def test_a_wrong_content_range_is_refused(server: RangeServer, told: str, kind: str) -> None:
    file = opened(server)
    server.conduct.content_range = told
    refused(file, kind)


def test_more_or_compressed_bytes_are_not_believed(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(server)
    server.conduct.extra = b"more"
    assert file.read(5, 5 * MB).tobytes() == CONTENT[5 : 5 * MB]
    server.conduct.extra = b""
    tag = server.RequestHandlerClass.tag  # type: ignore[attr-defined]
    monkeypatch.setattr(Handler, "tag", lambda self, path: {**tag(self, path), "Content-Encoding": "gzip"})
    refused(file, "unreachable", "compresses")


@pytest.mark.parametrize("tags", [True, False])
def test_a_file_that_is_replaced_between_two_reads(server: RangeServer, tags: bool) -> None:
    server.conduct.tags = tags
    file = opened(server)
    path = server.folder / "a.bin"
    assert bool(file.version) is tags
    path.write_bytes(CONTENT[::-1] if tags else CONTENT[:-1])
    refused(file, "changed", "replaced while it was being read; run the same command again")
    path.write_bytes(b"")
    refused(file, "changed")
    path.unlink()
    refused(file, "unreachable", "not there (404)")


def test_a_file_that_is_replaced_in_the_middle_of_a_range(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(server)
    server.conduct.cut_after, server.conduct.n_cuts = MB, 1

    def replace(_: float) -> None:
        (server.folder / "a.bin").write_bytes(CONTENT[::-1])
        os.utime(server.folder / "a.bin", ns=(1, 1))

    monkeypatch.setattr(time, "sleep", replace)
    refused(file, "changed")


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("place", ["", "a.bin"])
def test_what_a_replaced_file_held_is_not_read_from_a_cache(
    server: RangeServer, access: Access, place: str, tags: bool
) -> None:
    server.conduct.tags = tags
    for content in (CONTENT[:1000], CONTENT[1000:2000]):
        (server.folder / "a.bin").write_bytes(content)
        ((_, root),) = roots(f"{server.url}/{place}", access)
        assert root.files()["a.bin"].read(0, 1000).tobytes() == content


def test_more_is_asked_for_than_the_file_holds(server: RangeServer) -> None:
    refused(opened(server), "truncated", "it ends at byte 6000000, 6000001 are needed", stop=SIZE + 1)


@pytest.mark.parametrize("length", ["9" * 5000, str(1 << 63), "-1", "many"])
def test_sizes_that_are_not_valid(server: RangeServer, length: str) -> None:
    server.conduct.statuses = [(200, {"Content-Length": length})] * 50
    ((_, root),) = roots(f"{server.url}/a.bin", Access(keep=0))
    with pytest.raises(CheckpointError) as caught:
        root.files()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_nobody_listens(served: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.bin"
        with pytest.raises(ToposcopeError, match="no connection; run the same command again later") as caught:
            series(url, access=Access(keep=0))
    assert str(caught.value).startswith(url)


def test_redirects_without_end_or_to_no_server(server: RangeServer) -> None:
    file = opened(server)
    for target in (f"{server.url}/a.bin", "ftp://example.com/a.bin", "http://[", "http://127.0.0.1:99999/"):
        server.conduct.statuses = [(302, {"Location": target})] * 200
        refused(file, "unreachable")
        server.conduct.statuses = []


class Drip(Handler):
    """Sends a byte at a time, nothing at all, or pages without end."""

    where = "body"

    def answer(self) -> None:
        if self.where == "pages":
            links = "".join(f'<a href="{k}/">x</a>' for k in range(40)).encode()
            self.body(200, links, {"Content-Type": "text/html"})
            return
        if self.where == "silence":
            threading.Event().wait(3)
            return
        if self.where == "later":
            self.body(429, b"", {"Retry-After": "3"})
            return
        self.send_response(206)
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        headers = {"Content-Range": f"bytes {first}-{last}/5000", "Content-Length": str(int(last) - int(first) + 1)}
        for name, value in {**headers, "ETag": '"x"'}.items():
            self.send_header(name, value)
        self.end_headers()
        for _ in range(60):
            self.wfile.write(b"x")
            threading.Event().wait(0.05)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("pages", "files or folders without end"),
        *((where, "no answer in time") for where in ("body", "silence", "later")),
    ],
)
def test_a_server_without_end_is_given_up(
    where: str, words: str, served: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if where != "pages":
        monkeypatch.setattr(untrusted, "MAX_SECONDS", 0.5)
        monkeypatch.setattr(untrusted, "SAID_AFTER_SECONDS", 0.3)
        monkeypatch.setattr(web, "TIMEOUT", 0.1)
    monkeypatch.setattr(web, "MAX_PAGES", 100)
    monkeypatch.setattr(remote, "MAX_CUTS", 1)
    server: Any = RangeServer(served)
    server.RequestHandlerClass = type("Here", (Drip,), {"where": where})
    with running(server), pytest.raises(ToposcopeError, match=words) as caught:
        series(f"{server.url}/{'' if where == 'pages' else 'step_1.pt'}", access=Access(keep=0))[0].layers()
    assert "\n" not in str(caught.value)
    said = [record.getMessage() for record in caplog.records if record.name == untrusted.__name__]
    assert where == "pages" or any("no answer for 0.3 s; waiting, 0.5 s at most" in line for line in said)
