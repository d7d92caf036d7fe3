"""What the README and the pages print runs: their commands on what the demo made, the Python of the README as it is."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
import torch
from small_studies import NEURAL_PERSISTENCE, series_study, write_series

from toposcope.cli import toposcope
from toposcope.study import run_study
from toposcope.study.declaration import shipped_study

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOLDERS = (ROOT / "docs", ROOT / "experiments" / "docs", ROOT / "downstream" / "docs")
OTHERS = ("changelog.md", "extend.md")
"""Pages without commands of their own, or whose commands `test_extend` runs."""
PAGES = [README, *sorted(page for folder in FOLDERS for page in folder.rglob("*.md") if page.name not in OTHERS)]
COMMAND = re.compile(r"^ *(?:\$ )?(toposcope [a-z].*?) *(?: # .*)?$", re.MULTILINE)

EXPERIMENTS = sorted(
    point.name for point in entry_points(group="toposcope.commands") if point.value.startswith("toposcope_experiments")
)
NOT_RUN = {
    r"hf:": "needs the network",
    r"--engine ray": "needs a cluster",
    rf"^toposcope ({'|'.join(EXPERIMENTS)})\b": "trains for minutes or hours",
    r"published|\bagain\b": "needs data that are published elsewhere",
    r"studies/(?!quickstart)|\bpaper\b|topology-gain": "trains for hours, or needs a GPU",
    r"curves\.parquet": "needs complete runs of many sizes",
    r"now\.csv|log\.csv --siblings runs --schedule": "of a run in progress; the page makes it",
    r"neox|book\.txt|held-out\.txt|out/small|planes\.csv": "needs a model of text with its tokenizer",
    r"-tasks|now,D=|--chance|results/|plain\.csv": "their pages make such evaluations",
    r"--role": "of layers with other names",
    r"runs\.csv": "a table of the reader's runs",
    r"runs/(mine|trainer|lightning|accelerate|fsdp2|plain)|show runs --host": "of a run in training",
    r"^toposcope study run (run/|mine\.toml|my-runs\.toml)": "of a declaration that the page prints",
    r"^toposcope (demo|study run checkpoints/)": "run first, below, or as long as the demo",
    r"--directions (hessian|trajectory)": "minutes",
    r"^toposcope train .*--out trained": "trains for minutes",
    r"^toposcope cooldown|--measured": "of a run at constant rate; its page trains it",
    r"merged:": "of a series of the reader's",
}  # fmt: skip
"""Which commands of the pages are not run as they are printed, and why; none of these is in the README but the demo."""
STAND_INS = {
    "checkpoints": "toposcope-demo/runs/tiny-3k/checkpoints",
    "runs": "toposcope-demo/runs",
    "log.csv": "toposcope-demo/runs/unfinished/log.csv",
    "points.csv": "docs/examples/ladder.csv",
    "scores.csv": "docs/examples/ladder.csv",
}
"""What the pages call the reader's folders and files."""


def commands(page: Path) -> list[str]:
    """Return the commands that a page prints, without their remarks."""
    return [command.strip() for command in COMMAND.findall(page.read_text(encoding="utf-8"))]


def reason_not_to_run(command: str) -> str:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), "")


def test_commands_of_the_readme_name_what_is_there_or_what_the_demo_makes() -> None:
    """Each path of a command is in the clone, or of the demo, or written by the command."""
    made = {f"toposcope-demo/runs/{run.name}" for run in shipped_study("quickstart").resolved_runs()}
    made |= {"toposcope-demo", "toposcope-demo/runs", *(f"{run}/log.csv" for run in made)}
    assert 1 <= len(commands(README)) <= 6
    every = [command for page in PAGES for command in commands(page)]
    assert all(any(re.search(pattern, command) for command in every) for pattern in NOT_RUN)
    for command in commands(README):
        _, verb, *words = shlex.split(command)
        assert verb in toposcope.list_commands(click.Context(toposcope))
        assert not reason_not_to_run(command) or verb == "demo"
        for before, word in zip(["", *words], words, strict=False):
            if before not in ("--out", "--extra", "--parameters", "--tokens") and not word.startswith(
                ("-", "N=", "run")
            ):
                assert word in made or (ROOT / word).exists(), command


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader's clone after `toposcope demo`."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("docs", "studies", "experiments", "downstream"):
        (folder / name).symlink_to(ROOT / name)
    if made := os.environ.get("TOPOSCOPE_DEMO"):
        (folder / "toposcope-demo").symlink_to(made)
    else:
        assert run_command("toposcope demo", folder).returncode == 0
    for name, target in STAND_INS.items():
        (folder / name).symlink_to(target)
    return folder


def started(command: str, folder: Path) -> subprocess.Popen[str]:
    main = "import sys; from toposcope.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", main, *shlex.split(command)[1:]],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def run_command(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    process = started(command, folder)
    if command.startswith("toposcope show"):
        first = process.stdout.readline() if process.stdout else ""
        assert first.startswith("live page: http://")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


PRINTED = {
    command: page.relative_to(ROOT).as_posix()
    for page in reversed(PAGES)
    for command in commands(page)
    if not reason_not_to_run(command)
}


@pytest.mark.slow
@pytest.mark.parametrize("command", PRINTED, ids=[f"{page}: {command}" for command, page in PRINTED.items()])
def test_commands_run_as_printed(command: str, clone: Path) -> None:
    done = run_command(command, clone)
    assert done.returncode == 0 or (command.startswith("toposcope show") and done.returncode == 130), done.stderr
    assert "Traceback" not in done.stderr


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    checkpoints = write_series(tmp_path / "checkpoints", list(range(20)))
    run_study(series_study(checkpoints, [NEURAL_PERSISTENCE], steps=[0, 1]), tmp_path / "toposcope-demo", workers=1)
    names: dict[str, Any] = {
        "model": SimpleNamespace(fc=torch.nn.Linear(6, 4)),
        "points": np.random.default_rng(0).standard_normal((20, 3)),
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["frame"]["step"].unique().sort().to_list() == [0, 10]
    assert [len(names["h0"].pairs), names["study"].frame().is_empty()] == [19, False]
