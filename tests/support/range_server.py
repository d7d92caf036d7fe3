"""An HTTP server on this machine that serves a folder by ranges, counts what it sends, and misbehaves when told to."""

import html
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

STEP = 1 << 16


@dataclass
class Conduct:
    """How the server behaves; counts of misbehaviour go down as they are used up.

    Attributes
    ----------
    cut_after : int
        Bytes of a body after which the connection is cut.
    n_cuts : int
        How often.
    statuses : list of (int, dict)
        Answers given, one a request, instead of content.
    ranges : bool
        Whether Range is understood.
    content_range : str
        Told in place of the true one.
    tags : bool
        Whether ETag and Last-Modified are told.
    extra : bytes
        Sent behind each body.
    authorization : str
        Value of the Authorization header that is asked for, if any.
    slowly : float
        Seconds between the parts of a body.
    """

    cut_after: int = 0
    n_cuts: int = 0
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    ranges: bool = True
    content_range: str = ""
    tags: bool = True
    extra: bytes = b""
    authorization: str = ""
    slowly: float = 0.0


class RangeServer(ThreadingHTTPServer):
    """Serves a folder; ``url`` is its address.

    Attributes
    ----------
    conduct : Conduct
    sent : int
        Bytes of bodies, so far.
    requests : list of str
        Method and path of each request, so far.
    seen : list of dict
        The headers of each request.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.conduct = Conduct()
        self.sent = 0
        self.requests: list[str] = []
        self.seen: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else each short body waits for the answer to its header.
    disable_nagle_algorithm = True
    server: RangeServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        server, conduct = self.server, self.server.conduct
        with server.lock:
            server.requests.append(f"{self.command} {self.path}")
            server.seen.append({name.lower(): value for name, value in self.headers.items()})
            told = conduct.statuses.pop(0) if conduct.statuses else None
        if told:
            self.plain(*told)
        elif conduct.authorization and self.headers.get("Authorization") != conduct.authorization:
            self.plain(401)
        else:
            self.serve()

    def serve(self) -> None:
        self.serve_path(self.server.folder / unquote(urlsplit(self.path).path).lstrip("/"))

    def serve_path(self, path: Path) -> None:
        if path.is_dir() and not self.path.endswith("/"):
            self.plain(301, {"Location": self.path + "/"})
        elif path.is_dir():
            self.index(path)
        elif path.is_file():
            self.file(path.read_bytes(), self.tag(path))
        else:
            self.plain(404)

    def tag(self, path: Path) -> dict[str, str]:
        status = path.stat()
        return {"ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"'} if self.server.conduct.tags else {}

    def plain(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def index(self, folder: Path) -> None:
        names = [p.name + ("/" if p.is_dir() else "") for p in sorted(folder.iterdir())]
        links = [f'<a href="{html.escape(quote(name))}">{html.escape(name)}</a>' for name in names]
        # What else stands on such pages, and what a hostile one may hold.
        links += [
            f'<a href="{href}">x</a>'
            for href in (
                "../",
                "?C=N;O=D",
                "/",
                "..%2f..%2fetc%2fpasswd",
                "http://example.com/x.pt",
                "a/../../b.pt",
                "//[",
            )
        ]
        page = f"<html><body>{'<br>'.join(links)}</body></html>".encode()
        self.body(200, page, {"Content-Type": "text/html; charset=utf-8"})

    def file(self, content: bytes, headers: dict[str, str]) -> None:
        conduct = self.server.conduct
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted or not conduct.ranges:
            self.body(200, content, headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        if first >= len(content):
            self.plain(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        told = conduct.content_range or f"bytes {first}-{last}/{len(content)}"
        self.body(206, content[first : last + 1], {**headers, "Content-Range": told})

    def body(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        conduct, length = self.server.conduct, len(content)
        content += conduct.extra
        cut = status == 206 and conduct.n_cuts > 0 and len(content) > conduct.cut_after
        if cut:
            conduct.n_cuts -= 1
            content = content[: conduct.cut_after]
        parts = [content[start : start + STEP] for start in range(0, len(content), STEP)]
        # The first is counted before the header goes out, since a client may go on once it has read that.
        self.count(parts[0] if parts else b"")
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for k, part in enumerate(parts):
            if k:
                self.count(part)
            self.wfile.write(part)
            if conduct.slowly:
                time.sleep(conduct.slowly)
        if cut:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def count(self, part: bytes) -> None:
        with self.server.lock:
            self.server.sent += len(part)


@contextmanager
def running(server: RangeServer) -> Iterator[RangeServer]:
    """Run a server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
