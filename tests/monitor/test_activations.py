"""Hidden states and dead units on a fixed batch, measured without a trace."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from toposcope.errors import ToposcopeError
from toposcope.family.model import GPT
from toposcope.family.run import find_size
from toposcope.monitor.activations import FixedBatch, check_statistics, kurtosis, moved, unit_shares
from toposcope.monitor.monitor import Monitor
from toposcope.report.writing import write_report
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
    assert all({"dead_units", "activation_kurtosis", "attention_entropy"} <= set(s) for s in found.statistics.values())


class Stateful(nn.Module):
    """A block that keeps accounts of its calls in every way that a model can."""

    tokens: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout, self.norm = nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)
        self.register_buffer("tokens", torch.zeros(8))
        self.register_buffer("calls", torch.zeros(()))
        self.cache, self.losses, self.n, self.last = torch.zeros(4, 8), [torch.zeros(())], {"calls": 0}, 0.5

    def forward(self, x: Tensor) -> Tensor:
        self.tokens[2:] += x.sum(dim=0)[2:]
        self.calls = self.calls + 1
        self.cache.copy_(x)
        self.losses.append(x.square().mean())
        self.losses[0] = x.mean()
        self.n["calls"] += 1
        self.last, self.new = x.detach().mean().item(), True
        out: Tensor = self.norm(self.dropout(self.linear(x)))
        return out


def everything(model: nn.Module) -> list[Any]:
    """Modes, attributes and values of all modules, as text."""
    return [{name: repr(value) for name, value in vars(module).items()} for module in model.modules()]


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(*(Stateful() for _ in range(3)))
    model[1].eval()
    model(torch.randn(4, 8))
    before, random = everything(model), torch.get_rng_state()
    buffers = [id(buffer) for buffer in model.buffers()]
    FixedBatch(model, torch.ones(4, 8)).run()
    assert everything(model) == before
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_cannot_be_watched_is_measured_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no rule for this mode")

    monkeypatch.setattr("toposcope.monitor.forward_pass.ForwardPass.operate", fail)
    model = small_gpt()
    batch = FixedBatch(model, batch_for(model))
    found = [batch.run() for _ in range(2)][1]
    assert set(found.states) == set(found.statistics)
    assert all("attention_entropy" not in statistics for statistics in found.statistics.values())
    assert capsys.readouterr().err.count("cannot be watched (no rule for this mode)") == 1


def test_statistics_are_chosen(tmp_path: Path) -> None:
    model = small_gpt()
    found = FixedBatch(model, batch_for(model), check_statistics("key_norm")).run()
    assert not found.states
    assert all(set(statistics) == {"key_norm"} for statistics in found.statistics.values())
    with pytest.raises(ToposcopeError, match=r"activations: 'attention_logits': did you mean 'attention_logit_max'\?"):
        Monitor(model, tmp_path / "run", batch=batch_for(model), activations=["attention_logits"])
    with pytest.raises(ToposcopeError, match="give a small batch"):
        Monitor(model, tmp_path / "run", activations="key_norm")


def test_a_batch_follows_the_model() -> None:
    batch = moved({"ids": torch.ones(2), "more": (torch.ones(1), None, "text")}, torch.device("meta"))
    assert batch["ids"].is_meta
    assert batch["more"][0].is_meta
    assert batch["more"][1:] == (None, "text")


def test_kurtosis() -> None:
    values = np.random.default_rng(0).normal(size=(500, 200)).astype(np.float32)
    assert kurtosis(3 + values)["activation_kurtosis"] == pytest.approx(3, abs=0.05)
    values[:, 0] *= 100
    assert kurtosis(values)["activation_kurtosis"] > 100
    assert kurtosis(0 * values) == kurtosis(np.nan * values) == {}


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
    largest = rows.filter(pl.col("statistic").str.starts_with("attention_logit_max"), pl.col("step") == 10)
    of_heads = largest.filter(pl.col("statistic").str.contains("@head."), pl.col("layer") == "hidden.01")
    assert len(of_heads) == model.size.heads
    assert set(largest.filter(pl.col("layer") == "network")["statistic"]) == {"attention_logit_max"}
    by_layer = dict(largest.filter(pl.col("statistic") == "attention_logit_max").select("layer", "value").iter_rows())
    assert by_layer.pop("network") == max(by_layer.values())
    assert of_heads["value"].max() == by_layer["hidden.01"]
    page, _ = write_report(Study.load(tmp_path / "run"))
    content = page.read_text(encoding="utf-8")
    assert "activations attention_logit_max" in content
    assert "@head" not in content


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_probes")
def test_layers_are_chosen(tmp_path: Path) -> None:
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    wanted = ["attn.qkv", "layers.0.mlp.*"]
    options: Any = {"batch": batch_for(model), "activations": "attention_entropy", "layers": wanted}
    with Monitor(model, tmp_path / "run", every=1, quiet=True, clock=lambda: 0.0, **options) as monitor:
        monitor.attach(optimizer)
        model(batch_for(model)).square().mean().backward()
        optimizer.step()
    rows = Study.load(tmp_path / "run").frame()
    layers = [x for x in dict(model.named_parameters()) if "qkv.weight" in x or re.search(r"0\.mlp.*weight", x)]
    assert set(rows.filter(pl.col("probe") == "rips")["layer"]) == {*layers, "network"}
    assert set(rows.filter(pl.col("probe") == "training")["layer"]) == {*layers, "network"}
    plain = rows.filter(~pl.col("statistic").str.contains("@"), pl.col("probe") == "activations")
    assert set(plain["statistic"]) == {"attention_entropy"}


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [("atn.qkv", "did you mean 'attn.qkv'"), (["mlp", "layers.9.mlp.fc1.weight"], r"layers\.0\.mlp\.fc1\.weight")],
)
def test_layers_that_the_model_lacks(wanted: Any, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError, match=hint):
        Monitor(small_gpt(), tmp_path / "run", layers=wanted)
