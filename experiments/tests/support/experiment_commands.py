"""The command of an experiment with networks of its own, run as a user runs it."""

import json
from pathlib import Path
from typing import Any

from commands import Done, called


def written_by(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_three_times(folder: Path, *arguments: str) -> tuple[dict[str, Any], Done]:
    """Run a command, run it again over what is there, and with two workers elsewhere: every file is the same.

    Returns what the first printed as JSON, and the result of the second.
    """
    first = called(*arguments, "--out", folder / "one", "--workers", "1", "--json")
    assert first.code == 0, first.err
    before = written_by(folder / "one")
    again = called(*arguments, "--out", folder / "one", "--workers", "1")
    two = called(*arguments, "--out", folder / "two", "--workers", "2")
    assert (again.code, two.code) == (0, 0)
    assert written_by(folder / "one") == written_by(folder / "two") == before
    return json.loads(first.out), again
