"""The probe degeneracy: closed forms, and folders on disk measured end to end."""

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
from toposcope_experiments.learning_coefficient.probe import DegeneracyProbe

CURVATURE = torch.tensor([0.1, 1.0, 3.0, 10.0] * 50, dtype=torch.float64)
POINT = 2 * torch.ones_like(CURVATURE)
"""Its root mean square is 2, the unit in which the probe measures the weights."""
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


def test_what_the_probe_costs_grows_with_the_model_and_the_text() -> None:
    small, large = {"layer": (10, 10)}, {"layer": (1000, 1000)}
    probe = DegeneracyProbe()
    assert probe.expected_seconds(small) < probe.expected_seconds(large)
    assert probe.expected_bytes(small) < probe.expected_bytes(large)
    assert probe.expected_seconds(large) < DegeneracyProbe(sequences=80).expected_seconds(large)


DEGENERACY = "degeneracy:sequences=2,length=32,chains=2,draws=24,localisation=1000"


def found_by_command(folder: Path, tmp_path: Path) -> pl.DataFrame:
    text = tmp_path / "text.txt"
    text.write_text(some_lines(4))
    out = tmp_path / "found.csv"
    words: list[Any] = ["measure", folder, "--probe", DEGENERACY, "--text", text, "--workers", "1"]
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


@pytest.mark.slow
def test_a_checkpoint_of_the_family(tmp_path: Path) -> None:
    save(family_model(dtype=torch.float32), tmp_path / "checkpoints")
    check(found_by_command(tmp_path / "checkpoints", tmp_path))


def test_what_the_command_says_of_probes_without_a_table(tmp_path: Path) -> None:
    save(family_model(dtype=torch.float32), tmp_path / "checkpoints")
    (tmp_path / "text.txt").write_text(some_lines(12))
    command = ("measure", tmp_path / "checkpoints", "--text", tmp_path / "text.txt", "--workers", "1", "--probe")
    done = called(*command, "degeneracy:sequences=2,length=16,chains=2,draws=4")
    assert done.code == 0, done.err
    assert "degeneracyconvergence@r_hat" in "".join(done.out.split())
    assert "note: degeneracy: flagged at 1 of 1 checkpoints" in done.err
    assert "no estimate: chains left for a lower loss" in done.err
    out = tmp_path / "table.csv"
    done = called(*command, "degeneracy:sequences=2,length=16,chains=2,draws=4", "--out", out)
    assert done.code == 0, done.err
    assert "note: degeneracy: flagged at 1 of 1 checkpoints; checkpoints step 10: no estimate:" in done.err


@pytest.mark.slow
def test_a_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "checkpoint-10"
    saved(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    check(found_by_command(folder, tmp_path))
