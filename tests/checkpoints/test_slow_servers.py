"""A server that sends a byte now and then, or pages without end, is given up."""

import threading
from pathlib import Path
from typing import Any

import pytest
from range_server import Handler, RangeServer, running

from toposcope.checkpoints import Access, series
from toposcope.checkpoints.sources import http_requests, web
from toposcope.errors import ToposcopeError


class Drip(Handler):
    """Sends a byte at a time: of the headers, of an index page, or of a file."""

    where = "body"

    def answer(self) -> None:
        if self.where == "headers":
            for _ in range(60):
                self.wfile.write(b"H")
                threading.Event().wait(0.05)
            self.close_connection = True
            return
        if self.where == "pages":
            links = "".join(f'<a href="{k}/">x</a>' for k in range(40)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(links)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(links)
            return
        if self.command == "HEAD":
            self.plain(200, {"Content-Length": "5000", "ETag": '"x"'})
            return
        self.send_response(206)
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        self.send_header("Content-Range", f"bytes {first}-{last}/5000")
        self.send_header("Content-Length", str(int(last) - int(first) + 1))
        self.send_header("ETag", '"x"')
        self.end_headers()
        for _ in range(60):
            self.wfile.write(b"x")
            threading.Event().wait(0.05)


@pytest.mark.parametrize(
    ("where", "words"),
    [("body", "too few bytes a second"), ("headers", "no answer in time"), ("pages", "more than 100 folders")],
)
def test_a_server_without_end_is_given_up(
    where: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "ANSWER_SECONDS", 0.4)
    monkeypatch.setattr(http_requests, "WINDOW_SECONDS", 0.4)
    monkeypatch.setattr(web, "MAX_PAGES", 100)
    monkeypatch.setattr(http_requests, "MAX_TRIES", 2)
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.0)

    class Here(Drip):
        pass

    Here.where = where
    server: Any = RangeServer(tmp_path)
    server.RequestHandlerClass = Here
    address = f"{server.url}/{'' if where == 'pages' else 'step_1.pt'}"

    def read() -> None:
        series(address, access=Access(folder=tmp_path / "kept"))[0].layers()

    with running(server), pytest.raises(ToposcopeError, match=words) as caught:
        read()
    assert "\n" not in str(caught.value)
