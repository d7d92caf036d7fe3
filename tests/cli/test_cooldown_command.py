"""``toposcope cooldown``: a small run that held its rate and then cooled down, and runs it has no answer for."""

import argparse
import inspect
import json
import shutil
import typing
from pathlib import Path

import numpy as np
import pytest
from commands import called, complaint_of
from small_models import save

import toposcope
from toposcope.family import Corpus, FamilyRun, ModelSize, TrainingOptions, train
from toposcope.family.corpus import prepare
from toposcope.family.model import build
from toposcope.forecasting.cooldown_report import CoolDownReport

HELD, LAST, EVERY = 480, 576, 12
SIZE = ModelSize(hidden=16, layers=1, heads=2, context=32)
TRAINING = TrainingOptions(
    steps=LAST, batch_size=8, learning_rate=1e-2, final_learning_rate=0.0, schedule="wsd", warmup_steps=20,
    decay_steps=LAST - HELD, checkpoint_every=EVERY, seed=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at constant rate up to step 480, and cooled down over 96 more."""
    folder = tmp_path_factory.mktemp("study")
    source = folder / "source.txt"
    source.write_text("".join(map(inspect.getsource, (argparse, inspect, typing))))
    corpus = Corpus(source=str(source))
    prepare(corpus, folder / "corpus.safetensors")
    place = folder / "runs" / "r"
    train(FamilyRun(name="r", size=SIZE, corpus=corpus, training=TRAINING), folder / "corpus.safetensors", place)
    return place


@pytest.fixture(scope="module")
def held(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run while it held its rate."""
    folder = tmp_path_factory.mktemp("held")
    for path in (run / "checkpoints").glob("step_*.safetensors"):
        if int(path.stem.removeprefix("step_")) <= HELD:
            (folder / "checkpoints").mkdir(exist_ok=True)
            shutil.copy(path, folder / "checkpoints")
    shutil.copy(run / "run.json", folder)
    lines = (run / "log.csv").read_text().splitlines()
    (folder / "log.csv").write_text("\n".join(lines[: HELD + 2]) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints and a log as those of the run, of a model that learned nothing."""
    folder = tmp_path_factory.mktemp("made")
    model = build(SIZE)
    for step in range(0, LAST + 1, EVERY):
        save(model, folder / "checkpoints", step)
    rows = [f"{step},{5 - step / LAST},{TRAINING.rate(step)}" for step in range(1, LAST + 1)]
    (folder / "log.csv").write_text("\n".join(["step,loss,learning_rate", *rows]) + "\n")
    return folder


@pytest.mark.slow
def test_what_is_predicted_is_what_the_run_came_to(run: Path, held: Path, tmp_path: Path) -> None:
    figure = tmp_path / "cooldown.svg"
    done = called("cooldown", held, "--steps", str(LAST - HELD), "--save", tmp_path / "merged", "--out", figure)
    assert done.code == 0
    sentence = done.out.splitlines()[0]
    assert sentence.startswith(f"Cooling down over the next {LAST - HELD} steps would bring the validation loss to ")
    assert "below holding the rate" in sentence
    assert "is in hand now as a merged model, written with --save." in sentence
    assert f"merged model: {tmp_path / 'merged'}\nfigure: {figure}" in done.out
    assert figure.read_bytes().startswith(b"<svg")
    found = toposcope.cooldown(run, at=HELD)
    assert isinstance(found, CoolDownReport)
    assert found.headline() == sentence
    assert found.answer is not None
    assert found.real is not None
    length, loss = found.real
    assert length == LAST - HELD
    assert found.answer.low < loss < found.answer.high
    # the last row of the log is of fewer tokens of the same text
    assert loss == pytest.approx(float((run / "log.csv").read_text().split(",")[-1]), abs=0.1)
    # what was written is the average that was read
    merged = toposcope.series(tmp_path / "merged")
    assert merged[0].content_hash() == toposcope.merge(held, window=(HELD - found.best().window, HELD)).content_hash()


@pytest.mark.slow
def test_all_as_numbers(held: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text(inspect.getsource(inspect))
    done = called("cooldown", held, "--json", "--all", "--tokens", "5000", "--decay", "1-sqrt", "--text", text)
    assert done.code == 0
    found = json.loads(done.out)
    assert found["step"] == HELD
    assert 5000 <= found["tokens"] < 5100
    assert {*(each["length"] for each in found["answers"]), *map(int, found["refused"])} == {24, 48, 96}
    assert {each["decay"] for each in found["answers"]} == {"1-sqrt"}
    assert len(found["raw"]["steps"]) == 10
    assert found["raw"]["steps"][::9] == [336, HELD]
    assert found["raw"]["steps"][-1] == HELD
    assert "bring the loss on other.txt to" in found["headline"] or found["headline"].startswith("No answer")
    for average in found["merged"]:
        assert sum(average["weights"]) == pytest.approx(1)


@pytest.mark.slow
def test_without_rates_it_is_said_that_they_were_held(held: Path, tmp_path: Path) -> None:
    shutil.copytree(held / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(held / "run.json", tmp_path)
    line = complaint_of("cooldown", tmp_path)
    assert "no learning rates with it" in line
    assert "--constant" in line
    done = called("cooldown", tmp_path, "--constant", "--tokens", "5000")
    assert done.code == 0
    assert "the learning rate is taken to be constant, as declared" in done.err
    named = called("cooldown", tmp_path, "--log", held / "log.csv", "--tokens", "5000", "--json")
    assert named.code == 0
    assert json.loads(named.out)["answers"]


def test_a_rate_that_falls_has_no_answer(made: Path, tmp_path: Path) -> None:
    done = called("cooldown", made)
    assert done.code == 2
    assert "nothing was read that could be drawn" in complaint_of("cooldown", made, "--out", tmp_path / "chart.svg")
    assert done.out.startswith("No answer: the learning rate falls over the last 173 steps, from 0.01 to 0: ")
    assert "ask at a step before" in done.out
    assert json.loads(called("cooldown", made, "--json").out)["answers"] == []
    assert done.out.startswith(called("cooldown", made, "--constant").out)  # what was logged counts


def test_a_fifth_of_the_steps_is_rounded_down(made: Path) -> None:
    refused = json.loads(called("cooldown", made, "--at", "468", "--steps", "2", "--json").out)["refused"]
    assert "2" in refused
    assert not any("longer than 20%" in why for why in refused.values())


def test_refusals_before_anything_is_read(made: Path, tmp_path: Path) -> None:
    early = called("cooldown", made, "--at", "120")
    assert (early.code, early.out.split(":")[0]) == (2, "No answer")
    assert "ask again at step 200" in early.out
    long = called("cooldown", made, "--at", str(HELD), "--steps", "200")
    assert long.code == 2
    assert "No answer: a cool-down of 200 steps from step 480 is longer than 20% of the steps so far" in long.out
    assert "no checkpoint of step 7" in complaint_of("cooldown", made, "--at", "7")
    first = min((made / "checkpoints").iterdir())
    assert "a tenth of 0 steps is no cool-down" in complaint_of("cooldown", first, "--constant")
    assert "no such file or folder" in complaint_of("cooldown", tmp_path / "nothing")
    assert "--text" in complaint_of("cooldown", made, "--text", tmp_path / "nothing.txt")
    assert "exists" in complaint_of("cooldown", made, "--save", tmp_path)
    assert "name it with --log FILE" in complaint_of("cooldown", made, "--unit", "bits")
    steps = np.arange(1, 300)
    rows = "\n".join(f"{step},{3 - step / 1000},0.01" for step in steps)
    (tmp_path / "short.csv").write_text(f"step,loss,learning_rate\n{rows}\n")
    line = complaint_of("cooldown", made, "--at", str(HELD), "--log", tmp_path / "short.csv")
    assert "learning rates are logged up to step 299" in line


def test_three_checkpoints_are_needed(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "few")
    for path in (tmp_path / "few" / "checkpoints").iterdir():
        if int(path.stem.removeprefix("step_")) % 96:
            path.unlink()
    done = called("cooldown", tmp_path / "few", "--at", str(HELD))
    assert done.code == 2
    assert "No answer: 2 checkpoints in the last 96 steps, and 3 are needed" in done.out
