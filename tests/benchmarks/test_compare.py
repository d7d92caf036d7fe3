"""Benchmark results from commit to commit: what changed by more than its spread is printed, and nothing else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def spread(median: float, low: float, high: float) -> str:
    return f"{median},{low},{high}"


def results(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir()
    lines = ["table,row,key,title,value,low,high", ",,benchmark,fact,loops,,"]
    for number, row in enumerate(rows):
        cells = {key: value if "," in str(value) else f"{value},," for key, value in row.items()}
        lines += [f"H1,{number},{key},{key},{cell}" for key, cell in cells.items()]
    (folder / "loops-some-cpu.csv").write_text("\n".join(lines) + "\n")
    return folder


def compare(old: object, new: object) -> tuple[int, list[str]]:
    command = [sys.executable, "benchmarks/compare.py", str(old), str(new)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_only_figures_beyond_their_spread_are_printed(tmp_path: Path) -> None:
    old = results(
        tmp_path / "old",
        {"cloud": "1000 x 2", "seconds": spread(1.0, 0.9, 1.1), "ratio": spread(2.0, 1.9, 2.1), "megabytes": 100},
        {"cloud": "1000 x 2", "seconds": spread(5.0, 4.0, 6.0), "megabytes": 100},
    )
    new = results(
        tmp_path / "new",
        {"cloud": "1000 x 2", "seconds": spread(1.3, 1.2, 1.4), "ratio": spread(2.2, 2.0, 2.4), "megabytes": 109},
        {"cloud": "1000 x 2", "seconds": spread(5.5, 4.5, 6.5), "megabytes": 111},
    )
    code, lines = compare(old, new)
    assert code == 1
    assert lines == [
        "loops-some-cpu: H1: 1000 x 2: seconds: 1 (0.9 to 1.1) -> 1.3 (1.2 to 1.4), x 1.30",
        "loops-some-cpu: H1: 1000 x 2 (2): megabytes: 100 -> 111, x 1.11",
        "2 changes beyond their spread; 5 figures compared",
    ]


def test_rows_of_one_side_are_named(tmp_path: Path) -> None:
    old = results(tmp_path / "old", {"cloud": "a", "seconds": spread(1, 1, 1)})
    new = results(tmp_path / "new", {"cloud": "b", "seconds": spread(1, 1, 1)})
    assert compare(old, new)[1][:2] == [
        "loops-some-cpu: H1: a: seconds: only in the old results",
        "loops-some-cpu: H1: b: seconds: only in the new results",
    ]


def test_equal_results_have_no_changes(tmp_path: Path) -> None:
    old = results(tmp_path / "old", {"cloud": "a", "seconds": spread(1, 1, 1)})
    assert compare(old, old) == (0, ["0 changes beyond their spread; 1 figures compared"])


def test_a_revision_is_read_from_the_repository() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    code, lines = compare("HEAD", "HEAD")
    assert code == 0
    assert lines[-1].startswith("0 changes")


def test_an_unknown_place_is_refused_in_one_line() -> None:
    code, lines = compare("no-such-revision", "HEAD")
    assert code == 1
    assert lines[0].startswith("no-such-revision: neither a file, a folder nor a revision")
