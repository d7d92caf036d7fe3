"""The command line, called in this process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from toposcope.cli import main


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


def called(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """Call a command, as in a terminal of 200 columns, in a folder."""
    words = ["toposcope", *map(str, arguments)]
    with (
        patch.object(sys, "argv", words),
        patch.dict(os.environ, COLUMNS="200"),
        chdir(cwd or Path.cwd()),
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as err,
    ):
        try:
            main()
        except SystemExit as end:
            return Done(int(end.code or 0), out.getvalue(), err.getvalue())
        return Done(0, out.getvalue(), err.getvalue())


def installed(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """Run the command as installed beside this Python, in a process of its own; it never shows a traceback."""
    command = [Path(sys.executable).with_name("toposcope"), *arguments]
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    assert "Traceback" not in done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


PROGRESS = re.compile(r"(?!note|Error)[^:]+: (done|started, .* to do|[\d.,]+( \w+|%)?(/.*)?(, .* left)?)")
"""Lines on a stage: that it starts and ends, and on a slow machine how far it is."""


def complaints(done: Done) -> list[str]:
    """What was written to standard error besides progress."""
    return [line for line in done.err.splitlines() if line and not PROGRESS.fullmatch(line)]


def succeed(*arguments: str | Path, by: Callable[..., Done] = called, cwd: Path | None = None) -> str:
    """Run a command that works; its output."""
    done = by(*arguments, cwd=cwd)
    assert (done.code, complaints(done)) == (0, [])
    return done.out


def fail(*arguments: str | Path, note: str = "") -> list[str]:
    """Run a command whose work fails in part; what it says, a line for each failure, and perhaps where the rest is."""
    done = called(*arguments)
    lines = [line for line in complaints(done) if not note or note not in line or line.startswith("Error: ")]
    assert lines
    assert all(line.startswith("Error: ") for line in lines), lines
    assert done.code == 1
    return lines


def complaint_of(*arguments: str | Path, by: Callable[..., Done] = called) -> str:
    """The one line that a command says of a mistake in its use."""
    done = by(*arguments)
    (line,) = done.err.splitlines()
    assert line.startswith("Error: ")
    assert (done.code, done.out) == (2, "")
    return line


def strict_json(text: str) -> Any:
    """Parse JSON without the NaN and Infinity that Python would write and take."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
