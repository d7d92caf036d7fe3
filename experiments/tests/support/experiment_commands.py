"""The command of an experiment with networks of its own, run as a user runs it."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from toposcope.cli import toposcope


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(toposcope, [*map(str, arguments)], env={"COLUMNS": "200"})


def written_by(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_three_times(folder: Path, *arguments: str) -> tuple[dict[str, Any], Result]:
    """Run a command, run it again over what is there, and with two workers elsewhere: every file is the same.

    Returns what the first printed as JSON, and the result of the second.
    """
    first = run(*arguments, "--out", folder / "one", "--workers", "1", "--json")
    assert first.exit_code == 0, first.output
    before = written_by(folder / "one")
    again = run(*arguments, "--out", folder / "one", "--workers", "1")
    two = run(*arguments, "--out", folder / "two", "--workers", "2")
    assert (again.exit_code, two.exit_code) == (0, 0)
    assert written_by(folder / "one") == written_by(folder / "two") == before
    return json.loads(first.stdout), again
