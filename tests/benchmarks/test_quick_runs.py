"""Benchmarks still run: the quick ones among those of `make bench`, on little data."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
QUICK = (
    *("activations", "checkpoints", "gpu", "hidden_states", "intrinsic_dimension", "models", "point_clouds"),
    *("gradients", "population", "population_measuring", "whole_commands", "whole_model"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_run_writes_its_tables(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--out", str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "no GPU" in ended.stdout or [path.suffix for path in sorted(tmp_path.iterdir())] == [".csv"]
