"""`toposcope show` in a process of its own, and what it answers."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-c", "from toposcope.cli import main; main()", "show")
WAIT_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """A status, headers in lower case, and a body."""

    status: int
    headers: dict[str, str]
    body: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class LiveServer:
    """A server that runs: where it is, and its process."""

    address: str
    process: "subprocess.Popen[str]"

    @property
    def port(self) -> int:
        found = re.search(r":(\d+)/", self.address)
        assert found
        return int(found[1])

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str = "", method: str = "GET", **headers: str) -> Answer:
        """Ask; header names are written with underscores. Redirects are not followed."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.root + path, headers=named, method=method)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=WAIT_SECONDS) as answer:
                return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode())

    @contextmanager
    def events(self, path: str = "events", **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Listen: (id, data) of each event that is no heartbeat."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with urllib.request.urlopen(urllib.request.Request(self.root + path, headers=named), timeout=WAIT_SECONDS) as s:
            yield _events(s)


def _events(stream: Any) -> Iterator[tuple[str, Any]]:
    event: dict[str, str] = {}
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
            continue
        if event.get("data"):
            yield event["id"], json.loads(event["data"])
        event = {}


@contextmanager
def served(directory: Path, cache: Path, *options: str, token: str = "") -> Iterator[LiveServer]:
    """Serve a directory at a free port, unless the options name one."""
    environment = {**os.environ, "TOPOSCOPE_CACHE": str(cache), "PYTHONUNBUFFERED": "1", "TOPOSCOPE_TOKEN": token}
    chosen = options if "--port" in options else (*options, "--port", "0")
    process = subprocess.Popen(
        [*COMMAND, str(directory), *chosen], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("live page: "):
            assert process.stderr is not None
            raise AssertionError(f"it printed {line!r} and {process.stderr.read()!r}")
        yield LiveServer(line.removeprefix("live page: ").strip(), process)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
