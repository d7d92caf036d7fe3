"""Tables and results as OpenCompass, HELM, MTEB, lm-evaluation-harness in Markdown, and model cards write them."""

from pathlib import Path

import pytest
from score_files import read_files, said

from toposcope_downstream.evaluations import Evaluations


def scores(evaluations: Evaluations, *columns: str) -> list[tuple[object, ...]]:
    """Return columns of the scores, a row each, values rounded."""
    rows = evaluations.table.filter(role="score").select(*columns, "value").rows()
    return sorted((*row[:-1], round(row[-1], 5)) for row in rows)


OPENCOMPASS = """dataset,version,metric,mode,m-1.8b-hf,m-7b-hf
--------- Exam ---------,-,-,-,-,-
ceval-stem,-,naive_average,gen,35.1,40.2
ceval,-,naive_average,gen,47.0,50.0
ceval-physics,aa,accuracy,gen,30,40
mmlu_pro,1f,accuracy,gen,13,15
lukaemon_mmlu_anatomy,2f,accuracy,ppl,30,40
mmlu,-,naive_average,ppl,33,50
agieval,-,-,-,-,-
ARC-c,aa,accuracy,ppl,30,40
ARC-c,aa,accuracy,gen,31,41
openai_humaneval,8e,humaneval_pass@1,gen,10,12
zorp,8e,score,gen,10,-
"""


def test_opencompass(tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"summary_2024.csv": OPENCOMPASS})
    assert evaluations.tasks == ("ARC-c gen", "ARC-c ppl", "ceval", "mmlu", "mmlu_pro", "openai_humaneval", "zorp")
    assert ("m-7b-hf", 7e9, "ceval", 0.5) in scores(evaluations, "run", "N", "task")
    assert ("m-1.8b-hf", 1.8e9, "mmlu", 0.33) in scores(evaluations, "run", "N", "task")
    assert evaluations.targets["openai_humaneval"].chance == 0
    for words in (
        "each row is a task, each column a model: m-1.8b-hf, m-7b-hf",
        "left to the score of ceval: ceval-physics, ceval-stem",
        "left to the score of mmlu: lukaemon_mmlu_anatomy",
        "2 rows hold no score: --------- Exam ---------, agieval",
        "not read: version, mode",
        "1 cell is empty (-): ignored",
    ):
        assert words in said(evaluations)


CARD = """# A model
| layers | 24 |
|--|--|
| width | 1024 |

## Results
| Category | Benchmark (Metric) | # Shots | **m** | m-chat | Average |
|---|:--|---|---|---|---|
| | # Params | - | 1.1B | 7B | - |
| English | BBH (EM) | 3-shot | 30.1 | 40.0 | 35 |
| | MMLU (Acc.) | 5-shot | 33.1 | 45.0 | 35 |
| | Zorp (F1) | 0 | **3.1** | 45.0 | 35 |
| | Pile-test (BPB) | - | 0.9 | 0.7 | 0.8 |
| | Average | - | 31 | 40 | 35 |
"""


def test_the_table_of_a_model_card(tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"README.md": CARD})
    assert scores(evaluations, "run", "N", "task", "shots") == [
        ("m", 1.1e9, "BBH", 3, 0.301),
        ("m", 1.1e9, "MMLU", 5, 0.331),
        ("m", 1.1e9, "Zorp", 0, 0.031),
        ("m-chat", 7e9, "BBH", 3, 0.4),
        ("m-chat", 7e9, "MMLU", 5, 0.45),
        ("m-chat", 7e9, "Zorp", 0, 0.45),
    ]
    assert evaluations.table.filter(role="corpus_loss", run="m")["value"].to_list() == [0.9]
    assert "1 table holds no scores, not read (first columns: layers)" in said(evaluations)
    assert "no model, not read: Category, Average" in said(evaluations)
    assert "no tasks: Average" in said(evaluations)


@pytest.mark.parametrize("corner", ["", "Model", "Datasets"])
def test_a_turned_table_is_known_by_its_tasks(corner: str, tmp_path: Path) -> None:
    text = f"{corner},Llama-2-7B,Llama-2-13B\nMMLU,45.3,54.8\nTriviaQA,68.9,77.2\nXYZ,18.9,27.2\n"
    evaluations = read_files(tmp_path, {"scores.csv": text})
    assert evaluations.tasks == ("MMLU", "TriviaQA", "XYZ")
    assert set(evaluations.table["run"]) == {"Llama-2-7B", "Llama-2-13B"}


HARNESS = """hf (pretrained={model},dtype=float), num_fewshot: None
|      Tasks       |Version|     Filter     |n-shot|  Metric   |   |Value |   |Stderr|
|------------------|------:|----------------|-----:|-----------|---|-----:|---|-----:|
|gsm8k             |      3|flexible-extract|     5|exact_match|↑  |0.841 |±  |0.0116|
|                  |       |strict-match    |     5|exact_match|↑  |0.793 |±  |0.0128|
|mmlu              |      2|none            |      |acc        |↑  |0.6153|±  |0.0040|
| - humanities     |      2|none            |      |acc        |↑  |0.5641|±  |0.0071|
|  - formal_logic  |      1|none            |     0|acc        |↑  |0.4641|±  |0.0071|
| - stem           |      2|none            |      |acc        |↑  |0.5293|±  |0.0087|
|openllm           |      2|none            |      |acc        |↑  |0.6153|±  |0.0040|
| - boolq          |      2|none            |     0|acc        |↑  |0.5641|±  |0.0071|
| - piqa           |      2|none            |     0|acc        |↑  |0.5941|±  |0.0071|

|      Groups      |Version|Filter|n-shot|Metric|   |Value |   |Stderr|
|------------------|------:|------|------|------|---|-----:|---|-----:|
|mmlu              |      2|none  |      |acc   |↑  |0.6153|±  |0.0040|
| - humanities     |      2|none  |      |acc   |↑  |0.5641|±  |0.0071|
"""


def test_what_lm_evaluation_harness_prints(tmp_path: Path) -> None:
    text = HARNESS.format(model="EleutherAI/pythia-160m") + HARNESS.format(model="EleutherAI/pythia-410m")
    evaluations = read_files(tmp_path, {"results.md": text})
    assert scores(evaluations.__class__(evaluations.table.filter(run="EleutherAI/pythia-160m")), "task") == [
        ("boolq", 0.5641),
        ("gsm8k", 0.793),
        ("mmlu", 0.6153),
        ("piqa", 0.5941),
    ]
    assert set(evaluations.table["run"]) == {"EleutherAI/pythia-160m", "EleutherAI/pythia-410m"}
    assert evaluations.table.filter(task="mmlu")["standard_error"].to_list() == [0.004, 0.004]
    assert "no tasks: openllm" in said(evaluations)


def test_a_readme_beside_results_is_not_read(tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"scores.csv": "run,N,piqa\na,1e8,0.6\n", "README.md": CARD})
    assert evaluations.tasks == ("piqa",)


def helm_run(scenario: str, mean: float) -> dict[str, object]:
    def stat(name: str, value: float, **more: object) -> dict[str, object]:
        return {"name": {"name": name, "split": "test"} | more, "count": 1, "sum": value, "mean": value}

    name = f"{scenario},method=multiple_choice_joint,model=org_a-1B"
    stats = [
        *(stat("exact_match", mean), stat("quasi_exact_match", mean), stat("exact_match", 0.9, split="valid")),
        *(
            stat("exact_match", 0.01, perturbation={"name": "typos"}),
            stat("num_instances", 100),
            stat("ece_10_bin", 0.2),
        ),
    ]
    spec = {"name": name, "adapter_spec": {"model": "org/a-1B", "max_train_instances": 5}}
    questions = [{"instance_id": "id1", "stats": [stat("exact_match", 1.0)]}]
    folder = f"runs/v1/{name}"
    return {
        f"{folder}/stats.json": stats,
        f"{folder}/run_spec.json": spec,
        f"{folder}/per_instance_stats.json": questions,
    }


GROUPS = [
    {
        "title": title,
        "header": [
            {"value": "Model/adapter"},
            {"value": "Mean win rate"},
            {"value": "MMLU - EM", "metadata": {"metric": "EM", "run_group": "MMLU"}},
            {"value": "NarrativeQA - F1"},
        ],
        "rows": [
            [{"value": "org/a-1B"}, {"value": 0.5}, {"value": value}, {}],
            [{"value": "org/a-7B"}, {"value": 0.5}, {"value": value + 0.1}, {"value": 0.6}],
        ],
    }
    for title, value in (("Accuracy", 0.33), ("Robustness", 0.1))
]


def test_helm(tmp_path: Path) -> None:
    runs = (("mmlu:subject=anatomy", 0.3), ("mmlu:subject=virology", 0.4), ("commonsense:dataset=openbookqa", 0.5))
    files = {name: content for run in runs for name, content in helm_run(*run).items()}
    tables = {"runs/v1/run_specs.json": [{"name": "x"}], "runs/v1/groups/core_scenarios.json": GROUPS}
    evaluations = read_files(tmp_path, files | tables)
    assert scores(evaluations, "run", "task", "shots", "n") == [
        ("org/a-1B", "mmlu_anatomy", 5, 100, 0.3),
        ("org/a-1B", "mmlu_virology", 5, 100, 0.4),
        ("org/a-1B", "openbookqa", 5, 100, 0.5),
    ]
    assert "1 statistic of HELM not read, such as ece_10_bin" in said(evaluations)
    assert "core_scenarios.json: a table of HELM over the runs next to it, not read" in said(evaluations)


def test_tables_of_helm(tmp_path: Path) -> None:
    evaluations = read_files(tmp_path, {"core_scenarios.json": GROUPS})
    assert scores(evaluations, "run", "task", "metric") == [
        ("org/a-1B", "MMLU", "EM", 0.33),
        ("org/a-7B", "MMLU", "EM", 0.43),
        ("org/a-7B", "NarrativeQA", "F1", 0.6),
    ]
    assert "tables of HELM not read: Robustness" in said(evaluations)
    assert "no tasks: Mean win rate" in said(evaluations)


def test_mteb(tmp_path: Path) -> None:
    none = [{"main_score": float("nan"), "hf_subset": "default"}]
    languages = [{"main_score": 0.3, "hf_subset": "en"}, {"main_score": 0.5, "hf_subset": "de"}]
    files: dict[str, object] = {
        "org__e-100M/abc/A.json": {
            "task_name": "AFQMC",
            "scores": {"test": none, "validation": [{"main_score": 0.3, "spearman": 0.2}]},
        },
        "org__e-100M/abc/B.json": {"task_name": "Massive", "scores": {"test": languages}},
        "org__e-100M/abc/model_meta.json": {"name": "org/e-100M", "n_parameters": 1.1e8},
        "org__e-300M/C.json": {
            "mteb_dataset_name": "Old",
            "test": {"evaluation_time": 3, "en": {"main_score": 0.4, "accuracy": 0.1}, "de": {"main_score": 0.6}},
        },
    }
    evaluations = read_files(tmp_path, files)
    assert scores(evaluations, "run", "N", "task") == [
        ("org/e-100M", 1.1e8, "AFQMC", 0.3),
        ("org/e-100M", 1.1e8, "Massive", 0.4),
        ("org/e-300M", 3e8, "Old", 0.5),
    ]
    assert "Massive is the mean over 2 subsets (en, de)" in said(evaluations)
    assert "AFQMC is scored on validation" in said(evaluations)
    with pytest.raises(Exception, match="no main_score of A"):
        read_files(tmp_path / "none", {"A.json": {"task_name": "A", "scores": {"test": [*none, {"accuracy": 1}]}}})


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
