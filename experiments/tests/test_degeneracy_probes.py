"""The probes degeneracy and jump_and_retrain: closed forms, and folders on disk measured end to end."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from commands import called
from function_loss import as_loss
from small_models import family_model, save, some_lines
from tiny_models import byte_tokenizer, saved
from torch import Tensor

from toposcope.models.summed_loss import SummedLoss
from toposcope.probes import Measurement, Probe, ProbeInput
from toposcope.probes.feature import NETWORK
from toposcope_experiments.jump_and_retrain.probe import JumpAndRetrainProbe
from toposcope_experiments.jump_and_retrain.retraining import Retraining
from toposcope_experiments.learning_coefficient.probe import DegeneracyProbe

CURVATURE = torch.tensor([0.1, 1.0, 3.0, 10.0] * 50, dtype=torch.float64)
POINT = 2 * torch.ones_like(CURVATURE)
"""Its root mean square is 2, the unit in which both probes measure the weights."""
N_TOKENS = 1000


def bowl(w: Tensor) -> Tensor:
    return 0.5 * (CURVATURE * (w - POINT) ** 2).sum()


def measured(probe: Probe, loss: SummedLoss) -> Measurement:
    (found,) = probe.measure(ProbeInput([], frozenset([NETWORK]), inputs={"text_loss": lambda sequences, length: loss}))
    assert isinstance(found, Measurement), found
    return found


@pytest.mark.slow
def test_the_estimate_of_a_quadratic_loss_in_units_of_the_weights() -> None:
    found = measured(DegeneracyProbe(localisation=500.0), as_loss(bowl, POINT, sequences=N_TOKENS))
    pull = N_TOKENS / math.log(N_TOKENS) * 4 * CURVATURE
    expected = float((pull / (pull + 500) / 2).sum())
    error = found.statistics["learning_coefficient.noise"]
    assert abs(found.statistics["learning_coefficient"] - expected) < 4 * error
    assert error < 0.05 * expected
    chains = [value for name, value in found.statistics.items() if name.startswith("chain@")]
    assert len(chains) == 4
    assert np.mean(chains) == pytest.approx(found.statistics["learning_coefficient"])
    assert found.statistics["convergence@r_hat"] < 1.1
    assert found.statistics["convergence@negative_share"] == 0
    assert found.flag == ""


@pytest.mark.slow
def test_a_slope_has_no_estimate_and_says_so() -> None:
    loss = as_loss(lambda w: 0.1 * w.sum(), POINT, sequences=N_TOKENS)
    found = measured(DegeneracyProbe(), loss)
    assert found.flag.startswith("no estimate: chains left for a lower loss")
    assert found.statistics["convergence@negative_share"] == 1
    assert "learning_coefficient" not in found.statistics
    assert "learning_coefficient.noise" not in found.statistics


def test_a_jump_contracts_by_the_powers_of_the_curvature() -> None:
    probe = JumpAndRetrainProbe(rate=0.02, steps=5, jumps=40)
    found = measured(probe, as_loss(bowl, POINT)).statistics
    # The rate of the weights as they are is 4 times as large; all directions are equally likely.
    expected = float(((1 - 0.08 * CURVATURE) ** 10).mean().sqrt())
    assert found["separation"] == pytest.approx(expected, rel=0.05)
    assert found["distance"] == pytest.approx(found["separation"])
    assert 0 < found["separation.noise"] < 0.05
    assert 0 < found["loss_return"] < 1


def test_a_share_of_the_rise_that_is_undefined_or_above_one_is_flagged() -> None:
    hill = measured(JumpAndRetrainProbe(jumps=2), as_loss(lambda w: -bowl(w) * 1e-9, POINT))
    assert "loss_return" not in hill.statistics
    assert hill.flag == "no estimate: the loss did not rise in 2 of 2 jumps; take a longer jump"
    beside = measured(JumpAndRetrainProbe(rate=0.02, jumps=2), as_loss(lambda w: bowl(w - 1), POINT))
    assert beside.statistics["loss_return"] > 1
    assert beside.flag == "no minimum: 2 of 2 descents end below the checkpoint"
    assert measured(JumpAndRetrainProbe(rate=0.02), as_loss(bowl, POINT)).flag == ""


def test_a_rate_that_diverges_is_said() -> None:
    found = measured(JumpAndRetrainProbe(rate=1e6, steps=60), as_loss(bowl, POINT))
    assert found.flag == "no estimate: the descent diverges; take a smaller rate"
    assert found.statistics.keys() == {"jumped_loss", "jumped_loss.noise"}  # a row, so that the flag is seen


def test_a_descent_that_diverges_without_a_jump_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Retraining(1.0, 2.0, 1.5, 0.5, 0.5, math.nan, POINT)
    monkeypatch.setattr("toposcope_experiments.jump_and_retrain.probe.jump_and_retrain", lambda *_: [nothing, nothing])
    found = measured(JumpAndRetrainProbe(jumps=2), as_loss(bowl, POINT))
    assert found.statistics == {"jumped_loss": 2.0, "jumped_loss.noise": 0.0}
    assert found.flag == "no estimate: the descent diverges; take a smaller rate"


def test_what_probes_cost_grows_with_the_model_and_the_text() -> None:
    small, large = {"layer": (10, 10)}, {"layer": (1000, 1000)}
    for probe in (DegeneracyProbe(), JumpAndRetrainProbe()):
        assert probe.expected_seconds(small) < probe.expected_seconds(large)
        assert probe.expected_bytes(small) < probe.expected_bytes(large)
    assert DegeneracyProbe().expected_seconds(large) < DegeneracyProbe(sequences=80).expected_seconds(large)


OPTIONS = "sequences=2,length=32"
DEGENERACY = f"degeneracy:{OPTIONS},chains=2,draws=24,localisation=1000"
JUMP = f"jump_and_retrain:{OPTIONS},steps=3,jumps=2"


def found_by_command(folder: Path, tmp_path: Path) -> pl.DataFrame:
    text = tmp_path / "text.txt"
    text.write_text(some_lines(4))
    out = tmp_path / "found.csv"
    words: list[Any] = ["measure", folder, "--probe", DEGENERACY, "--probe", JUMP, "--text", text, "--workers", "1"]
    done = called(*words, "--out", out)
    assert done.code == 0, done.err
    return pl.read_csv(out)


def check(frame: pl.DataFrame) -> None:
    assert set(frame["layer"]) == {NETWORK}
    rows = frame.filter(probe="degeneracy")
    values = dict(rows.select("statistic", "value").iter_rows())
    assert {"chain@0", "chain@1", "convergence@r_hat", "convergence@acceptance"} <= values.keys()
    assert 0.2 < values["convergence@acceptance"] <= 1
    flags = set(rows["flag"].fill_null(""))
    (flag,) = flags
    assert ("learning_coefficient" in values) != flag.startswith("no estimate: ")
    assert flag.startswith(("no estimate: ", "no minimum of these samples: ")) or flag == ""
    kinds = dict(frame.select("statistic", "kind").unique().iter_rows())
    assert (kinds["chain@0"], kinds["convergence@r_hat"]) == ("spectrum", "control")
    assert (kinds["retrained_loss"], kinds["separation"]) == ("loss", "spectrum")
    returned = dict(frame.filter(probe="jump_and_retrain").select("statistic", "value").iter_rows())
    assert 0.5 < returned["separation"] < 1.5
    assert returned["retrained_loss"] < returned["jumped_loss"]


@pytest.mark.slow
def test_a_checkpoint_of_the_family(tmp_path: Path) -> None:
    save(family_model(dtype=torch.float32), tmp_path / "checkpoints")
    check(found_by_command(tmp_path / "checkpoints", tmp_path))


def test_what_the_command_says_of_probes_without_a_table(tmp_path: Path) -> None:
    save(family_model(dtype=torch.float32), tmp_path / "checkpoints")
    (tmp_path / "text.txt").write_text(some_lines(12))
    command = ("measure", tmp_path / "checkpoints", "--text", tmp_path / "text.txt", "--workers", "1", "--probe")
    done = called(*command, "jump_and_retrain:sequences=2,length=16,steps=3")
    assert done.code == 0, done.err
    assert "separation.noise" in "".join(done.out.split())
    assert "note: jump_and_retrain: flagged at 1 of 1 checkpoints" in done.err
    assert "no estimate: the loss did not rise in 1 of 3 jumps; take a longer jump" in done.err
    out = tmp_path / "table.csv"
    done = called(*command, "jump_and_retrain:sequences=2,length=16,steps=3,rate=1e12", "--out", out)
    assert done.code == 0, done.err
    assert done.out.startswith(f"2 rows in {out}\n")
    assert "note: jump_and_retrain: flagged at 1 of 1 checkpoints; checkpoints step 10: no estimate:" in done.err


@pytest.mark.slow
def test_a_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "checkpoint-10"
    saved(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    check(found_by_command(folder, tmp_path))
