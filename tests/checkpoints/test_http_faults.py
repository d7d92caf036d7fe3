"""What goes wrong between a server and here: each fault is mended or told in a line, and nothing wrong is believed."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples
from range_server import RangeServer, running

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import CheckpointError, StoredFile, http_requests, roots
from toposcope.checkpoints.tuning import MAX_TRIES
from toposcope.errors import ToposcopeError

MB = 1_000_000
SIZE = 6 * MB
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


def refused(file: StoredFile, kind: str, *words: str, start: int = 5, stop: int = 5 * MB) -> str:
    with pytest.raises(CheckpointError) as caught:
        file.read(start, stop)
    message = str(caught.value)
    assert caught.value.kind == kind
    assert message.startswith(file.location)
    assert "\n" not in message
    assert len(message) - len(file.location) < 300
    for word in words:
        assert word in message
    return message


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, SIZE), st.integers(0, SIZE), st.integers(1, SIZE), st.integers(0, 4))
def test_any_range_however_often_it_is_cut(server: RangeServer, a: int, b: int, cut_after: int, n_cuts: int) -> None:
    start, stop = sorted((a, b))
    server.conduct.cut_after, server.conduct.n_cuts = cut_after, n_cuts
    assert opened(server).read(start, stop).tobytes() == CONTENT[start:stop]


def test_a_cut_range_is_resumed_where_it_was_cut(server: RangeServer) -> None:
    file = opened(server)
    server.conduct.cut_after, server.conduct.n_cuts = 2 * MB, 2
    assert file.read(0, SIZE).tobytes() == CONTENT
    assert server.sent == SIZE
    assert [headers.get("range") for headers in server.seen[1:]] == [f"bytes={k * 2 * MB}-{SIZE - 1}" for k in range(3)]


def test_a_connection_that_is_cut_every_time_is_given_up(server: RangeServer) -> None:
    file = opened(server)
    server.conduct.cut_after, server.conduct.n_cuts = 1000, 10**9
    refused(file, "unreachable", "the connection was cut at byte", f"{MAX_TRIES} times", "again later")
    assert len(server.requests) == 1 + MAX_TRIES
    # Where each try brings a good part, it goes on.
    server.conduct.cut_after = MB
    assert file.read(0, SIZE).tobytes() == CONTENT


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "0"}), (503, {}), (500, {}), (408, {})])
def test_a_server_that_is_busy_is_asked_again(server: RangeServer, status: int, headers: dict[str, str]) -> None:
    file = opened(server)
    server.conduct.statuses = [(status, headers)] * (MAX_TRIES - 1)
    assert file.read(5, 5 * MB).tobytes() == CONTENT[5 : 5 * MB]
    server.conduct.statuses = [(status, headers)] * MAX_TRIES
    refused(file, "unreachable", f"the server answers {status}, {MAX_TRIES} times")


def test_the_wait_is_what_the_server_asks_for(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.5)
    file = opened(server)
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    server.conduct.statuses = [
        (429, {"Retry-After": "7"}),
        (429, {"RateLimit": '"resolvers";r=0;t=33'}),
        (503, {"Retry-After": date}),
        (503, {"Retry-After": "soon"}),
        (503, {}),
    ]
    assert len(file.read(5, 10)) == 5
    assert waits[:2] == [7, 33]
    assert 50 < waits[2] <= 60
    assert waits[3:] == [4, 8]
    server.conduct.statuses = [(429, {"Retry-After": "86400"})]
    refused(file, "unreachable", "requests a wait of 86400 seconds")


def test_a_server_that_ignores_range_is_refused_without_a_download(server: RangeServer) -> None:
    (server.folder / "large.bin").write_bytes(bytes(40 * MB))
    file = opened(server, "large.bin")
    server.conduct.ranges = False
    refused(file, "unreachable", "the server sends the whole file of 40000000 bytes for a request of", "download it")
    # What lies in the buffers between is not read, but counted.
    assert server.sent < 20 * MB
    assert file.read(0, 40 * MB).tobytes() == bytes(40 * MB)


def test_a_small_file_of_a_server_that_ignores_range_is_read_whole(server: RangeServer) -> None:
    (server.folder / "small.bin").write_bytes(CONTENT[: MB // 2])
    server.conduct.ranges = False
    file = opened(server, "small.bin")
    assert file.read(1000, 2000).tobytes() == CONTENT[1000:2000]
    assert file.read(0, 10).tobytes() == CONTENT[:10]
    assert file.read(MB // 2 - 10, MB // 2).tobytes() == CONTENT[MB // 2 - 10 : MB // 2]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (f"bytes 0-4999994/{SIZE}", "unreachable"),
        (f"bytes 5-4999998/{SIZE}", "unreachable"),
        ("bytes 5-4999999/*", "unreachable"),
        ("5-4999999", "unreachable"),
        (f"bytes 5-4999999/{SIZE + 1}", "changed"),
        (f"bytes 5-4999999/{1 << 62}", "changed"),
        ("x" * 5000, "unreachable"),
    ],
)
def test_a_wrong_content_range_is_refused(server: RangeServer, told: str, kind: str) -> None:
    file = opened(server)
    server.conduct.content_range = told
    refused(file, kind)


def test_more_bytes_than_promised_are_not_believed(server: RangeServer) -> None:
    file = opened(server)
    server.conduct.extra = b"more"
    assert file.read(5, 5 * MB).tobytes() == CONTENT[5 : 5 * MB]


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


def test_without_tags_nothing_is_kept_between_reads(server: RangeServer, tmp_path: Path) -> None:
    server.conduct.tags = False
    ((_, root),) = roots(f"{server.url}/a.bin", Access(folder=tmp_path / "kept"))
    file = root.files()["a.bin"]
    assert file.read(0, 100).tobytes() == CONTENT[:100]
    (server.folder / "a.bin").write_bytes(CONTENT[::-1])
    assert file.read(0, 100).tobytes() == CONTENT[::-1][:100]


def test_more_is_asked_for_than_the_file_holds(server: RangeServer) -> None:
    file = opened(server)
    refused(file, "truncated", "it ends at byte 6000000, 6000001 are needed", stop=SIZE + 1)
    assert not server.sent


def test_a_server_that_falls_silent(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(server)
    monkeypatch.setattr(http_requests, "TIMEOUT", 0.1)
    server.conduct.pause = 2.0
    refused(file, "unreachable", "no answer in time at byte 5", f"{MAX_TRIES} times")


@pytest.mark.parametrize("length", ["9" * 5000, str(1 << 63), "-1", "many"])
def test_sizes_that_are_not_valid(server: RangeServer, length: str) -> None:
    server.conduct.statuses = [(200, {"Content-Length": length})] * 50
    ((_, root),) = roots(f"{server.url}/a.bin", Access(keep=0))
    with pytest.raises(CheckpointError) as caught:
        root.files()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_nobody_listens(server: RangeServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.bin"
        with pytest.raises(ToposcopeError, match="no connection") as caught:
            series(url, access=Access(keep=0))
    assert str(caught.value).startswith(url)


def test_redirects_without_end_or_to_no_server(server: RangeServer) -> None:
    file = opened(server)
    for target in (f"{server.url}/a.bin", "ftp://example.com/a.bin", "http://[", "http://127.0.0.1:99999/"):
        server.conduct.statuses = [(302, {"Location": target})] * 30
        refused(file, "unreachable")
        server.conduct.statuses = []
