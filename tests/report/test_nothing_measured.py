"""The report of a study of hidden states in which no checkpoint could be measured."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import save_file

from toposcope.models.texts import Text
from toposcope.report import write_report
from toposcope.report.writing import study_page
from toposcope.study import Declaration, Study, run_study
from toposcope.study.declaration import DeclaredSeries

PROBES: list[dict[str, Any]] = [
    {"name": "hidden_states", "keep": 500},
    {"name": "language_modelling"},
]


def test_the_report_says_why_nothing_was_measured(tmp_path: Path) -> None:
    for step in (0, 1):
        place = tmp_path / f"series/step{step}"
        place.mkdir(parents=True)
        weights = {"gpt_neox.layers.0.attention.dense.weight": np.full((4, 4), step + 1, np.float32)}
        save_file(weights, place / "model.safetensors")
    (tmp_path / "read.txt").write_text("a text to be read, which no model here can read. " * 20)
    declaration = Declaration(
        name="nothing",
        series=[DeclaredSeries(path=str(tmp_path / "series"))],
        text=Text(source=str(tmp_path / "read.txt")),
        probes=PROBES,
    )
    errors = run_study(declaration, tmp_path / "study", workers=1)
    assert errors
    study = Study.load(tmp_path / "study")
    whole = study_page(study)
    assert whole.data.trajectories == []
    assert list(whole.charts()) == []
    page, answer = write_report(study)
    assert answer.first == "No loss of series is known; the doctor finds no fault in 2 checkpoints."
    assert dict(answer.findings)["Topology"].startswith("Not judged: no loss is known. A training log, ")
    report = page.with_name("report.md").read_text()
    assert "### What failed" in report
    reason = pl.read_csv(page.with_name("tables") / "errors.csv").item(0, "message")
    why = "no config.json with it, and a model neither of the family nor of nanoGPT"
    assert why in reason
    assert why in report
