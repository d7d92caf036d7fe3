"""``decide --tasks`` and ``forecast --ladder``: which recipe wins, decisions and forecasts in scores of tasks."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from made_up_recipes import made_up_recipes

from toposcope.cli import toposcope
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)
SIZES, TOKENS = (5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)


def run(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(toposcope, [str(each) for each in arguments])


def tidy(path: Path, *, factor: float = 1.0, **options: object) -> Path:
    """Write a suite as a tidy table, as users have it."""
    table = made_up_recipes(1, **options).evaluations.table  # type: ignore[arg-type]
    table = table.with_columns(
        value=pl.when(pl.col("role") == "score").then(pl.col("value") * factor).otherwise("value")
    )
    table.select("run", "recipe", "N", "D", "step", "seed", "task", "metric", "value", "n").write_csv(path)
    return path


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tidy(tmp_path_factory.mktemp("suite") / "suite.csv", recipes=5, tasks=2, with_losses=True)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Earlier runs as points, and their evaluations with the loss of the points."""
    folder, rng = tmp_path_factory.mktemp("ladder"), np.random.default_rng(0)
    points, rows = ["N,D,loss"], ["run,N,D,task,metric,value,n"]
    for N in SIZES:
        for D in TOKENS:
            loss = float(LAW.loss(N, D)) * np.exp(0.002 * rng.standard_normal())
            p = 0.25 + 0.65 / (1 + np.exp(3.0 * (loss - 2.6)))
            points.append(f"{N},{D},{loss}")
            rows.append(f"r{N:.0f}-{D:.0f},{N},{D},hellaswag,acc,{rng.binomial(10_000, p) / 10_000},10000")
            rows.append(f"r{N:.0f}-{D:.0f},{N},{D},c4,loss,{loss},")
    (folder / "points.csv").write_text("\n".join(points) + "\n")
    (folder / "scores.csv").write_text("\n".join(rows) + "\n")
    return folder / "points.csv", folder / "scores.csv"


def test_which_recipe_wins_is_printed_with_its_tests(suite: Path) -> None:
    done = run("decide", "--tasks", suite, "--model", "N=7B,D=700B")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Mean of 2 tasks at 7B parameters on 700B tokens: ")
    for words in ("single-scale ranking ordered", "Tested forward on", "signal to noise", "every quantity"):
        assert words in done.stdout


def test_recipes_as_json_have_every_pair(suite: Path) -> None:
    done = run("decide", "--tasks", suite, "--model", "N=7B,D=700B", "--task", "task0", "--json")
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 5 * 4 / 2
    assert found["model"]["N"] == 7e9
    assert {each["approach"] for each in found["accuracies"]} >= {"single scale", "all scales", "law of each recipe"}
    assert found["contests"][0]["refused"] is not None


def test_the_page_of_recipes_has_its_figures(suite: Path, tmp_path: Path) -> None:
    done = run("decide", "--tasks", suite, "--model", "N=7B,D=700B", "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert {path.stem for path in (tmp_path / "page" / "figures").glob("*.svg")} == {
        *("standings", "decision-accuracy", "reliability"),
    }
    again = run("decide", "--tasks", suite, "--model", "N=7B,D=700B", "--out", tmp_path / "again")
    assert again.exit_code == 0
    assert (tmp_path / "page" / "index.html").read_bytes() == (tmp_path / "again" / "index.html").read_bytes()


def test_percentages_are_the_same_as_shares(tmp_path: Path) -> None:
    shares = tidy(tmp_path / "shares.csv", recipes=3, sizes=(1e8,))
    percent = tidy(tmp_path / "percent.csv", factor=100.0, recipes=3, sizes=(1e8,))
    first, second = (run("decide", "--tasks", path) for path in (shares, percent))
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout


def test_a_budget_is_also_planned_in_scores(ladder: tuple[Path, Path], tmp_path: Path) -> None:
    points, scores = ladder
    done = run("decide", "--points", points, "--budget", 1e21, "--tasks", scores, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert "hellaswag: " in done.stdout
    assert "(90%: " in done.stdout
    assert "In scores of tasks" in (tmp_path / "page" / "report.md").read_text()
    assert (tmp_path / "page" / "figures" / "scores.svg").exists()


def test_continue_or_scale_is_also_answered_in_scores(ladder: tuple[Path, Path]) -> None:
    points, scores = ladder
    arguments = ("--parameters", 1e8, "--tokens", 2e10, "--extra", 2e20, "--tasks", scores, "--task", "hellaswag")
    done = run("decide", "--points", points, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    run_row, fresh = found["tasks"]
    assert [run_row["model"], fresh["model"]] == ["continue the run", "best fresh run"]
    assert 0 <= fresh["probability"] <= 1
    assert fresh["low"] < fresh["score"] < fresh["high"]


def test_a_forecast_is_also_given_in_scores(ladder: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{i * 20},{2.2 + 3 * (20.0 * i) ** -0.35},0.0003,4e8,4e6" for i in range(10, 250)]
    log.write_text("step,loss,lr,N,tps\n" + "\n".join(rows) + "\n")
    command = ("forecast", log, "--schedule", "constant:steps=10000", "--ladder", ladder[1], "--task", "hellaswag")
    done = run(*command, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert "hellaswag: " in done.stdout
    assert "In scores of tasks" in (tmp_path / "page" / "report.md").read_text()
    (task,) = json.loads(run(*command, "--json").stdout)["tasks"]
    assert task["low"] < task["score"] < task["high"]
    assert task["link"] == "c4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "a"), "--task: it needs evaluations"),
        (("--model", "N=1B,D=1T"), "--model: it needs evaluations"),
        (("--loss", "a"), "--loss: it needs evaluations"),
    ],
)
def test_options_of_tasks_alone_are_refused(arguments: tuple[str, ...], words: str) -> None:
    done = run("decide", *arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_faults_are_one_line(suite: Path, ladder: tuple[Path, Path], tmp_path: Path) -> None:
    for arguments, words in (
        (("decide", "--tasks", suite, "--budget", 1e21), "it needs losses of earlier runs"),
        (("decide", "--tasks", suite, "--task", "task7"), "did you mean"),
        (("decide", "--tasks", suite, "--model", "N=7B"), "tokens missing"),
        (("decide", "--tasks", ladder[1]), "two recipes or more"),
        (("decide", "--points", ladder[0], "--budget", 1e21, "--tasks", ladder[1], "--loss", "c5"), "c4"),
        (("decide", "--points", ladder[0], "--budget", 1e21, "--tasks", ladder[1], "--model", "N=1,D=1"), "--model"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert words in done.output
        assert "Traceback" not in done.output
        assert sum(line.startswith("Error: ") for line in done.output.splitlines()) == 1
