"""``toposcope forecast``: what it prints, draws, borrows and refuses."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from commands import strict_json

from toposcope.cli import toposcope
from toposcope.logs import read_log

STEPS, EVERY = 2000, 10


def rates(t: np.ndarray) -> np.ndarray:
    return np.asarray(1e-3 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * t / STEPS))))


def losses(t: np.ndarray, level: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.004, len(t))
    return np.asarray(level + 8 * t**-0.45 - 0.2 * (1 - rates(t) / 1e-3) + noise)


def write(
    path: Path,
    share: float = 1.0,
    *,
    level: float = 2.8,
    seed: int = 0,
    names: str = "step,loss,lr,max_steps,n_params",
    parameters: float = 1e8,
    cut: int = 0,
) -> Path:
    t = np.arange(EVERY, round(share * STEPS) + 1, EVERY)
    columns = {"step": t, "loss": losses(t, level, seed), "lr": rates(t)}
    rows = [f"{s},{x:.5f},{r:.8f},{STEPS},{parameters:g}" for s, x, r in zip(*columns.values(), strict=True)]
    kept = len(names.split(","))
    text = "\n".join([names, *(",".join(row.split(",")[:kept]) for row in rows)]) + "\n"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text[: len(text) - cut])
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Complete runs of three sizes, four of each, and the run that is asked about, seen to 40%."""
    folder = tmp_path_factory.mktemp("forecast")
    for i in range(12):
        size = i % 3
        write(
            folder / "siblings" / f"s{i}.csv", level=3.2 - 0.2 * size + 0.01 * i, seed=i + 1, parameters=5e7 * 2**size
        )
    write(folder / "now.csv", 0.4)
    return folder


def told(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(toposcope, ["forecast", *map(str, arguments)], env={"COLUMNS": "200"})


def answer(*arguments: str | Path | float) -> dict[str, Any]:
    done = told(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = strict_json(done.stdout)
    assert list(found) == sorted(found)
    return found


def test_words_first_then_the_forecasters_side_by_side(runs: Path) -> None:
    done = told(runs / "now.csv", "--all")
    assert done.exit_code == 0, done.output
    first, read, plan, *_ = done.stdout.splitlines()
    match = re.fullmatch(
        r"Healthy\. Training loss ends at ([\d.]+) \(90%: ([\d.]+) to ([\d.]+)\) at step 2,000\.", first
    )
    assert match is not None, first
    loss, low, high = map(float, match.groups())
    assert low < loss < high
    assert read.startswith("read: 80 losses from 'loss' in nats, steps 10 to 800, 100M parameters; ")
    assert plan.startswith("plan: 2,000 steps, 40% seen; learning rate at its peak, 0.001, at step ")
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert {"last", "power_law", "s1", "pool", "template", "stack"} <= set(rows)
    assert "default" not in rows
    assert "needs at least 4" in rows["template"]
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(set(notes))
    assert any("of the decay seen" in line for line in notes)
    assert any("columns: " in line for line in notes)


def test_programs_are_told_everything(runs: Path) -> None:
    found = answer(runs / "now.csv")
    final = float(losses(np.arange(EVERY, STEPS + 1, EVERY), 2.8, 0)[-4:].mean())
    forecasts, curve = found["forecasts"], found["curve"]
    assert isinstance(forecasts, dict)
    assert isinstance(curve, dict)
    default = forecasts["default"]
    assert default["loss"] == forecasts[found["default"]]["loss"] == pytest.approx(final, rel=0.02)
    assert default["low"] < final < default["high"]
    steps = curve["steps"]
    assert (steps[0], steps[-1]) == (800, STEPS)
    assert len(steps) == len(curve["loss"]) == len(curve["low"]) == len(curve["high"])
    assert (curve["low"][-1] / curve["loss"][-1]) == pytest.approx(default["low"] / default["loss"])
    assert {"template", "stack"} <= set(found["refused"])
    assert (found["complete"], found["final_loss"], found["fraction_seen"]) == (False, None, 0.4)


def test_siblings_are_borrowed_from(runs: Path) -> None:
    found = answer(runs / "now.csv", "--siblings", runs / "siblings")
    assert found["default"] == "stack"
    assert len(found["siblings"]) == 12
    assert any("taken to be of the log's" in str(remark) for remark in found["remarks"])
    done = told(runs / "now.csv", "--siblings", runs / "siblings")
    assert "siblings: 12 complete runs, 12 of the log's family" in done.stdout


def test_siblings_of_another_unit_are_left_out(runs: Path, tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "mixed" / f"n{i}.csv", level=3 + 0.1 * i, seed=i + 1)
    write(tmp_path / "mixed" / "b.csv", seed=9, names="step,bpb,lr,max_steps")
    found = answer(runs / "now.csv", "--siblings", tmp_path / "mixed")
    assert found["siblings"] == ["n0", "n1", "n2"]
    assert "1 sibling left out: in bits per byte, the log in nats" in found["remarks"]
    alone = told(runs / "now.csv", "--siblings", tmp_path / "mixed" / "b.csv")
    assert alone.exit_code == 2
    assert "no sibling can be used" in alone.stderr


def test_columns_and_units_that_are_named(runs: Path, tmp_path: Path) -> None:
    own = write(tmp_path / "own.csv", 0.4, names="it,objective,eta")
    assert told(own).exit_code == 2
    named = ("--column", "loss=objective", "--column", "learning_rate=eta", "--unit", "bits", "--steps", STEPS)
    found = answer(own, *named)
    log = found["log"]
    assert isinstance(log, dict)
    assert (log["target"], log["unit"], log["n"]) == ("objective", "bits", 80)
    # siblings from another tool have columns of other names
    found = answer(own, *named[:4], "--steps", STEPS, "--siblings", runs / "siblings")
    assert len(found["siblings"]) == 12


def test_a_complete_run_is_told_its_final_loss(tmp_path: Path) -> None:
    path = write(tmp_path / "done.csv")
    done = told(path)
    loss, error = read_log(path).final_loss()
    assert "forecaster" not in done.stdout
    found = answer(path)
    assert found["final_loss"] == {"loss": loss, "standard_error": error}
    assert (found["complete"], found["forecasts"], found["curve"]) == (True, {}, None)


def test_a_run_that_diverged_has_no_final_loss(tmp_path: Path) -> None:
    path = tmp_path / "dead.csv"
    rows = [f"{i},{4 - i / 100 if i <= 150 else 'nan'}\n" for i in range(1, 201)]
    path.write_text("step,loss\n" + "".join(rows))
    done = told(path)
    first, *rest = done.stdout.splitlines()
    assert done.exit_code == 1
    assert first == (
        "Diverged: at step 151: the training loss is NaN in all 50 rows from there on, after 2.5 at step 150. "
        "It has no final loss."
    )
    assert not any("forecaster" in line or "90%" in line or "final loss" in line for line in rest)
    done = told(path, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    reason = first.partition("step 151: ")[2].partition(". ")[0]
    assert found["diverged"] == {"step": 151, "reason": reason}
    assert [found[what] for what in ("default", "final_loss", "curve", "complete")] == [None, None, None, False]
    assert (found["best_step"], found["best_loss"]) == (150, 2.5)
    done = told(path, "--json", "--steps", 400, "--schedule", "constant:steps=400")
    assert (done.exit_code, json.loads(done.stdout)["forecasts"]) == (1, {})


def test_a_run_that_overfits_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "over.csv"
    rows = [f"{i},{5 - i / 100},{'' if i % 10 else abs(i - 120) / 100 + 1},400\n" for i in range(1, 201)]
    path.write_text("step,loss,eval_loss,max_steps\n" + "".join(rows))
    for column, kind in (("loss", "training"), ("eval_loss", "validation")):
        done = told(path, "--column", f"loss={column}")
        assert done.exit_code == 0
        first = done.stdout.splitlines()[0]
        assert first.startswith("Past its best: best validation loss 1.000 at step 120; the last evaluations are 0.600")
        assert f" {kind.capitalize()} loss ends at " in first
        found = answer(path, "--column", f"loss={column}")
        assert (found["best_step"], found["best_loss"], found["diverged"]) == (120, 1.0, None)
    default = found["forecasts"]["default"]
    assert found["default"] == "last"
    assert default["low"] <= 1
    assert default["high"] >= 1.8 + 200 / 100


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_figure_is_written(runs: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "new" / f"figure.{kind}"
    done = told(runs / "now.csv", "--out", out)
    assert done.exit_code == 0, done.output
    assert f"figure: {out}" in done.stdout
    heads = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}
    assert out.read_bytes().startswith(heads[kind])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.csv",), "does not exist"),
        (("NOW", "--siblings", "absent"), "does not exist"),
        (("NOW", "--schedule", "parabola:steps=9"), "parabola"),
        (("NOW", "--schedule", "cosine:steps=50"), "before the log does"),
        (("NOW", "--steps", "50"), "before the log does"),
        (("NOW", "--steps", "99999999999999"), "count steps of the optimiser"),
        (("NOW", "--unit", "furlongs"), "furlongs"),
        (("NOW", "--column", "loss"), "WHAT=NAME"),
        (("NOW", "--column", "los=loss"), "Choose from loss"),
        (("NOW", "--column", "loss=absent"), "no column 'absent'"),
        (("NOW", "--out", "figure.jpg"), "ends in .svg"),
        (("NOW", "--run", "other"), "no run 'other'"),
        (("NOW", "--schedule", "cosine:stepz=9"), "stepz"),
        (("NOW", "--out", "folder"), "ends in .svg"),
    ],
)
def test_mistakes_are_bad_use_in_one_line(runs: Path, arguments: tuple[str, ...], words: str) -> None:
    done = told(*(runs / "now.csv" if each == "NOW" else each for each in arguments))
    assert done.exit_code == 2, done.output
    assert words in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("step,accuracy\n1,2\n", "no column of losses"),
        ("step,loss\n1,nan\n2,nan\n", "no loss is finite"),
        ("step,loss\n1,-3\n2,-4\n", "need not fall"),
        ("step,loss\n1,4\n2,3\n", "the number of planned steps is unknown"),
    ],
)
def test_logs_that_are_none_are_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    done = told(path)
    assert done.exit_code == 2
    assert words in done.stderr.splitlines()[-1]
    (tmp_path / "good").mkdir()
    write(tmp_path / "good" / "now.csv", 0.4)
    if "planned steps" not in words:
        beside = told(tmp_path / "good" / "now.csv", "--siblings", path)
        assert beside.exit_code == 2
        assert words in beside.stderr.splitlines()[-1]


def test_a_measured_gain_is_used_where_a_decay_is_near_and_a_line_says_so(tmp_path: Path) -> None:
    t = np.arange(EVERY, 1801, EVERY)
    loss = 2.8 + 8 * t**-0.45 + np.random.default_rng(0).normal(0, 0.004, len(t))
    rows = "".join(f"{s},{x:.5f},0.001\n" for s, x in zip(t, loss, strict=True))
    (tmp_path / "log.csv").write_text(f"step,loss,lr\n{rows}")
    numbers = {"loss": 2.9, "low": 2.88, "high": 2.92, "held": 3, "now": 3, "beyond": 0.08}
    found = {"length": 180, "decay": "linear", **numbers}
    merged = {"steps": [1710, 1800], "loss": 2.95, "weights": [0.5, 0.5]}
    stored = {"step": 1800, "answers": [found], "merged": [merged]}
    (tmp_path / "cooldown.json").write_text(json.dumps(stored))
    options = (tmp_path / "log.csv", "--measured", tmp_path / "cooldown.json")
    near = told(*options, "--schedule", "wsd:steps=2000,decay=0.1")
    assert near.exit_code == 0, near.output
    assert "cool-down: the cool-down from step 1,800 on gains 0.08 nats beyond its progress" in near.output
    assert "default: s1_anneal" in near.output
    far = told(*options, "--schedule", "wsd:steps=9000,decay=0.1")
    assert "is not used: the decay begins at step 8,100, too far from step 1,800" in far.output
