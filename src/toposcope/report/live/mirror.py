"""Logs that nobody monitors, as studies: another process reads them, which ends with the server."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from toposcope.report.live.assets import last_line

WORKER = "toposcope.monitor.mirror"  # needs the heavy libraries, which the server does without
INDEX, ERRORS = "index.json", "errors"  # files in its folder: what it found, and what it printed
STOP_SECONDS = 5  # time for the process to delete what it made
MAX_RETRY_SECONDS = 60  # longest time until a process that ended is started again
LONG_SECONDS = 120  # of work after which a process that ended counts as one that worked


@dataclass(frozen=True)
class MirroredLogs:
    """What the process found so far."""

    studies: dict[str, str] = field(default_factory=dict)  # folder of the database by the name of each log
    faults: list[str] = field(default_factory=list)
    refused: str = ""  # why the file that was named is none that can be shown
    not_shown: str = ""  # a sentence on the logs of a folder that are refused


class LogMirror:
    """The process, and what it found; thread-safe."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._retry_at, self._retry_seconds = 0.0, 0.0, 1.0
        self._found, self._fault = MirroredLogs(), ""
        self._is_closed = False

    def look(self) -> MirroredLogs:
        """Ask the process to look again, and return what it had found before."""
        with self._lock:
            if not self._is_closed and not (self.target / "study.db").is_file():
                self._ask()
            if self._folder is not None:
                with suppress(OSError, ValueError):  # there is none before the first look
                    self._found = MirroredLogs(**json.loads((self._folder / INDEX).read_bytes()))
            faults = [*self._found.faults, *([self._fault] if self._fault else [])]
            return replace(self._found, faults=faults)

    def first(self, seconds: float) -> MirroredLogs:
        """Wait until the process has looked once, `seconds` at most, and return what it found."""
        deadline = time.monotonic() + seconds
        found = self.look()
        while found == MirroredLogs() and time.monotonic() < deadline:
            time.sleep(0.05)
            found = self.look()
        return found

    def _ask(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process)
        if self._process is None and time.monotonic() >= self._retry_at:
            self._process = self._start()
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has just ended, or is busy and was asked often enough
                self._process.stdin.write(b"\n")

    def _start(self) -> "subprocess.Popen[bytes]":
        self._started = time.monotonic()
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="toposcope-show-"))
        command = [sys.executable, "-P", "-m", WORKER, str(self.target), str(self._folder)]
        with (self._folder / ERRORS).open("wb") as errors:
            # Ctrl-C reaches the server alone, which ends the process; -P: no module of the user's folder is imported
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, bufsize=0, start_new_session=True
            )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _ended(self, process: "subprocess.Popen[bytes]") -> None:
        """Note why the process ended, and when to start another."""
        if process.stdin is not None:
            process.stdin.close()
        errors = b""
        with suppress(OSError):
            errors = (self._folder / ERRORS).read_bytes() if self._folder is not None else b""
        why = last_line(errors) if errors else f"exit status {process.returncode}"
        worked = time.monotonic() - self._started > LONG_SECONDS
        self._retry_seconds = 1.0 if worked else min(MAX_RETRY_SECONDS, 2 * self._retry_seconds)
        self._retry_at = time.monotonic() + self._retry_seconds
        self._fault = f"{self.target}: the process that reads logs ended ({why}) and was started again"
        self._process = None

    def close(self) -> None:
        """End the process, and delete what it made."""
        with self._lock:
            self._is_closed = True
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
                try:
                    self._process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
