"""Leaderboards and harnesses: every task is kept or named, averages are no tasks, MMLU is made from its subjects."""

from pathlib import Path
from typing import Any

import pytest
from evaluation_tables import evaluation_table
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples
from score_files import read_scores, said

from toposcope_downstream.evaluations import Evaluations, read_evaluations
from toposcope_downstream.evaluations.columns import label
from toposcope_downstream.evaluations.tasks import SUBJECTS, is_average

LEADERBOARD = """Model,Avg. ⬆️,Hub ❤️,#Params (B),Precision,IFEval Raw,IFEval,GPQA Raw,GPQA,ARC-c ↑,HellaSwag (10-shot),zo
org/a,12.3,4,1.2,bfloat16,0.2,20.1,0.25,0.5,33.1,45.0,3.5
org/b,13.3,40,3.2,bfloat16,0.25,25.1,0.26,0.9,35.2,50.0,-
"""


def value_of(evaluations: Evaluations, run: str, task: str) -> float:
    return float(evaluations.table.filter(run=run, task=task, role="score")["value"].item())


def test_a_leaderboard(tmp_path: Path) -> None:
    evaluations = read_scores(tmp_path, LEADERBOARD)
    expected = ("ARC-c", "GPQA", "GPQA Raw", "HellaSwag (10-shot)", "IFEval", "IFEval Raw", "zo")
    assert evaluations.tasks == expected
    assert value_of(evaluations, "org/a", "GPQA") == pytest.approx(0.005)
    assert value_of(evaluations, "org/a", "GPQA Raw") == pytest.approx(0.25)
    assert [evaluations.targets[task].chance for task in ("GPQA", "GPQA Raw", "ARC-c")] == [0.0, 0.25, 0.25]
    assert set(evaluations.table["N"]) == {1.2e9, 3.2e9}
    assert set(evaluations.table.filter(task="HellaSwag (10-shot)")["shots"]) == {10}
    for name in ("averages left out, as they are no tasks: Avg.", "Hub ❤️", "Precision"):
        assert name in said(evaluations)


@examples(45)
@given(seed=st.integers(0, 10**6))
@example(seed=0)
def test_any_leaderboard(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    table = evaluation_table(seed)
    evaluations = read_scores(tmp_path_factory.mktemp("scores"), table.text)
    remarks = said(evaluations)
    assert len(evaluations.tasks) == len(table.scores), (evaluations.tasks, table.text)
    assert not any(is_average(task) for task in evaluations.tasks)
    read = {
        tuple(sorted(round(value, 5) for value in rows["value"]))
        for _, rows in evaluations.table.filter(role="score").group_by("task")
    }
    assert read == {tuple(sorted(round(s, 5) for s in shares if s is not None)) for shares in table.scores.values()}
    assert set(evaluations.table["N"]) <= set(table.sizes)
    assert all(label(name) in label(remarks) for name in table.others)
    assert all(run.startswith("model-") for run in evaluations.table["run"])
    if table.averages:
        assert "averages left out" in remarks


def test_unknown_names_alone_are_tasks_of_a_table_of_models(tmp_path: Path) -> None:
    evaluations = read_scores(tmp_path, "model,foo,bar,Overall\nx-100M,0.31,0.4,0.35\nx-200M,0.35,0.45,0.4\n")
    assert evaluations.tasks == ("bar", "foo")


def test_hyperparameters_in_a_table_of_runs_are_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("run,task,acc,odd\nx,piqa,0.6,7\n")
    (tmp_path / "runs.csv").write_text("run,N,D,dropout,wd,mu\nx,1e8,2e9,0.1,0.1,0.2\n")
    evaluations = read_evaluations(tmp_path)
    assert evaluations.tasks == ("piqa",)
    assert "odd" in said(evaluations)


def test_columns_of_a_training_log_are_no_tasks(tmp_path: Path) -> None:
    evaluations = read_scores(tmp_path, "run,step,lr,ppl,odd,arc_easy_acc\na,1,0.1,30,0.4,0.3\na,2,0.1,20,0.5,0.4\n")
    assert evaluations.tasks == ("arc_easy",)
    assert "2 columns that are no scores by their names, not read: lr, ppl" in said(evaluations)
    assert "1 column that is not recognised as scores, not read: odd" in said(evaluations)


def lighteval(results: dict[str, dict[str, Any]], **more: object) -> dict[str, object]:
    return {"config_general": {"model_name": "org/m-1B"}, "results": results, "versions": {}, **more}


@pytest.mark.parametrize("behind", ["|25", "|25|0"])
def test_lighteval(behind: str, tmp_path: Path) -> None:
    results = {
        f"leaderboard|arc:challenge{behind}": {"acc": 0.3, "acc_norm": 0.35, "acc_norm_stderr": 0.01},
        "gsm8k|5": {"qem": 0.1},
        "leaderboard|mmlu:anatomy|5": {"acc": 0.27},
        "leaderboard|mmlu:_average|5": {"acc": 0.28},
        "all": {"acc": 0.37, "acc_norm": 0.42},
    }
    counts = {"leaderboard|arc:challenge": {"effective_num_docs": 99}}
    evaluations = read_scores(tmp_path, lighteval(results, config_tasks=counts), "results_2024.json")
    assert evaluations.tasks == ("arc_challenge", "gsm8k", "mmlu")
    rows = evaluations.table.filter(role="score").select("task", "shots", "value", "n").rows()
    assert rows == [("arc_challenge", 25, 0.35, 99), ("gsm8k", 5, 0.1, None), ("mmlu", 5, 0.28, 14042)]
    assert "no tasks: all" in said(evaluations)
    assert "left to the score of mmlu: mmlu_anatomy" in said(evaluations)


@pytest.mark.parametrize(
    "written", ["mmlu_{}", "hendrycksTest-{}", "leaderboard|mmlu:{}|5", "mmlu_{}:mc", "harness|hendrycksTest-{}|5"]
)
def test_mmlu_from_its_subjects(written: str, tmp_path: Path) -> None:
    values = {written.format(subject): {"acc": i / 100} for i, subject in enumerate(sorted(SUBJECTS))}
    whole = read_scores(tmp_path, lighteval(values), "results_a.json")
    assert whole.tasks == ("mmlu",)
    assert value_of(whole, "org/m-1B", "mmlu") == pytest.approx(0.28)
    assert "mean of its 57 subjects, unweighted" in said(whole)
    few = dict(list(values.items())[:12])
    part = read_scores(tmp_path, lighteval(few), "results_b.json")
    assert len(part.tasks) == 12
    assert "12 of the 57 subjects" in said(part)


def test_mmlu_is_weighted_by_questions_where_they_are_stated(tmp_path: Path) -> None:
    rows = [f"m,mmlu_{s},acc,{0.9 if i else 0.1},{100 if i else 400}" for i, s in enumerate(sorted(SUBJECTS))]
    evaluations = read_scores(tmp_path, "\n".join(["run,task,metric,value,n", *rows]))
    assert value_of(evaluations, "m", "mmlu") == pytest.approx((0.1 * 400 + 0.9 * 5600) / 6000)
    assert evaluations.table["n"].to_list() == [6000]
    assert "weighted by their questions" in said(evaluations)


def test_an_average_of_a_few_subjects_is_not_mmlu(tmp_path: Path) -> None:
    results = {f"lighteval|mmlu:{s}|5": {"acc": 0.25 + i / 10} for i, s in enumerate(("anatomy", "virology"))}
    results["lighteval|mmlu:_average|5"] = {"acc": 0.3}
    evaluations = read_scores(tmp_path, lighteval(results), "results_a.json")
    assert evaluations.tasks == ("mmlu_anatomy", "mmlu_virology")


def test_a_group_of_different_tasks_is_an_average(tmp_path: Path) -> None:
    results = {"openllm": {"acc,none": 0.4}, "piqa": {"acc,none": 0.6}, "boolq": {"acc,none": 0.5}}
    groups = {"openllm": ["piqa", "boolq"]}
    document = {"results": results, "group_subtasks": groups, "config": {}, "model_name": "m"}
    evaluations = read_scores(tmp_path, document, "results_a.json")
    assert evaluations.tasks == ("boolq", "piqa")
    assert "no tasks: openllm" in said(evaluations)


def test_a_table_of_runs_that_matches_none_or_some(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("run,task,acc\na,piqa,0.6\nb,piqa,0.6\nc,piqa,0.6\n")
    (tmp_path / "runs.csv").write_text("run,N,D\nlarge,1e8,2e9\n")
    remarks = said(read_evaluations(tmp_path))
    assert "runs.csv matches no run: it names large, the evaluations a, b, c; write its column run" in remarks
    (tmp_path / "runs.csv").write_text("run,N,D\na,1e8,2e9\nb,1e8,2e9\n")
    assert "2 of 3 runs are in runs.csv, without c" in said(read_evaluations(tmp_path))


def test_tasks_without_numbers_and_sizes_without_a_unit_are_named(tmp_path: Path) -> None:
    evaluations = read_scores(
        tmp_path, lighteval({"piqa|5": {"acc": 0.6}, "odd|0": {"words": "none"}}), "results_a.json"
    )
    assert "1 task has no score or loss: odd|0" in said(evaluations)
    assert "N up to 13 looks like millions or billions" in said(
        read_scores(tmp_path, "run,params,piqa\na,7,60\nb,13,70\n")
    )
