"""Results of OpenCompass and MTEB."""

import json
from pathlib import Path

import pytest

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations import read_evaluations


def test_a_summary_of_opencompass(tmp_path: Path) -> None:
    (tmp_path / "summary.csv").write_text(
        "dataset,version,metric,mode,m-100M,m-400M\n"
        "--------- Exam ---------,-,-,-,-,-\n"
        "ceval,-,naive_average,gen,31.5,40.25\n"
        "ARC-c,2ef631,accuracy,ppl,22.5,-\n"
    )
    found = read_evaluations(tmp_path)
    scores = found.table.filter(role="score").select("run", "task", "value").rows()
    assert scores == [("m-100M", "ARC-c", 0.225), ("m-100M", "ceval", 0.315), ("m-400M", "ceval", 0.4025)]
    assert any("1 cell is empty (-): ignored" in remark for remark in found.remarks)


def test_results_of_mteb(tmp_path: Path) -> None:
    for model, value in (("org__m-100M", 0.5), ("org__m-400M", 0.75)):
        folder = tmp_path / model / "abc123"
        folder.mkdir(parents=True)
        scores = {"test": [{"main_score": value, "hf_subset": "en"}, {"main_score": value - 0.25, "hf_subset": "de"}]}
        (folder / "Banking77.json").write_text(json.dumps({"task_name": "Banking77", "scores": scores}))
    table = read_evaluations(tmp_path).table
    assert table.select("run", "N", "task", "value", "role").rows() == [
        ("org/m-100M", 1e8, "Banking77", 0.375, "score"),
        ("org/m-400M", 4e8, "Banking77", 0.625, "score"),
    ]


def test_a_result_of_mteb_without_a_score_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"task_name": "X", "scores": {"test": [{"accuracy": 1}]}}))
    with pytest.raises(ToposcopeError, match="no main_score"):
        read_evaluations(tmp_path / "x.json")
