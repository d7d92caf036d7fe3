"""Tables and JSON of several models, what in them is no score, and forms that are not read."""

from pathlib import Path

import pytest
from score_files import read_files, said

from toposcope.errors import ToposcopeError
from toposcope_downstream.evaluations import Evaluations


def scores(evaluations: Evaluations, *columns: str) -> list[tuple[object, ...]]:
    """Return columns of the scores, a row each, values rounded."""
    rows = evaluations.table.filter(role="score").select(*columns, "value").rows()
    return sorted((*row[:-1], round(row[-1], 5)) for row in rows)


OPENCOMPASS = """dataset,version,metric,mode,m-1.8b-hf,m-7b-hf
ceval,-,naive_average,gen,47.0,50.0
ARC-c,aa,accuracy,ppl,30,40
"""
CARD = "| Benchmark | m | m-chat |\n|---|---|---|\n| MMLU | 33.1 | 45.0 |\n"
MTEB = {"task_name": "AFQMC", "scores": {"test": [{"main_score": 0.3, "hf_subset": "en"}]}}
OLD_MTEB = {"mteb_dataset_name": "Old", "test": {"evaluation_time": 3, "en": {"main_score": 0.4}}}
HELM = [{"name": {"name": "exact_match", "split": "test"}, "count": 1, "sum": 0.3, "mean": 0.3}]
HELM_TABLE = [{"title": "Accuracy", "header": [{"value": "Model"}], "rows": [[{"value": "org/a-1B"}, {"value": 0.5}]]}]


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "summary.csv": OPENCOMPASS,
        "results.csv": "tasks,Llama-2-7B,Llama-2-13B\nMMLU,45.3,54.8\nTriviaQA,68.9,77.2\n",
        "README.md": CARD,
        "AFQMC.json": MTEB,
        "Old.json": OLD_MTEB,
        "stats.json": HELM,
        "core_scenarios.json": HELM_TABLE,
    }.items(),
)
def test_forms_that_are_not_read_are_refused_in_one_line(name: str, content: object, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError) as refused:
        read_files(tmp_path, {name: content})
    message = str(refused.value)
    assert "\n" not in message
    assert "holds no evaluations of a known format" in message or "its rows are tasks and its columns models" in message


def test_columns_of_shares_beside_percentages(tmp_path: Path) -> None:
    text = "model,N,zorp_rate,zorp,piqa,GSM8K\na,1e8,0.31,20.5,0.6,0.5\nb,2e8,0.42,30,0.7,0.9\n"
    evaluations = read_files(tmp_path, {"scores.csv": text})
    assert [value for *_, value in scores(evaluations, "run", "task")] == [
        *(0.005, 0.6, 0.205, 0.31),
        *(0.009, 0.7, 0.3, 0.42),
    ]
    assert "4 scores among percentages at most 1" in said(evaluations)
    assert "all scores of GSM8K are at most 1: taken as percentages like the others" in said(evaluations)


def test_columns_that_are_no_scores(tmp_path: Path) -> None:
    names = "Models,arc_easy_acc,arc_easy_acc_stderr,WER,Toxicity ↓,zorp,Moyenne"
    text = f"{names}\na,0.5,0.01,12,0.2,OOM,0.5\nb,0.6,0.01,10,0.1,.5,0.5\n"
    evaluations = read_files(tmp_path, {"scores.csv": text})
    assert evaluations.tasks == ("arc_easy", "zorp")
    assert "no scores by their names, not read: arc_easy_acc_stderr, WER, Toxicity ↓" in said(evaluations)
    assert "1 cell holds no number, in zorp" in said(evaluations)
    assert "no tasks: Moyenne" in said(evaluations)


def test_a_leaderboard_of_nested_objects(tmp_path: Path) -> None:
    rows = [
        {
            "model": {"name": f"org/x-{i}", "average_score": 10.0},
            "evaluations": {"bbh": {"name": "BBH", "value": 0.3, "normalized_score": 12.5}},
            "metadata": {"params_billions": i, "hub_hearts": 5},
        }
        for i in (1, 7)
    ]
    evaluations = read_files(tmp_path, {"models.json": rows})
    assert scores(evaluations, "N", "task", "metric") == [(1e9, "bbh", "value", 0.3), (7e9, "bbh", "value", 0.3)]


@pytest.mark.parametrize(
    "document",
    [
        {"a-1B": {"mmlu": 0.3, "zorp": 0.4, "average": 0.35}, "a-7B": {"mmlu": 0.5, "zorp": 0.6, "average": 0.55}},
        {"a-1B": {"mmlu": {"acc": 0.3}, "zorp": {"acc": 0.4}}, "a-7B": {"mmlu": {"acc": 0.5}, "zorp": {"acc": 0.6}}},
        {"model": ["a-1B", "a-7B"], "mmlu": [0.3, 0.5], "zorp": [0.4, 0.6]},
        [
            {"model": "a-1B", "results": {"mmlu": 0.3, "zorp": 0.4}},
            {"model": "a-7B", "results": {"mmlu": 0.5, "zorp": 0.6}},
        ],
    ],
)
def test_json_by_model_or_by_column(document: object, tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"scores.json": document})
    assert scores(evaluations, "run", "task") == [
        *(("a-1B", "mmlu", 0.3), ("a-1B", "zorp", 0.4)),
        *(("a-7B", "mmlu", 0.5), ("a-7B", "zorp", 0.6)),
    ]


def test_json_of_one_model(tmp_path: Path) -> None:
    for document in ({"mmlu": 0.3, "zorp": 0.4, "model": "a"}, {"mmlu": {"acc": 0.3}, "zorp": {"acc": 0.4}}):
        assert read_files(tmp_path, {"a.json": document}).tasks == ("mmlu", "zorp")


@pytest.mark.parametrize("name", ["", "Modell-Name", "size"])
def test_models_in_a_column_of_another_name(name: str, tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"scores.csv": f"{name},MMLU,zorp,note\n1B,0.3,0.4,x\n7B,0.5,0.6,y\n"})
    assert scores(evaluations, "run", "task")[:2] == [("1B", "MMLU", 0.3), ("1B", "zorp", 0.4)]


def test_the_parts_of_a_task_are_left_to_its_score(tmp_path: Path) -> None:
    text = "model,MMLU,mmlu_anatomy,mmlu_stem,mmlu_virology,mmlu_pro\na,0.5,0.4,0.3,0.2,0.1\nb,0.6,0.4,0.3,0.2,0.1\n"
    evaluations = read_files(tmp_path, {"scores.csv": text})
    assert evaluations.tasks == ("MMLU", "mmlu_pro")
    assert "3 parts are left to the score of MMLU: mmlu_anatomy, mmlu_stem, mmlu_virology" in said(evaluations)
