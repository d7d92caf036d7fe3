"""Loops of weights and generalisation: the tasks, what is measured of a matrix, planted times, the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from toposcope.extend import UNDETERMINED
from toposcope_experiments.commands.weight_loops import weight_loops
from toposcope_experiments.grokking.design import CONDITIONS, MLP, TASKS, TREATED, GrokkingRun, pairs
from toposcope_experiments.grokking.experiment import MeasuredRuns
from toposcope_experiments.grokking.training import LOGGED
from toposcope_experiments.weight_loops.features import LOOPS, NORM, OF_MATRIX, kinds_of, matrix_features
from toposcope_experiments.weight_loops.timing import (
    EARLIER,
    LATER,
    TOGETHER,
    UNCHANGED,
    half_time,
    timing_table,
)

STEPS = np.arange(0, 1220, 20)


def test_tasks_are_what_they_are_called() -> None:
    first, second = (x.tolist() for x in pairs(13))
    right = {"addition": int.__add__, "subtraction": int.__sub__, "multiplication": int.__mul__}
    assert right.keys() == TASKS.keys()
    for task, operation in right.items():
        labels = GrokkingRun(MLP, TREATED, 0, task).labels(13).tolist()
        assert labels == [operation(a, b) % 13 for a, b in zip(first, second, strict=True)]
    names = [GrokkingRun(MLP, TREATED, 0, task).name for task in TASKS]
    assert names[0] == "mlp true labels 0"  # that of the runs whose results are published
    assert len(set(names)) == len(names)


def test_a_matrix_with_a_planted_ring_of_blocks_has_more_loops_than_its_null() -> None:
    rng = np.random.default_rng(0)
    plain, ring = 0.05 * rng.random((2, 40, 60))
    angles = np.abs((np.arange(40)[:, None] / 40 - np.arange(60) / 60 + 0.5) % 1 - 0.5)
    assert abs(matrix_features(plain, "plain")[LOOPS]) < 5
    bands = matrix_features(ring + np.exp(-((angles / 0.05) ** 2)), "ring")
    assert bands[LOOPS] < -3  # a band has one long loop, where its spectrum alone would give many
    assert bands.keys() == OF_MATRIX.keys()
    assert matrix_features(plain, "plain") == matrix_features(plain, "plain")
    assert np.isnan([*matrix_features(np.zeros((3, 4)), "zero").values()]).all()
    assert np.isnan([*matrix_features(np.full((3, 4), np.inf), "lost").values()]).all()


def step_at(place: float, noise: float, rng: np.random.Generator) -> np.ndarray:
    return 1 / (1 + np.exp(-(STEPS - place) / 15)) + noise * rng.standard_normal(len(STEPS))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_half_time_is_where_a_planted_change_is(sign: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    place = rng.uniform(200, 1000)
    assert abs(half_time(STEPS, 5 * sign * step_at(place, 0.02, rng)) - place) <= 20
    assert np.isnan(half_time(STEPS, rng.standard_normal(len(STEPS))))
    assert np.isnan(half_time(STEPS, np.ones(len(STEPS))))
    holes = np.where(rng.random(len(STEPS)) < 0.1, np.nan, 5 * sign * step_at(place, 0.02, rng))
    assert abs(half_time(STEPS, holes) - place) <= 60


@pytest.mark.parametrize(
    ("lag", "runs", "verdict"),
    [
        (-120, 8, EARLIER),
        (0, 8, TOGETHER),
        (120, 8, LATER),
        (None, 8, UNCHANGED),
        (120, 4, UNDETERMINED),
    ],
)
def test_planted_lags(lag: int | None, runs: int, verdict: str) -> None:
    rng = np.random.default_rng(0)
    made = [GrokkingRun(MLP, condition, i) for condition in CONDITIONS for i in range(runs)]
    places = rng.uniform(400, 700, len(made))
    log = {name: np.zeros((len(STEPS), len(made))) for name in LOGGED}
    log["train_accuracy"][3:] = 1
    accuracy = np.stack([step_at(place, 0, rng) for place in places], axis=1)
    log["validation_accuracy"] = np.where(np.array([run.condition == TREATED for run in made]), accuracy, 0.1)
    features = {name: rng.standard_normal((len(STEPS), len(made))) for name in kinds_of("mlp")}
    followed = f"embedding: {LOOPS}"
    if lag is not None:
        features[followed] = np.stack([-9 * step_at(place + lag, 0.05, rng) for place in places], axis=1)
    table = timing_table([MeasuredRuns("mlp, addition", 59, made, STEPS, log, features, {})])
    row = table.filter(feature=followed)
    assert row["verdict"].to_list() == [verdict]
    assert row["n_runs"].to_list() == [runs]
    if lag is not None:
        assert abs(row["lag"][0] - lag) <= 20
    assert table.filter(feature=f"embedding: {NORM}")["verdict"].to_list() == [UNCHANGED if runs > 4 else UNDETERMINED]


@pytest.mark.slow
def test_the_command_from_beginning_to_end_and_again(tmp_path: Path) -> None:
    arguments = ["--modulus", "13", "--seeds", "2", "--steps", "60", "--workers", "1", "--json", "--out"]
    runs = []
    for folder in ("once", "again"):
        found = CliRunner().invoke(weight_loops, [*arguments, str(tmp_path / folder)])
        assert found.exit_code == 0, found.output
        runs.append(json.loads(found.stdout[found.stdout.index("{") : found.stdout.rindex("}") + 1]))
    assert runs[0] == runs[1]
    assert len(runs[0]["runs"]) == 2 * 3 * 4 * 2
    assert {row["architecture"] for row in runs[0]["timing"]} == {"mlp", "transformer"}
    page = (tmp_path / "once" / "index.html").read_text()
    assert "Loops and generalisation" in page
