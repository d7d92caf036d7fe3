"""The Python of the README runs as it is printed, on a model, points and a study that stand in for the reader's."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_studies import NEURAL_PERSISTENCE, series_study, write_series

from toposcope.study import run_study

README = Path(__file__).parents[1] / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    checkpoints = write_series(tmp_path / "checkpoints", list(range(20)))
    run_study(series_study(checkpoints, [NEURAL_PERSISTENCE], steps=[0, 1]), tmp_path / "toposcope-demo", workers=1)
    names: dict[str, Any] = {
        "model": SimpleNamespace(fc=torch.nn.Linear(6, 4)),
        "points": np.random.default_rng(0).standard_normal((20, 3)),
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["frame"]["step"].unique().sort().to_list() == [0, 10]
    assert [len(names["h0"].pairs), names["study"].frame().is_empty()] == [19, False]
