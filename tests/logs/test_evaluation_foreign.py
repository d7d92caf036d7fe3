"""Evaluations are read from results of HELM, OpenCompass and MTEB."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.logs.evaluations import Evaluations, read_evaluations

PYTHIA = "opencompass.models.huggingface.HuggingFaceCausalLM_EleutherAI_pythia-160m"
SUMMARY = f"""dataset,version,metric,mode,tiny-70m,{PYTHIA}
--------- 考试 Exam ---------,-,-,-,-,-
mmlu,-,naive_average,ppl,25.31,26.20
mmlu-spread,-,standard_deviation,ppl,2.5,2.6
gsm8k,1d7fe4,accuracy,gen,-,2.05
ARC-e,a450bd,accuracy,ppl,38.10,41.62
nq,-,-,-,-,-
"""
HELM_NAME = "mmlu:subject=anatomy,method=multiple_choice_joint,model=eleutherai_pythia-6.9b"


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def rows(evaluations: Evaluations, *columns: str) -> list[tuple[Any, ...]]:
    return evaluations.table.sort("run", "task").select(columns).rows()


def remarks(evaluations: Evaluations) -> str:
    assert not any("\n" in remark for remark in evaluations.remarks)
    return " | ".join(evaluations.remarks)


def stat(name: str, mean: float | None, split: str = "test", **more: object) -> dict[str, object]:
    return {"name": {"name": name, "split": split, **more}, "count": 1, "mean": mean}


def helm_run(
    folder: Path, stats: object, name: str = HELM_NAME, args: dict[str, object] | None = None, **adapter: object
) -> Path:
    """Write what HELM writes of a run, with the files of single questions beside it."""
    run = folder / "runs" / "v1" / name
    write(run / "stats.json", stats)
    adapter = {"method": "x", "model": "eleutherai/pythia-6.9b", "max_train_instances": 5} | adapter
    scenario = {"class_name": "helm.benchmark.scenarios.x.X", "args": {"subject": "anatomy"} if args is None else args}
    write(run / "run_spec.json", {"name": name, "scenario_spec": scenario, "adapter_spec": adapter, "groups": ["mmlu"]})
    write(run / "per_instance_stats.json", [{"instance_id": "id1", "train_trial_index": 0, "stats": stats}])
    write(run / "scenario_state.json", "{")
    return run


# --- OpenCompass


def test_a_summary_of_opencompass_has_a_run_in_each_column(tmp_path: Path) -> None:
    evaluations = read_evaluations(write(tmp_path / "summary_20240501_101500.csv", SUMMARY))
    assert rows(evaluations, "run", "task", "metric", "value") == [
        ("EleutherAI_pythia-160m", "ARC-e", "accuracy", pytest.approx(0.4162)),
        ("EleutherAI_pythia-160m", "gsm8k", "accuracy", pytest.approx(0.0205)),
        ("EleutherAI_pythia-160m", "mmlu", "naive_average", pytest.approx(0.262)),
        ("tiny-70m", "ARC-e", "accuracy", pytest.approx(0.381)),
        ("tiny-70m", "mmlu", "naive_average", pytest.approx(0.2531)),
    ]
    sizes = dict(evaluations.table.select("run", "N").unique().rows())
    assert sizes == {"EleutherAI_pythia-160m": pytest.approx(1.623e8, rel=0.01), "tiny-70m": 7e7}
    said = remarks(evaluations)
    assert "summary_20240501_101500.csv: no model has a result on nq" in said
    assert "standard deviations and sums of mmlu-spread are not read" in said


def test_of_several_summaries_the_latest_counts(tmp_path: Path) -> None:
    header = "dataset,version,metric,mode,tiny-70m\n"
    for date, value in (("20240501_101500", 40), ("20240401_101500", 30)):
        folder = tmp_path / "outputs" / "default" / date
        write(folder / "summary" / f"summary_{date}.csv", f"{header}ARC-e,a450bd,accuracy,ppl,{value}\n")
        write(folder / "predictions" / "tiny-70m" / "ARC-e.json", "{")  # questions and answers are not looked into
    evaluations = read_evaluations(tmp_path)
    assert rows(evaluations, "run", "value") == [("tiny-70m", pytest.approx(0.4))]
    assert "left out" not in remarks(evaluations)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("dataset,version,metric,mode\nARC-e,a450bd,accuracy,ppl\n", "no column of a model"),
        ("dataset,version,metric,mode,tiny\nARC-e,-,-,-,-\n", "no model has a result on any dataset"),
        ("dataset,version,metric,mode,tiny\nARC-e,1,accuracy,gen,failed\n", "no value of a task is a finite number"),
    ],
)
def test_a_summary_without_scores_is_refused_in_one_line(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=rf"summary_1\.csv.*{fault}") as error:
        read_evaluations(write(tmp_path / "summary_1.csv", text))
    assert "\n" not in str(error.value)


# --- MTEB


def mteb(task: str, scores: object, **more: object) -> dict[str, object]:
    return {"dataset_revision": "a", "mteb_version": "1.14.15", "task_name": task, "scores": scores, **more}


def subset(score: object, name: str = "default", **more: object) -> dict[str, object]:
    return {"accuracy": 0.1, "main_score": score, "hf_subset": name, "languages": ["eng-Latn"], **more}


def test_results_of_mteb_have_their_run_from_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "org__embed-110M" / ("a1" * 20)
    write(folder / "STS12.json", mteb("STS12", {"test": [subset(0.7)], "validation": [subset(0.2)]}))
    write(folder / "Massive.json", mteb("Massive", {"validation": [subset(0.5, "de"), subset(0.7, "en")]}))
    write(tmp_path / "results" / "plain-22M" / "STS12.json", mteb("STS12", {"test": [subset(0.6)]}))
    evaluations = read_evaluations(tmp_path)
    assert rows(evaluations, "run", "N", "task", "metric", "role", "value") == [
        ("org/embed-110M", 1.1e8, "Massive", "main_score", "score", 0.6),
        ("org/embed-110M", 1.1e8, "STS12", "main_score", "score", 0.7),
        ("plain-22M", 2.2e7, "STS12", "main_score", "score", 0.6),
    ]
    said = remarks(evaluations)
    assert "Massive (MTEB): the score is the mean of 2 subsets" in said
    assert "STS12 (MTEB): the score is that of the split test, not validation" in said


def test_what_mteb_says_of_the_model_counts(tmp_path: Path) -> None:
    folder = tmp_path / "org__embed" / "no_revision_available"
    write(folder / "model_meta.json", {"name": "org/embed", "revision": None, "n_parameters": 12345})
    write(folder / "STS12.json", mteb("STS12", {"test": [subset(0.7)]}))
    evaluations = read_evaluations(tmp_path)
    assert rows(evaluations, "run", "N", "value") == [("org/embed", 12345.0, 0.7)]
    assert "what MTEB states, embeddings included" in remarks(evaluations)
    assert "left out" not in remarks(evaluations)


def test_a_revision_may_be_a_checkpoint(tmp_path: Path) -> None:
    for step in (1000, 2000):
        folder = tmp_path / "org__embed-110M" / f"step{step}"
        write(folder / "STS12.json", mteb("STS12", {"test": [subset(step / 1e4)]}))
    assert rows(read_evaluations(tmp_path), "run", "step", "value") == [
        ("org/embed-110M", 1000, 0.1),
        ("org/embed-110M", 2000, 0.2),
    ]


@pytest.mark.parametrize(
    ("split", "value"),
    [
        ({"ndcg_at_1": 0.3, "ndcg_at_10": 0.4, "map_at_10": 0.5}, 0.4),
        ({"cos_sim": {"pearson": 0.3, "spearman": 0.5}, "euclidean": {"spearman": 0.2}}, 0.5),
        ({"cos_sim": {"accuracy": 0.9, "ap": 0.6, "f1": 0.7}, "max": {"ap": 0.8}}, 0.6),
        ({"v_measure": 0.4, "v_measure_std": 0.1}, 0.4),
        ({"map": 0.4, "mrr": 0.6}, 0.4),
        ({"accuracy": 0.8, "f1": 0.7, "main_score": 0.8, "evaluation_time": 3.5}, 0.8),
        (
            {"de": {"accuracy": 0.4, "f1": 0.1}, "en": {"accuracy": 0.6, "f1": 0.1}, "evaluation_time": 9},
            0.5,
        ),
    ],
)
def test_results_of_older_mteb(split: object, value: float, tmp_path: Path) -> None:
    document = {"mteb_version": "1.1.1", "dataset_revision": None, "mteb_dataset_name": "T", "test": split}
    evaluations = read_evaluations(write(tmp_path / "embed-110M" / "T.json", document))
    assert rows(evaluations, "run", "task", "metric", "value") == [
        ("embed-110M", "T", "main_score", pytest.approx(value))
    ]


def test_a_result_of_mteb_without_a_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=r"STS12\.json.*no split of it has a main score"):
        read_evaluations(write(tmp_path / "STS12.json", mteb("STS12", {"test": [subset(None, accuracy=None)]})))


# --- HELM


def test_a_run_of_helm(tmp_path: Path) -> None:
    stats = [
        stat("num_instances", 114),
        stat("exact_match", 0.1, perturbation={"name": "robustness", "computed_on": "worst"}),
        stat("exact_match", 0.15, sub_split="hard"),
        stat("exact_match", 0.2, split="valid"),
        stat("quasi_exact_match", 0.4),
        stat("exact_match", 0.25),
        stat("inference_runtime", 1.5),
    ]
    helm_run(tmp_path, stats)
    evaluations = read_evaluations(tmp_path)
    assert rows(evaluations, "run", "N", "task", "shots", "metric", "value", "n") == [
        ("eleutherai/pythia-6.9b", pytest.approx(6.86e9, rel=0.01), "mmlu_anatomy", 5, "exact_match", 0.25, 114)
    ]
    assert "the one by which it ranks models is read, without perturbations" in remarks(evaluations)
    assert "left out" not in remarks(evaluations)


@pytest.mark.parametrize(
    ("name", "args", "task", "metric"),
    [
        ("narrative_qa:model=m", {}, "narrative_qa", "f1_score"),
        ("boolq:model=m,data_augmentation=canonical", {}, "boolq", "quasi_exact_match"),
        ("commonsense:dataset=openbookqa,method=x,model=m", {"dataset": "openbookqa"}, "openbookqa", "exact_match"),
        ("math:subject=a,level=1,model=m", {"subject": "a", "level": 1, "cot": True, "o": False}, "math_a_1_cot", None),
        ("legalbench:subset=s,model=m", {"subset": "s", "path": "a/b"}, "legalbench_s", "quasi_exact_match"),
    ],
)
def test_scenarios_of_helm(name: str, args: dict[str, object], task: str, metric: str | None, tmp_path: Path) -> None:
    stats = [stat("exact_match", 0.1), stat("quasi_exact_match", 0.2), stat("f1_score", 0.3)]
    if metric is None:
        stats.append(stat("math_equiv_chain_of_thought", 0.4))
    run = helm_run(tmp_path, stats, name, args)
    assert rows(read_evaluations(run), "task", "metric") == [(task, metric or "math_equiv_chain_of_thought")]


def test_a_split_valid_where_there_is_no_test(tmp_path: Path) -> None:
    run = helm_run(tmp_path, [stat("exact_match", 0.3, split="valid"), stat("exact_match", 0.9, split="train")])
    assert read_evaluations(run).table["value"].to_list() == [0.3]


def test_statistics_alone_are_named_by_their_folder(tmp_path: Path) -> None:
    run = helm_run(tmp_path, [stat("exact_match", 0.25)])
    (run / "run_spec.json").unlink()
    evaluations = read_evaluations(run / "stats.json")
    assert rows(evaluations, "run", "task", "shots") == [("eleutherai_pythia-6.9b", "mmlu_anatomy", None)]


@pytest.mark.parametrize(
    ("stats", "fault"),
    [
        ([stat("inference_runtime", 1.5)], "no headline metric of the split test or valid in stats.json; it has infer"),
        ([stat("exact_match", None)], "it has none"),
        ([], "it has none"),
        ("[", "not JSON"),
    ],
)
def test_a_run_of_helm_without_scores_is_refused_in_one_line(stats: object, fault: str, tmp_path: Path) -> None:
    run = helm_run(tmp_path, stats)
    with pytest.raises(ToposcopeError, match=fault) as error:
        read_evaluations(run)
    assert str(error.value).startswith(str(run))
    assert "\n" not in str(error.value)


# --- whatever a file holds


def attempt(path: Path) -> str:
    """Return how many values were read, or the error that was raised."""
    try:
        return f"{path}: {len(read_evaluations(path).table)} values"
    except ToposcopeError as error:
        return str(error)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["test", "dev", "main_score", "name", "split", "mean", "cos_sim", "hf_subset", "args", "model", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(VALUES, VALUES)
@example({"test": [{"main_score": 10**400}]}, {})
@example([{"name": {"name": "exact_match", "split": "test"}, "mean": 10**400}], {"model": 3, "max_train_instances": 1})
@example([{"name": {"name": "exact_match", "split": "test"}, "mean": 0.5}], {"model": ["a"], "args": [1]})
@examples(100)
def test_whatever_results_hold_one_line_says_so(scores: object, model: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = helm_run(folder, scores, "mmlu:model=m")
        write(run / "run_spec.json", {"name": model, "scenario_spec": model, "adapter_spec": model})
        result = write(folder / "m" / "main" / "T.json", mteb("T", scores))
        write(result.with_name("model_meta.json"), {"name": model, "revision": None, "n_parameters": model})
        for path in (run, run / "stats.json", result):
            said = attempt(path)
            assert "\n" not in said
            assert str(folder) in said
