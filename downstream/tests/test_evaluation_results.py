"""Results of evaluation tools are read: lm-evaluation-harness of any version, OLMES, tables of DataDecide's form."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from evaluation_files import TOOLS, made_files
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from score_files import written

import lm_eval_results
from toposcope.errors import ToposcopeError
from toposcope.study import run_study
from toposcope_downstream.evaluations import Evaluations, read_evaluations
from toposcope_downstream.ladder import ladder_of

RESULTS = Path(__file__).parent / "lm_eval_results"


def harness(model: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Results of the harness on arc_easy."""
    return {"results": {"arc_easy": values}, "versions": {"arc_easy": 1}, "model_name": model, **more}


def scores(evaluations: Evaluations) -> list[tuple[Any, ...]]:
    rows = evaluations.table.filter(role="score")
    return rows.select("run", "step", "task", "metric", "value").sort("run", "step", "task").rows()


def check_true_folder(evaluations: Evaluations) -> None:
    """What is known of the folder that `lm_eval_results` makes."""
    table = evaluations.table
    assert sorted(table.select("run", "step").unique().rows()) == [
        ("models/tiny-16", 10), ("models/tiny-16", 20), ("models/tiny-32", 10),
    ]  # fmt: skip
    assert evaluations.tasks == ("sums 0-shot", "sums 2-shot", "sums_generated", "sums_group")
    assert table.filter(role="score").select("task", "metric").unique().sort("task").rows() == [
        ("sums 0-shot", "acc_norm"), ("sums 2-shot", "acc_norm"),
        ("sums_generated", "exact_match,strict-match"), ("sums_group", "acc"),
    ]  # fmt: skip
    sizes = {name: target.n for name, target in evaluations.targets.items()}
    assert sizes == {"sums 0-shot": 12, "sums 2-shot": 5, "sums_generated": 12, "sums_group": 24}
    corpus = table.filter(role="corpus_loss")
    assert set(corpus["task"]) == {"text_corpus"}
    assert set(corpus["metric"]) == {"bits_per_byte"}
    # the tool's standard error is that of a mean: with n - 1
    group = table.filter(role="score", task="sums 0-shot").row(0, named=True)
    p, n = group["value"], group["n"]
    assert group["standard_error"] == pytest.approx(math.sqrt(p * (1 - p) / (n - 1)))


def test_a_true_folder() -> None:
    evaluations = read_evaluations(RESULTS)
    check_true_folder(evaluations)
    assert sorted(set(evaluations.table["N"])) == [3568, 11232]
    remarks = " ".join(evaluations.remarks)
    assert "the score of sums 0-shot, sums 2-shot is acc_norm, not acc" in remarks
    assert "2 runs state no tokens D" in remarks


@pytest.mark.slow
def test_a_folder_that_the_package_writes_now(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    lm_eval_results.main(tmp_path)
    check_true_folder(read_evaluations(tmp_path / "results"))


def test_a_table_of_runs_beside_the_results(tmp_path: Path) -> None:
    for file in RESULTS.rglob("*.json"):
        written(tmp_path / file.relative_to(RESULTS), json.loads(file.read_bytes()))
    (tmp_path / "runs.csv").write_text("run,recipe,tokens\ntiny-16,mix,2e6\nmodels/tiny-32,mix,9e6\n")
    evaluations = read_evaluations(tmp_path)
    tokens = evaluations.table.select("run", "recipe", "step", "D").unique().sort("run", "step").rows()
    assert tokens == [
        ("models/tiny-16", "mix", 10, 1e6), ("models/tiny-16", "mix", 20, 2e6), ("models/tiny-32", "mix", 10, 9e6),
    ]  # fmt: skip
    assert any("in proportion before" in remark for remark in evaluations.remarks)
    assert len(ladder_of(evaluations, "sums_group").models) == 2


def test_one_metric_can_be_named_the_score() -> None:
    named = read_evaluations(RESULTS, columns={"score": "acc"})
    assert set(named.table.filter(role="score", task="sums 0-shot")["metric"]) == {"acc"}
    assert "acc_norm" in set(named.table.filter(role="other_score", task="sums 0-shot")["metric"])
    extracted = read_evaluations(RESULTS, columns={"score": "exact_match,flexible-extract"})
    assert set(extracted.table.filter(role="score", task="sums_generated")["metric"]) == {
        "exact_match,flexible-extract"
    }
    with pytest.raises(ToposcopeError, match=r"score acc_nrm: no task has this metric; did you mean 'acc_norm'"):
        read_evaluations(RESULTS, columns={"score": "acc_nrm"})


def test_several_dates_the_latest_wins(tmp_path: Path) -> None:
    folder = tmp_path / "EleutherAI__pythia-160m"
    for day, value in (("02", 0.4), ("03", 0.5), ("01", 0.3)):
        written(
            folder / f"results_2025-01-{day}T10-00-00.5.json", harness("EleutherAI/pythia-160m", {"acc,none": value})
        )
    evaluations = read_evaluations(tmp_path)
    assert scores(evaluations) == [("EleutherAI/pythia-160m", None, "arc_easy", "acc", 0.5)]
    assert any("the latest by date counts" in remark for remark in evaluations.remarks)


def test_checkpoints_sizes_and_families_by_the_names_of_models(tmp_path: Path) -> None:
    for size in ("70m", "160m"):
        for step in (1000, 2000):
            args = f"pretrained=EleutherAI/pythia-{size},revision=step{step},dtype=float16"
            document = harness("", {"acc": 0.3, "acc_stderr": 0.01}, config={"model_args": args, "num_fewshot": 5})
            del document["model_name"]
            written(tmp_path / f"{size}-{step}.json", document)
    evaluations = read_evaluations(tmp_path)
    rows = evaluations.table.select("run", "recipe", "N", "D", "step", "shots").row(0)
    assert rows == ("EleutherAI/pythia-160m", "pythia", 162_322_944, 2_097_152_000, 1000, 5)
    assert evaluations.table["run"].n_unique() == 2
    assert [len(rung.D) for rung in ladder_of(evaluations, "arc_easy").models] == [2, 2]
    assert any("sizes and tokens of 2 runs such as EleutherAI/pythia-160m" in remark for remark in evaluations.remarks)


def test_groups_of_groups_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    document = {
        "results": {
            "mmlu": {"acc,none": 0.3, "acc_stderr,none": "N/A", "alias": "mmlu"},
            "mmlu_stem": {"acc,none": 0.25, "alias": " - stem"},
            "mmlu_anatomy": {"acc,none": 0.2, "alias": "  - anatomy"},
            "mmlu_virology": {"acc,none": 0.4},
            "boolq": {"acc,none": "N/A", "alias": "boolq"},
        },
        "group_subtasks": {"mmlu": ["mmlu_stem", "mmlu_virology"], "mmlu_stem": ["mmlu_anatomy"]},
        "n-samples": {"mmlu_anatomy": {"effective": 135}, "mmlu_virology": {"effective": 166}},
        "n-shot": {"mmlu": 5},
        "model_name": "small",
        "config": {"model_num_parameters": 1e6},
    }
    evaluations = read_evaluations(written(tmp_path / "results_x.json", document))
    assert scores(evaluations) == [("small", None, "mmlu", "acc", 0.3)]
    row = evaluations.table.row(0, named=True)
    assert (row["n"], row["shots"], row["N"]) == (301, 5, 1e6)
    assert row["standard_error"] == pytest.approx(math.sqrt(0.3 * 0.7 / 301))


def result(alias: str, primary: str, metrics: dict[str, Any], n: int | None = 1000) -> dict[str, Any]:
    """What OLMES writes of a task."""
    config = {"primary_metric": primary, "num_shots": 5, "metadata": {"alias": alias}}
    model = {"model": "allenai/OLMo-2-0425-1B", "revision": "stage1-step10000-tokens21B"}
    task = alias.partition(":")[0]
    return {"task_name": task, "task_config": config, "model_config": model, "num_instances": n, "metrics": metrics}


OLMES = [
    result("arc_easy:rc::olmes", "acc_per_char", {"acc_raw": 0.4, "acc_per_char": 0.5, "primary_score": 0.5,
           "bits_per_byte_corr": 1.2, "logits_per_char_corr": -0.8, "correct_prob_per_char": 0.4, "no_answer": 0}),
    result("mmlu:rc::olmes", "macro", {"primary_score": 0.28}, 14042),
    result("mmlu_anatomy:rc::olmes", "acc_per_char", {"acc_per_char": 0.3, "primary_score": 0.3}, 135),
    result("c4::paloma", "bits_per_byte", {"bits_per_byte": 1.1, "primary_score": 1.1}, None),
]  # fmt: skip


def test_all_files_of_olmes_say_the_same(tmp_path: Path) -> None:
    simple = [
        {"task": r["task_config"]["metadata"]["alias"], **r["metrics"], "num_instances": r["num_instances"],
         "task_config": r["task_config"]}
        for r in OLMES
    ]  # fmt: skip
    whole = {"all_primary_scores": ["arc_easy:rc::olmes: 0.5"], "model_config": OLMES[0]["model_config"]}
    written(tmp_path / "metrics.json", whole | {"metrics": simple})
    (tmp_path / "metrics-all.jsonl").write_text("\n".join(map(json.dumps, OLMES)))
    written(tmp_path / "task-000-arc_easy-metrics.json", OLMES[0])
    (tmp_path / "task-000-arc_easy-predictions.jsonl").write_text('{"doc_id": 0}\n')
    tables = [
        read_evaluations(path).table for path in (tmp_path / "metrics.json", tmp_path / "metrics-all.jsonl", tmp_path)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    evaluations = read_evaluations(tmp_path)
    assert scores(evaluations) == [
        ("allenai/OLMo-2-0425-1B", 10000, "arc_easy:rc::olmes", "primary_score", 0.5),
        ("allenai/OLMo-2-0425-1B", 10000, "mmlu:rc::olmes", "primary_score", 0.28),
    ]
    roles = dict(evaluations.table.filter(task="arc_easy:rc::olmes").select("metric", "role").rows())
    assert roles == {
        "acc_per_char": "other_score", "acc_raw": "other_score", "primary_score": "score",
        "bits_per_byte_corr": "loss", "logits_per_char_corr": "likelihood", "correct_prob_per_char": "likelihood",
    }  # fmt: skip
    assert evaluations.table.filter(role="corpus_loss").select("task", "value").rows() == [("c4::paloma", 1.1)]
    assert set(evaluations.table["D"]) == {21e9}
    assert evaluations.targets["mmlu:rc::olmes"].chance == 0.25


@pytest.mark.parametrize("write_cell", [json.dumps, str])
def test_cells_that_hold_all_metrics(write_cell: Any, tmp_path: Path) -> None:
    rows = []
    for data in ("C4", "Dolma1.7"):
        for params, seed in (("4M", "default"), ("150M", "default"), ("150M", "small aux 2")):
            for step in (1000, 2000):
                metrics = {"primary_metric": 0.3, "acc_raw": 0.31, "correct_prob_per_char": 0.4, "margin": None}
                row = {"params": params, "data": data, "task": "arc_easy", "step": step, "seed": seed}
                rows.append(row | {"tokens": step * 65536.0, "metrics": write_cell(metrics)})
    rows.append(rows[-1] | {"step": 3000, "metrics": "__import__('os').system('false')"})
    pl.DataFrame(rows).write_csv(tmp_path / "results.csv")
    evaluations = read_evaluations(tmp_path / "results.csv")
    assert evaluations.table["run"].unique().sort().to_list()[:3] == [
        "C4 150M seed default", "C4 150M seed small aux 2", "C4 4M seed default",
    ]  # fmt: skip
    assert set(evaluations.table["recipe"]) == {"C4", "Dolma1.7"}
    assert dict(evaluations.table.select("metric", "role").unique().rows()) == {
        "primary_metric": "score", "acc_raw": "other_score", "correct_prob_per_char": "likelihood",
    }  # fmt: skip
    assert [len(rung.D) for rung in ladder_of(evaluations, "arc_easy", recipe="C4").models] == [2, 2, 2]
    assert any("column 'metrics' holds no metrics in 1 row" in remark for remark in evaluations.remarks)


def test_the_wide_table_of_an_olmo_ladder(tmp_path: Path) -> None:
    header = (
        "_step,eval/c4_en-validation/CrossEntropyLoss,eval/downstream_bpb/arc_challenge_test_rc_5shot_bpb,"
        "eval/downstream/arc_challenge_test_rc_5shot_len_norm,eval/downstream_soft/arc_challenge_test_rc_5shot_soft,"
        "eval/downstream_bpb/piqa_rc_5shot_bpb_bpb,eval/downstream/piqa_rc_5shot_len_norm,learning_rate_peak,"
        "batch_size_in_tokens\n"
    )
    for name in ("190M-1xC", "370M-1xC"):
        rows = "200,6.1,2.5,0.25,0.24,1.9,0.55,1e-3,524288\n400,5.2,2.2,0.22,0.25,,,1e-3,524288\n"
        (tmp_path / f"{name}.csv").write_text(header + rows)
    evaluations = read_evaluations(tmp_path)
    assert evaluations.tasks == ("arc_challenge_test_rc_5shot", "piqa_rc_5shot")
    ladder = ladder_of(evaluations, "arc_challenge_test_rc_5shot")
    assert ladder.loss_name == "bpb"
    assert [(rung.N, *rung.D) for rung in ladder.models] == [(n, 200 * 524288, 400 * 524288) for n in (190e6, 370e6)]
    assert ladder.models[0].loss.tolist() == [2.5, 2.2]
    assert set(evaluations.table["shots"].drop_nulls()) == {5}
    assert ladder.target.n == 1172
    corpora = evaluations.table.filter(role="corpus_loss")
    assert set(corpora["task"]) == {"c4_en-validation"}


@pytest.mark.slow
def test_losses_of_a_study(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the study trains its runs with PyTorch")
    from small_studies import family_study

    run_study(family_study(tmp_path, ["a"], []), tmp_path / "study")
    evaluations = read_evaluations(tmp_path / "study")
    assert set(evaluations.table["role"]) == {"corpus_loss"}
    assert set(evaluations.table["task"]) == {"validation_loss"}
    assert evaluations.table["D"].null_count() == 0
    assert (evaluations.table["N"] > 0).all()


def test_accuracies_in_the_log_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.csv").write_text(
        "step,loss,tokens,val/c4/loss,val/code/loss,eval/riddles_accuracy\n1,5,100,4.5,1.5,0.25\n2,4,200,4.1,,0.5\n"
    )
    evaluations = read_evaluations(tmp_path)
    rows = evaluations.table.select("run", "D", "task", "metric", "role", "value").rows()
    assert rows == [
        ("run", 100.0, "eval/riddles_accuracy", "accuracy", "score", 0.25),
        ("run", 100.0, "val/c4/loss", "loss", "corpus_loss", 4.5),
        ("run", 100.0, "val/code/loss", "loss", "corpus_loss", 1.5),
        ("run", 200.0, "eval/riddles_accuracy", "accuracy", "score", 0.5),
        ("run", 200.0, "val/c4/loss", "loss", "corpus_loss", 4.1),
    ]


def test_training_losses_are_no_corpora_and_small_is_no_score(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,train_loss,aux_loss,c4_loss,hellaswag,λ_acc\n1,5,0.1,4.5,0.3,0.5\n")
    evaluations = read_evaluations(tmp_path / "a.csv")
    assert dict(evaluations.table.select("task", "role").rows()) == {
        "c4": "corpus_loss", "hellaswag": "score", "λ": "score",
    }  # fmt: skip
    better = {"arc_easy": {"acc": True, "surprise": False}}
    document = harness("m", {"acc,none": 0.3, "surprise,none": 7.5}, higher_is_better=better)
    evaluations = read_evaluations(written(tmp_path / "results_1.json", document))
    assert evaluations.table["metric"].to_list() == ["acc"]


def test_chance_by_the_definition_of_a_task(tmp_path: Path) -> None:
    choice = {"output_type": "multiple_choice", "doc_to_choice": ["no", "maybe", "yes"]}
    open_choice = choice | {"doc_to_choice": "options"}
    configs = {"judged": choice, "written": {"output_type": "generate_until"}, "open": open_choice}
    results = {"judged": {"acc,none": 0.4}, "written": {"exact_match,none": 0.1}, "open": {"acc,none": 0.4}}
    document = {"results": results, "configs": configs, "model_name": "m"}
    targets = read_evaluations(written(tmp_path / "results_1.json", document)).targets
    assert {name: target.chance for name, target in targets.items()} == {"judged": 1 / 3, "written": 0.0, "open": None}


@pytest.mark.parametrize("tool", TOOLS)
@given(seed=st.integers(0, 10**6))
@examples(8)
def test_the_files_of_any_tool(tool: str, seed: int) -> None:
    made = made_files(seed, tool)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in made.files.items():
            written(Path(folder) / name, content)
        evaluations = read_evaluations(folder)
    rows = evaluations.table.filter(role="score").sort("step").unique(["run", "task"], keep="last")
    read = {(run.rpartition("/")[2], task): value for run, task, value in rows.select("run", "task", "value").rows()}
    assert read == pytest.approx({(run, task): v for run, of in made.scores.items() for task, v in of.items()})
    assert {target.name for target in evaluations.targets.values()} == {task for _, task in read}
    if tool.startswith("inspect"):
        assert set(rows["n"]) <= {100, *(target.n for target in evaluations.targets.values())}


def test_prompts_that_only_some_evaluations_have(tmp_path: Path) -> None:
    table = "model,task,prompt,acc\nm-1B,boolq,exam,0.4\nm-1B,boolq,style,0.6\nm-2B,boolq,exam,0.5\n"
    part = read_evaluations(written(tmp_path / "some.csv", table))
    assert scores(part) == [("m-1B", None, "boolq", "acc", 0.4), ("m-2B", None, "boolq", "acc", 0.5)]
    assert any("mean over 1 prompt: exam; not those of some runs alone: style" in remark for remark in part.remarks)
    apart = read_evaluations(written(tmp_path / "none.csv", table.replace("m-2B,boolq,exam", "m-2B,boolq,other")))
    assert apart.tasks == ("boolq, exam", "boolq, other", "boolq, style")


@pytest.mark.parametrize("status", ["error", "started", "cancelled", None])
def test_an_unfinished_log_of_inspect_is_refused(status: str | None, tmp_path: Path) -> None:
    log = TOOLS["inspect"].write("m-1B", {"piqa": {"": 0.6}}) | {"status": status}
    with pytest.raises(ToposcopeError, match="only finished ones have a result"):
        read_evaluations(written(tmp_path / "log.json", log))
    with pytest.raises(ToposcopeError, match="no header can be read; write it as JSON: inspect log convert"):
        read_evaluations(written(tmp_path / "log.eval", "PK"))
