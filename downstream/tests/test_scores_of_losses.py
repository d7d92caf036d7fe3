"""``decide-tasks`` and ``forecast-tasks``: decisions and forecasts in scores of tasks."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from commands import called

from toposcope.cli import toposcope
from toposcope.forecasting.scaling.scaling_law import ScalingLaw

LAW = ScalingLaw(E=1.8, A=400.0, B=2000.0, alpha=0.34, beta=0.36)
SIZES, TOKENS = (5e7, 1e8, 2e8, 4e8, 8e8), (5e9, 2e10, 8e10)


def run(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(toposcope, [str(each) for each in arguments])


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


def test_a_budget_is_also_planned_in_scores(ladder: tuple[Path, Path], tmp_path: Path) -> None:
    points, scores = ladder
    done = run("decide-tasks", scores, "--points", points, "--budget", 1e21, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert "hellaswag: " in done.stdout
    assert "(90%: " in done.stdout
    assert "In scores of tasks" in (tmp_path / "page" / "report.md").read_text()
    assert (tmp_path / "page" / "figures" / "scores.svg").exists()


def test_continue_or_scale_is_also_answered_in_scores(ladder: tuple[Path, Path]) -> None:
    points, scores = ladder
    arguments = ("--parameters", 1e8, "--tokens", 2e10, "--extra", 2e20, "--task", "hellaswag")
    done = run("decide-tasks", scores, "--points", points, *arguments, "--json")
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
    command = ("forecast-tasks", log, ladder[1], "--schedule", "constant:steps=10000", "--task", "hellaswag")
    done = run(*command, "--out", tmp_path / "page")
    assert done.exit_code == 0, done.output
    assert "hellaswag: " in done.stdout
    assert "In scores of tasks" in (tmp_path / "page" / "report.md").read_text()
    (task,) = json.loads(run(*command, "--json").stdout)["tasks"]
    assert task["low"] < task["score"] < task["high"]
    assert task["link"] == "c4"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ("decide", "--tasks", "scores.csv"),
            "--tasks: scores of tasks are given by toposcope decide-tasks; pip install",
        ),
        (("decide", "--task", "a"), "--task: scores of tasks are given by toposcope decide-tasks; pip install"),
        (("forecast", "log.csv", "--ladder", "a"), "--ladder: scores of tasks are given by toposcope forecast-tasks"),
    ],
)
def test_options_that_left_say_which_command_has_them(command: tuple[str, ...], words: str) -> None:
    done = called(*command)
    assert done.code == 2
    assert words in done.err


def test_faults_are_one_line(ladder: tuple[Path, Path]) -> None:
    for arguments, words in (
        ((ladder[1], "--budget", 1e21), "give earlier runs: either --points FILE or --siblings FOLDER"),
        ((ladder[1], "--points", ladder[0], "--budget", 1e21, "--loss", "c5"), "c4"),
    ):
        done = run("decide-tasks", *arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert words in done.output
        assert "Traceback" not in done.output
        assert sum(line.startswith("Error: ") for line in done.output.splitlines()) == 1
