"""Whether the log next to a series is its own: practices of trainers, and logs of other runs."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toposcope.integrity import Finding, doctor

State = dict[str, Any]
Rows = list[dict[str, float]]


def found(folder: Path, states: dict[int, State], log: Rows) -> list[Finding]:
    """Save a series with its log; return the faults."""
    for step, state in states.items():
        torch.save(state, folder / f"step_{step}.pt")
    with (folder / "log.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(log[0]))
        table.writeheader()
        table.writerows(log)
    return [finding for finding in doctor(folder, deep=True).findings if finding.severity == "fault"]


def logged(seed: int, batch_noise: float = 0.2) -> tuple[dict[int, State], Rows]:
    """Checkpoints with a loss and a learning rate, and their log: noise about a curve that every seed has."""
    draw = np.random.default_rng(seed)
    steps = np.arange(1, 801)
    losses = 1 + 3 / np.sqrt(steps) + batch_noise * draw.standard_normal(800)
    rates = 2e-3 * np.minimum(1, steps / 40) * (1 - steps / 900)
    rows = [{"step": int(s), "loss": float(x), "lr": float(r)} for s, x, r in zip(steps, losses, rates, strict=True)]
    states = {}
    for row in rows[24::25]:
        weights = {"fc.weight": (1 + row["step"] / 1000) * torch.arange(16.0).reshape(4, 4)}
        optimizer = {"state": {}, "param_groups": [{"lr": row["lr"], "params": [0]}]}
        states[int(row["step"])] = {"model": weights, "optimizer": optimizer, "loss": row["loss"]}
    return states, rows


def _smoothed(rows: Rows) -> Rows:
    means = [float(np.mean([row["loss"] for row in rows[max(0, k - 9) : k + 1]])) for k in range(len(rows))]
    return [row | {"loss": mean} for row, mean in zip(rows, means, strict=True)]


PRACTICES: dict[str, Callable[[Rows], Rows]] = {
    "as it is": lambda rows: rows,
    "every tenth row": lambda rows: rows[9::10],
    "smoothed": _smoothed,
    "from 0 on": lambda rows: [row | {"step": row["step"] - 1} for row in rows],
    "thousandths": lambda rows: [row | {"lr": 1e3 * row["lr"]} for row in rows],
    "begun again": lambda rows: [row | {"step": row["step"] - 400 * (row["step"] > 400)} for row in rows],
    "parts of a batch": lambda rows: [row | {"step": 4 * row["step"]} for row in rows],
    "cut short": lambda rows: rows[:560],
}


@pytest.mark.parametrize("practice", PRACTICES)
def test_what_people_log_is_no_fault(practice: str, tmp_path: Path) -> None:
    states, rows = logged(0)
    assert found(tmp_path, states, PRACTICES[practice](rows)) == []


@pytest.mark.parametrize("of_a_step", [384, 32])
def test_steps_in_tokens_beside_a_log_in_steps_are_one_note(of_a_step: int, tmp_path: Path) -> None:
    states, rows = logged(0)
    assert found(tmp_path, {of_a_step * step: state for step, state in states.items()}, rows) == []
    (note,) = (finding for finding in doctor(tmp_path).findings if finding.check == "log")
    assert f"by {of_a_step}, such as tokens" in note.message


def test_steps_that_all_lie_past_the_log_are_in_another_unit(tmp_path: Path) -> None:
    states, rows = logged(0)
    assert found(tmp_path, {round(33.27 * step): state for step, state in states.items()}, rows) == []


@pytest.mark.parametrize("times", [10, 0.1, 2, 100])
def test_a_rate_that_is_not_the_checkpoints(times: float, tmp_path: Path) -> None:
    states, rows = logged(0)
    assert [f.check for f in found(tmp_path, states, [row | {"lr": times * row["lr"]} for row in rows])] == ["log"]


def test_another_seeds_log_of_the_same_schedule(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, logged(0)[0], logged(1)[1])
    assert "losses of the log are not those of the checkpoints" in finding.message


@pytest.mark.parametrize("other", [False, True])
def test_the_history_that_a_trainer_saves_with_each_checkpoint(other: bool, tmp_path: Path) -> None:
    states, rows = logged(0)
    for step, state in states.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        torch.save(state["model"], folder / "pytorch_model.bin")
        history = [{"step": r["step"], "loss": r["loss"], "learning_rate": r["lr"]} for r in rows[9:step:10]]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    assert bool(found(tmp_path, {}, logged(int(other))[1][9::10])) == other
