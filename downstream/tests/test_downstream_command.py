"""``toposcope downstream``: what it prints, writes and refuses."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from commands import called, complaint_of
from made_up_ladder import TASKS, true_score, write_ladder, write_results

SHARED = Path(__file__).parents[3] / "shared" / "data"
CHANCES = ("--chance", "bridges=0.25", "--chance", "harbours=0.5", "--chance", "riddles=0.25")
TRUE_OLMO = {
    "7B-4T": (61.9, 84.6, 72.6, 81.3, 49.0, 49.4, 82.0, 59.9),
    "13B-5T": (63.8, 87.2, 74.1, 83.2, 51.6, 48.6, 83.0, 61.6),
}
"""Percent, of arc_challenge, arc_easy, csqa, hellaswag, mmlu, openbookqa, piqa, socialiqa (Bhagia et al. 2024)."""


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ladder(tmp_path_factory.mktemp("ladder") / "scores.csv", chance_task=True)


@pytest.fixture(scope="module")
def olmo() -> Path:
    path = SHARED / "olmo-ladder" / "tasks.parquet"
    if not path.is_file():
        pytest.skip("the OLMo ladder is not beside this repository")
    return path


def test_a_table_to_a_prediction_in_one_command(scores: Path) -> None:
    done = called("downstream", scores, "--model", "N=7B,D=1T", *CHANCES)
    assert done.code == 0, done.err
    first, ladder, record, *_ = done.out.splitlines()
    assert first.startswith("7B parameters on 1T tokens: bridges ")
    assert first.endswith("; cannot be told: riddles.")
    assert ladder.startswith("The ladder has 20 runs of 5 sizes, 50M to 800M parameters. The model has 68 times")
    assert "the 90% interval holds the true score in" in record
    assert "never leaves chance (25.0%)" in " ".join(done.out.split())
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_folder_of_results_to_a_prediction_in_one_command(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results")
    done = called("downstream", folder, "--model", "N=7B,D=1T", *CHANCES[:4], "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["predictions"]
    assert [row["task"] for row in rows] == sorted(TASKS)
    for row in rows:
        assert row["score"] == pytest.approx(true_score(row["task"], 7e9, 1e12), abs=0.06)
    again = called("downstream", folder, "--model", "N=7B,D=1T", *CHANCES[:4], "--json", "--ladder", "made/*")
    assert json.loads(again.out)["predictions"] == rows
    without_tokens = Path(__file__).parent / "lm_eval_results"
    complaint = complaint_of("downstream", without_tokens, "--model", "N=7B,D=1T")
    assert re.search(r"such as \S*tiny-\d+, states its tokens D; .* a table runs.csv with run, N, D next to", complaint)


@pytest.mark.slow
def test_the_truth_lies_in_the_intervals(scores: Path) -> None:
    done = called("downstream", scores, "--model", "large,N=7B,D=1T", "--model", "N=2B,D=4e10", *CHANCES, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    by_task = {(row["model"], row["task"]): row for row in found["predictions"]}
    for model, N, D in (("large", 7e9, 1e12), ("2B on 40B tokens", 2e9, 4e10)):
        for task in TASKS:
            row = by_task[model, task]
            assert row["low"] <= true_score(task, N, D) <= row["high"]
            assert row["low"] < row["score"] < row["high"]
            assert row["refused"] == ""
        assert by_task[model, "riddles"]["score"] is None
    again = called("downstream", scores, "--model", "large,N=7B,D=1T", "--model", "N=2B,D=4e10", *CHANCES, "--json")
    assert again.out == done.out


@pytest.mark.slow
def test_the_page_and_the_figure(scores: Path, tmp_path: Path) -> None:
    asked = ("downstream", scores, "--model", "N=7B,D=1T", "--task", "bridges", *CHANCES)
    done = called(*asked, "--out", tmp_path / "page")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"page: {tmp_path / 'page' / 'index.html'}"
    assert {path.stem for path in (tmp_path / "page" / "figures").iterdir()} == {"ladder", "link", "held-out"}
    models = pl.read_csv(tmp_path / "page" / "tables" / "ladder.csv")
    assert models.height == 20
    done = called(*asked, "--out", tmp_path / "ladder.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "ladder.svg").read_text().startswith("<svg")


def test_an_unfinished_run_is_predicted_from_the_others_and_itself(scores: Path) -> None:
    table = pl.read_csv(scores)
    half = table.filter((pl.col("run") != "800M-160x") | (pl.col("D") <= 0.5 * 160 * 8e8))
    half.write_csv(path := scores.with_name("half.csv"))
    done = called("downstream", path, "--model", "800M-160x,D=128B", "--task", "bridges", *CHANCES, "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["predictions"]
    assert row["own"] == pytest.approx(true_score("bridges", 8e8, 0.5 * 160 * 8e8), abs=0.03)
    assert row["low"] <= true_score("bridges", 8e8, 160 * 8e8) <= row["high"]
    assert row["largest_run"] != "800M-160x"


def test_the_ladder_may_be_a_part_of_the_runs(scores: Path) -> None:
    part = ("--ladder", "50M-*,100M-*,200M-*", "--exclude", "*-20x")
    done = called("downstream", scores, "--model", "N=400M,D=16B", "--task", "bridges", *CHANCES, *part)
    assert done.code == 0, done.err
    assert "The ladder has 9 runs of 3 sizes, 50M to 200M parameters" in done.out


def test_one_evaluation_a_run_is_enough(scores: Path, tmp_path: Path) -> None:
    table = pl.read_csv(scores)
    ends = table.filter(pl.col("D") == pl.col("D").max().over("run"))
    ends.write_csv(tmp_path / "ends.csv")
    done = called("downstream", tmp_path / "ends.csv", "--model", "N=7B,D=1T", "--task", "bridges", *CHANCES)
    assert done.code == 0, done.err
    assert "± noise" not in done.out
    assert "Warning" not in done.err


def test_if_no_score_can_be_told_the_reason_is_the_answer(scores: Path, tmp_path: Path) -> None:
    asked = ("downstream", scores, "--model", "N=7B,D=1T", "--task", "riddles", *CHANCES)
    done = called(*asked, "--out", tmp_path / "page")
    assert done.code == 0, done.err
    assert done.out.startswith(
        "7B parameters on 1T tokens: the score of riddles cannot be told: the ladder never leaves"
    )
    assert "intervals" not in done.out
    assert {path.stem for path in (tmp_path / "page" / "figures").iterdir()} == {"ladder"}


def test_a_prediction_that_nothing_tests_says_so(tmp_path: Path) -> None:
    path = tmp_path / "five.csv"
    runs = [(N, 20 * N * k) for N, k in ((1e8, 1), (1e8, 8), (3e8, 2), (9e8, 1), (9e8, 8))]
    lines = [f"{N:g}-{D:g},{N:g},{D:g},bridges,acc,{true_score('bridges', N, D):.4f},4000" for N, D in runs]
    path.write_text("\n".join(["run,N,D,task,metric,value,n", *lines]) + "\n")
    done = called("downstream", path, "--model", "N=2B,D=2e11", "--chance", "bridges=0.25")
    assert done.code == 0, done.err
    assert "No run could be held out to test this" in done.out


def test_mistakes(scores: Path, tmp_path: Path) -> None:
    model = ("--model", "N=7B,D=1T")
    (tmp_path / "empty").mkdir()
    no_sizes = tmp_path / "no-sizes.csv"
    no_sizes.write_text("run,task,metric,value\na,piqa,acc,0.6\nb,piqa,acc,0.7\n")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    not_a_table = tmp_path / "scores.parquet"
    not_a_table.write_bytes(b"PAR1 and nothing else")
    for arguments, words in (
        ((scores,), "--model"),
        ((tmp_path / "nothing", *model), "does not exist"),
        ((tmp_path / "empty", *model), "no evaluations"),
        ((no_sizes, *model), "such as a, states its parameters N and its tokens D"),
        ((deep, *model), "deep.json"),
        ((not_a_table, *model), "scores.parquet"),
        ((scores, "--model", "N=7B"), "tokens missing; add D=4T"),
        ((scores, "--model", "800M-160"), "did you mean '800M-160x'"),
        ((scores, *model, "--task", "bridge"), "did you mean 'bridges'"),
        ((scores, *model, "--method", "two_stages"), "did you mean 'two_stage'"),
        ((scores, *model, "--loss", "c4"), "bits_per_byte"),
        ((scores, *model, "--recipe", "new"), "recipe new: nothing to choose from"),
        ((scores, *model, "--task", "bridges", "--loss", "acc"), "choose from bits_per_byte"),
        ((scores, *model, "--recipe", "new", "--ladder", "50M-*"), "give one of them"),
        ((scores, *model, "--exclude", "*"), "no run is left for the ladder"),
        ((scores, *model, "--chance", "bridges=25%"), "expected TASK=SHARE"),
        ((scores, *model, "--chance", "bridges=25"), "expected TASK=SHARE"),
        ((scores, *model, "--column", "value"), "expected WHAT=NAME"),
        ((scores, *model, "--out", "page.html"), "a figure ends in"),
    ):
        assert words in complaint_of("downstream", *arguments)


@pytest.mark.slow
def test_the_olmo_ladder_by_default(olmo: Path, tmp_path: Path) -> None:
    models = ("--model", "7B-4T", "--model", "13B-5T")
    done = called("downstream", olmo, *models, "--json", "--out", tmp_path / "page")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    for model, expected in TRUE_OLMO.items():
        rows = [row for row in found["predictions"] if row["model"] == model and not row["refused"]]
        true = dict(zip(sorted({row["task"] for row in found["predictions"]}), expected, strict=True))
        off = [abs(100 * row["score"] - true[row["task"]]) for row in rows]
        assert sum(off) / len(off) <= 3.2
        assert [100 * row["own"] for row in rows] == pytest.approx([true[row["task"]] for row in rows], abs=0.06)
        for row in rows:
            if row["task"] in ("arc_challenge", "openbookqa"):
                assert row["low"] <= true[row["task"]] / 100 <= row["high"]
    held = [row["low"] <= row["true"] <= row["high"] for row in found["held_out"] if row["run"].startswith("1B")]
    assert sum(held) >= 0.8 * len(held) > 0
    assert (tmp_path / "page" / "index.html").is_file()
