"""The notebooks of the documentation run, from an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
CELL = re.compile(r"^```\{code-cell\}\n((?::.*\n)*)(.*?)^```", re.MULTILINE | re.DOTALL)


def run(name: str, folder: Path, **environment: str) -> str:
    """Run the cells of a notebook in one process, as a kernel would, and return what they print."""
    cells = [code for _, code in CELL.findall((NOTEBOOKS / f"{name}.md").read_text("utf-8"))]
    assert cells
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_notebook_is_listed() -> None:
    listed = re.findall(r"^(\w+)$", (NOTEBOOKS / "index.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in NOTEBOOKS.glob("*.md") if path.stem != "index")


@pytest.mark.slow
def test_the_topologists(tmp_path: Path) -> None:
    printed = run("topologist", tmp_path)
    circle, blob = (float(x) for x in re.findall(r"longest loop, \w+: +([\d.]+)", printed))
    assert circle > 3 * blob
    assert re.search(r"itself +bottleneck 0.000  2-Wasserstein 0.000", printed)


@pytest.mark.slow
def test_the_engineers(tmp_path: Path) -> None:
    assert "the mean loss of the last 2% of the steps was" in run("engineer", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_students_without_data(tmp_path: Path) -> None:
    printed = run("student", tmp_path, PUBLISHED_STUDY=str(tmp_path))
    assert printed == "The released features are not here: set PUBLISHED_STUDY to the folder of the published study.\n"


@pytest.mark.slow
@pytest.mark.reference
def test_the_students(tmp_path: Path, published_study: Path) -> None:
    printed = run("student", tmp_path, PUBLISHED_STUDY=str(published_study))
    again = re.findall(r"H0 total ([+-][\d.]+) \(published ([+-][\d.]+)\)", printed)
    assert len(again) == 2
    assert all(found == published for found, published in again)
