"""The scripts of the documentation train, and leave a study behind."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import called

DOCS = Path(__file__).parents[2] / "docs" / "live"
TORCHRUN = "-m torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0".split()


def run(folder: Path, *command: str | Path) -> str:
    """Run Python in a folder, with as many threads as a process of tests has."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def test_every_script_is_on_a_page() -> None:
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    shown = re.findall(r"\{literalinclude\} scripts/(\w+)\.py", pages)
    assert sorted(shown) == sorted(path.stem for path in (DOCS / "scripts").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "needs", "launcher", "name", "last_step"),
    [
        ("plain_loop", "torch", (), "plain", 200),
        ("transformers_trainer", "transformers", (), "trainer", 100),
        ("lightning_trainer", "lightning", (), "lightning", 150),
        ("accelerate_loop", "accelerate", (), "accelerate", 150),
        ("fsdp2", "torch", TORCHRUN, "fsdp2", 60),
    ],
)
def test_a_script_leaves_a_study(
    script: str, needs: str, launcher: Sequence[str], name: str, last_step: int, tmp_path: Path
) -> None:
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    said = run(tmp_path, *launcher, DOCS / "scripts" / f"{script}.py")
    assert f"toposcope show runs/{name}" in said
    assert "ALERT" not in said
    assert "continues without" not in said
    study = tmp_path / "runs" / name
    with closing(sqlite3.connect(f"file:{study / 'study.db'}?mode=ro", uri=True)) as database:
        assert database.execute("SELECT run, status, last_step FROM runs").fetchall() == [(name, "complete", last_step)]
        steps = [step for (step,) in database.execute("SELECT step FROM log WHERE loss IS NOT NULL ORDER BY step")]
        measured = [step for (step,) in database.execute("SELECT DISTINCT step FROM measurements ORDER BY step")]
    assert steps == list(range(1, last_step + 1))
    assert {0, last_step} <= set(measured)
    assert called("report", str(study)).code == 0
    assert (study / "report" / "index.html").stat().st_size > 10_000
