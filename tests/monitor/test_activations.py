"""Hidden states and dead units on a fixed batch, measured without a trace."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from toposcope.errors import ToposcopeError
from toposcope.family.model import GPT
from toposcope.family.run import find_size
from toposcope.monitor.activations import FixedBatch, unit_shares
from toposcope.monitor.monitor import Monitor
from toposcope.study import Study


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(find_size("tiny-3k"))


def batch_for(model: GPT) -> torch.Tensor:
    return torch.randint(0, model.size.vocabulary, (2, 32), generator=torch.Generator().manual_seed(1))


def test_outputs_of_all_blocks() -> None:
    model = small_gpt()
    found = FixedBatch(model, batch_for(model)).run()
    assert list(found.states) == [f"hidden.{k:02d}" for k in range(1, model.size.layers + 1)]
    assert {points.shape for points in found.states.values()} == {(64, model.size.hidden)}
    assert set(found.units) == set(found.states)


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)) for _ in range(3)))
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    FixedBatch(model, torch.ones(4, 8)).run()
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_dead_and_saturated_units() -> None:
    values = np.random.default_rng(0).normal(size=(200, 10)).astype(np.float32)
    assert unit_shares(values) == {"dead_units": 0.0, "saturated_units": 0.0}
    values[:, :3] = 0
    values[:, 3] = -1.5  # flat, if not at zero
    assert unit_shares(values)["dead_units"] == pytest.approx(0.4)
    tanh = np.tanh(values * np.array([1] * 8 + [1000] * 2)).astype(np.float32)
    assert unit_shares(tanh)["saturated_units"] == pytest.approx(0.2)
    values[0, 0] = np.nan
    assert unit_shares(values) == {}


def test_a_model_without_blocks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ToposcopeError, match="no ModuleList or Sequential of equal blocks"):
        FixedBatch(nn.Linear(3, 3), torch.ones(1, 3))
    model = nn.Linear(3, 3)
    monitor = Monitor(model, tmp_path / "run", batch=torch.ones(1, 3), quiet=True)
    monitor.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    monitor.close()
    assert "batch: ignored" in capsys.readouterr().err
    assert len(Study.load(tmp_path / "run").frame())


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_a_batch_that_does_not_fit_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_gpt()
    monitor = Monitor(model, tmp_path / "run", batch=torch.ones(1, 3), quiet=True)
    monitor.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    monitor.close()
    assert capsys.readouterr().err.count("the model fails on it") == 1
    assert set(Study.load(tmp_path / "run").frame()["probe"]) >= {"training", "rips"}


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_they_are_in_the_study(tmp_path: Path) -> None:
    model = small_gpt()
    tokens = batch_for(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with Monitor(model, tmp_path / "run", every=5, batch=tokens, quiet=True, clock=lambda: 0.0) as monitor:
        monitor.attach(optimizer)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(tokens).square().mean()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss)
    rows = Study.load(tmp_path / "run").frame().filter(probe="activations")
    assert {0, 10} <= set(rows["step"])
    assert {"rankme", "H1.count", "H0.total", "dead_units", "saturated_units"} <= set(rows["statistic"])
    assert "network" in set(rows["layer"])
    assert set(rows.filter(pl.col("statistic") == "dead_units")["kind"]) == {"control"}
