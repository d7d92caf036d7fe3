"""The command line, called in this process."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from toposcope.cli import main


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


def called(*arguments: str | Path) -> Done:
    """Call a command."""
    before, sys.argv = sys.argv, ["toposcope", *map(str, arguments)]
    try:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            try:
                main()
            except SystemExit as end:
                return Done(int(end.code or 0), out.getvalue(), err.getvalue())
            return Done(0, out.getvalue(), err.getvalue())
    finally:
        sys.argv = before


def complaint_of(*arguments: str | Path) -> str:
    """The one line that a command says of a mistake in its use."""
    done = called(*arguments)
    (line,) = done.err.splitlines()
    assert line.startswith("Error: ")
    assert (done.code, done.out) == (2, "")
    return line
