"""``toposcope downstream --to``: losses and scores of a new recipe."""

import json
import re
from math import exp
from pathlib import Path

import polars as pl
import pytest
from commands import called
from made_recipes import LAWS, SIZES, made


def score(recipe: str, loss: float) -> float:
    return round(0.25 + 0.5 / (1 + exp(3.0 * (loss - 3.4))), 4)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.csv"
    evaluations = made({"web": SIZES, "books": SIZES, "code": SIZES[:6]}, score=score)
    wide = evaluations.table.select("run", "recipe", "N", "D", "task", "metric", "role", "value")
    corpora = wide.filter(wide["role"] == "corpus_loss")
    rest = wide.filter(wide["role"] != "corpus_loss")
    columns = corpora.pivot(on="task", index=["run", "recipe", "N", "D"], values="value").rename(
        {name: f"loss/{name}" for name in ("web", "books", "code")}
    )
    tasks = rest.pivot(on="metric", index=["run"], values="value").rename(
        {"acc": "task/quiz_acc", "ce_loss": "task_loss/quiz_ce_loss"}
    )
    columns.join(tasks, on="run").write_csv(path)
    return path


def test_a_loss_and_a_refused_score(table: Path) -> None:
    asked = ("--model", "N=1e9,D=2e10", "--recipe", "code", "--to", "code", "--to", "quiz", "--chance", "quiz=0.25")
    done = called("downstream", table, *asked)
    assert done.code == 0, done.err
    assert "6 small runs of code, and the laws of books, web" in done.out
    assert "score on quiz" in done.out
    assert re.search(r"code\s*│ loss\s*│ 1\.555\s*│ [\d.]{5}\s*│ [\d.]{5}\s*│ \w+\s*│ [\d.e-]+%", done.out)
    assert "scores were seen from" in done.out
    found = json.loads(called("downstream", table, *asked, "--json").out)
    row = found["predictions"][0]
    assert (row["of"], row["what"], row["refused"]) == ("code", "loss", "")
    assert row["predicted"] == pytest.approx(float(LAWS["code"].loss(1e9, 2e10)), rel=1e-3)
    assert found["losses"][0]["held_out"]


def test_the_page_of_a_new_recipe(table: Path, tmp_path: Path) -> None:
    asked = ("downstream", table, "--model", "large,N=1B,D=20B", "--recipe", "code", "--to", "code")
    done = called(*asked, "--out", tmp_path / "page")
    assert done.code == 0, done.err
    assert done.out.startswith("code, large (1B parameters on 20B tokens): loss on code 1.555 (90%: ")
    assert done.out.splitlines()[-1] == f"page: {tmp_path / 'page' / 'index.html'}"
    assert {path.stem for path in (tmp_path / "page" / "figures").iterdir()} == {"losses", "held-out"}
    (row,) = pl.read_csv(tmp_path / "page" / "tables" / "predictions.csv").to_dicts()
    assert row["predicted"] == pytest.approx(float(LAWS["code"].loss(1e9, 2e10)), rel=0.01)
    assert "name the folder of a page" in called(*asked, "--out", tmp_path / "losses.svg").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "code"), "name the new recipe with --recipe"),
        (("--to", "cod", "--recipe", "code"), "did you mean 'code'"),
        (("--to", "code", "--recipe", "cod"), "did you mean 'code'"),
        (("--to", "code", "--recipe", "code", "--method", "magic"), "method magic"),
        (("--to", "code", "--recipe", "code", "--seed", "3"), "--seed has no effect with --to"),
        (("--to", "code", "--recipe", "code", "--task", "quiz"), "tasks with --to instead of --task"),
    ],
)
def test_faults_are_one_line(table: Path, arguments: tuple[str, ...], message: str) -> None:
    done = called("downstream", table, "--model", "N=1e9,D=2e10", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
