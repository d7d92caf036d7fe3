"""Pushes on matrices: a gradient at an exact share, in the right direction, the same for one run as for several."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from toposcope.errors import ToposcopeError
from toposcope.homology import neural_persistence, rips
from toposcope_experiments.interventions.matrix_statistics import STATISTICS, along, permuted
from toposcope_experiments.interventions.push import TopologyPush

SHAPES = st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(2, 6))


def gaussian(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_numpy(name: str, W: np.ndarray) -> float:
    """The statistic from its definition, by other code."""
    norm = np.linalg.norm(W)
    distances = np.linalg.norm(W[:, None] - W[None], axis=-1)
    if name == "neural_persistence":
        return neural_persistence(W).mean
    if name in ("scale_free_h0", "scale_free_h1"):
        bars = rips(W, max_dimension=1)[int(name[-1])].pairs
        return float((bars[:, 1] - bars[:, 0])[np.isfinite(bars[:, 1])].sum() / norm)
    if name == "effective_rank":
        return float(np.linalg.svd(W, compute_uv=False).sum() / norm)
    if name == "pairwise_spread":
        return float(distances[np.triu_indices(len(W), 1)].mean() / norm)
    np.fill_diagonal(distances, np.inf)
    return float(distances.min(axis=1).mean() / norm)


@given(shape=SHAPES, seed=st.integers(0, 2**20), name=st.sampled_from(sorted(STATISTICS)))
def test_statistics_are_those_of_numpy_and_gradients_those_of_differences(
    shape: tuple[int, int, int], seed: int, name: str
) -> None:
    statistic = STATISTICS[name]
    W, direction = gaussian(shape, seed), gaussian(shape, seed + 1)
    leaf = W.clone().requires_grad_()
    found = statistic.value(leaf, statistic.pair(W))
    for value, matrix in zip(found.tolist(), W.numpy(), strict=True):
        assert value == pytest.approx(by_numpy(name, matrix), rel=1e-5, abs=1e-7)
    (slope,) = torch.autograd.grad(found.sum(), leaf)
    assert (slope * W).sum((1, 2)).abs().max() < 1e-9  # nothing is gained by scaling
    ahead, behind = (statistic.value(each, statistic.pair(W)) for each in (W + 1e-6 * direction, W - 1e-6 * direction))
    torch.testing.assert_close((slope * direction).sum((1, 2)), (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STATISTICS)
def test_matrices_without_shape_have_gradients_of_zero(name: str) -> None:
    for W in (torch.zeros((1, 4, 3)), torch.ones((1, 4, 3)), torch.full((1, 4, 3), torch.nan)):
        leaf = W.clone().requires_grad_()
        (slope,) = torch.autograd.grad(STATISTICS[name].value(leaf, STATISTICS[name].pair(W)).sum(), leaf)
        assert slope.isfinite().all() or W.isnan().any()


def test_the_twin_is_the_statistic_of_permuted_entries() -> None:
    W = gaussian((2, 6, 4))
    places = torch.stack([torch.randperm(24), torch.randperm(24)])
    statistic = STATISTICS["scale_free_h0"]
    twin = permuted(statistic, places)
    shuffled = torch.stack([w.flatten()[p].view(6, 4) for w, p in zip(W, places, strict=True)])
    leaf, other = W.clone().requires_grad_(), shuffled.clone().requires_grad_()
    value, expected = twin.value(leaf, twin.pair(W)), statistic.value(other, statistic.pair(shuffled))
    torch.testing.assert_close(value, expected)
    (slope,), (of_shuffled,) = torch.autograd.grad(value.sum(), leaf), torch.autograd.grad(expected.sum(), other)
    back = torch.zeros((2, 24)).double().scatter(1, places, of_shuffled.flatten(1))
    torch.testing.assert_close(slope, back.view_as(slope))


def test_a_random_direction_is_tangent() -> None:
    W, directions = gaussian((2, 5, 3)), gaussian((2, 5, 3), 1)
    leaf = W.clone().requires_grad_()
    (slope,) = torch.autograd.grad(along(directions).value(leaf, None).sum(), leaf)
    assert (slope * W).sum((1, 2)).abs().max() < 1e-12
    assert ((slope * directions).sum((1, 2)) > 0).all()


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Linear(6, 5, bias=False))
    model[4].weight = model[0].weight
    return model


def gradient_of(parameter: Any) -> Tensor:
    assert isinstance(parameter.grad, Tensor)
    return parameter.grad


def backward(model: nn.Sequential) -> list[Tensor]:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5).flip(0)).backward()  # type: ignore[no-untyped-call]
    return [gradient_of(model[i].weight).clone() for i in (1, 3)]


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("direction", [1, -1])
def test_the_push_has_its_share_and_direction(name: str, direction: int) -> None:
    model = network(0)
    push = TopologyPush(model, name, direction=direction, share=0.05)
    before = backward(model)
    others = [gradient_of(p).clone() for p in model.parameters() if p.ndim == 1 or p.shape == (5, 6)]
    found = push()
    added = [gradient_of(model[i].weight) - old for i, old in zip((1, 3), before, strict=True)]
    flat, loss = (torch.cat([each.flatten() for each in parts]) for parts in (added, before))
    assert flat.norm().item() == pytest.approx(0.05 * loss.norm().item(), rel=1e-4)
    assert found.norm.item() == pytest.approx(flat.norm().item(), rel=1e-4)
    assert found.loss_norm.item() == pytest.approx(loss.norm().item(), rel=1e-5)
    assert found.cosine.item() == pytest.approx(float(flat @ loss / flat.norm() / loss.norm()), abs=1e-4)
    with torch.no_grad():  # a small step of plain descent along the push alone
        for i, part in zip((1, 3), added, strict=True):
            model[i].weight -= 0.01 / flat.norm() * part
    push()
    table = push.table()
    assert direction * table["change"][1] > 0
    assert table.columns == ["step", "run", "value", "change", "norm", "loss_norm", "cosine"]
    kept = [gradient_of(p) for p in model.parameters() if p.ndim == 1 or p.shape == (5, 6)]
    assert all(torch.equal(old, new) for old, new in zip(others, kept, strict=True))  # embeddings and biases


@pytest.mark.parametrize("name", STATISTICS)
def test_several_runs_are_pushed_as_each_alone(name: str) -> None:
    def pushed(weights: Tensor, gradients: Tensor) -> Tensor:
        parameter = nn.Parameter(weights.clone())
        parameter.grad = gradients.clone()
        push = TopologyPush([parameter], name, refresh=STATISTICS[name].max_refresh)
        for _ in range(2):
            push()
        return gradient_of(parameter)

    W, g = gaussian((3, 9, 4)).float(), gaussian((3, 9, 4), 1).float()
    together = pushed(W, g)
    for i in range(3):
        torch.testing.assert_close(pushed(W[i], g[i]), together[i])
    broken = W.clone()
    broken[1] = torch.nan
    assert torch.equal(pushed(broken, g)[[0, 2]], together[[0, 2]])


def test_a_model_of_transformers_has_outputs_as_columns() -> None:
    class Conv1D(nn.Module):  # as transformers has it
        def __init__(self, weight: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)

    W, g = gaussian((3, 7)).float(), gaussian((3, 7), 1).float()
    column, row = Conv1D(W.clone()), nn.Linear(3, 7)
    row.weight.data = W.T.clone()
    column.weight.grad, row.weight.grad = g.clone(), g.T.clone()
    for model in (column, row):
        TopologyPush(model, share=0.3)()
    torch.testing.assert_close(gradient_of(column.weight), gradient_of(row.weight).T)
    assert not torch.equal(gradient_of(column.weight), g)


@pytest.mark.parametrize(
    ("name", "refresh", "warned"),
    [("scale_free_h0", 5, False), ("scale_free_h0", 6, True), ("scale_free_h1", 1, False), ("scale_free_h1", 2, True),
     ("neural_persistence", 20, False), ("neural_persistence", 21, True)],
)  # fmt: skip
def test_pairings_that_are_kept_too_long_warn(name: str, refresh: int, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TopologyPush(network(0), name, refresh=refresh)
    assert [f"refresh = {refresh}: a pairing of the" in str(each.message) for each in caught] == [True] * warned


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"statistic": "h0"}, "'h0' is not known; choose one of scale_free_h0"), ({"statistic": []}, "of type list"),
     ({"direction": 0}, "must be \\+1"), ({"share": -0.1}, "share is -0.1"), ({"share": "2%"}, "share is '2%'"),
     ({"refresh": 0}, "at least 1"), ({"refresh": 1.5}, "whole number"), ({"model": None}, "of type NoneType"),
     ({"model": list(network(0).parameters())}, r"matrix 2 is no matrix, but shape \(8,\)"),
     ({"model": network(0).state_dict()}, "matrix 0 is no matrix, but str"), ({"model": []}, "no weight matrix"),
     ({"model": nn.LayerNorm(3)}, "no weight matrix"),
     ({"model": weight_norm(nn.Linear(3, 2))}, "^weight is computed from other parameters"),
     ({"model": [nn.Linear(3, 2).weight, torch.ones(4, 3, 2)]}, "matrix 0 and matrix 1 are of 1 and 4 runs")],
)  # fmt: skip
def test_mistakes_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ToposcopeError, match=message):
        TopologyPush(**{"model": network(0), **wrong})


def test_a_kept_pairing_gives_no_value() -> None:
    model = network(0)
    push = TopologyPush(model, refresh=3)
    for _ in range(4):
        backward(model)
        push()
    assert push.table()["value"].is_null().to_list() == [False, True, True, False]
    assert push.table()["norm"].is_not_null().all()


def test_a_push_needs_matrices_with_gradients() -> None:
    push = TopologyPush(copy.deepcopy(network(0)))
    with pytest.raises(ToposcopeError, match=r"^1\.weight has no gradient; call this between backward and the step"):
        push()
    with pytest.raises(ToposcopeError, match="nothing was pushed yet"):
        push.table()


@pytest.mark.parametrize("name", STATISTICS)
def test_a_push_is_the_same_however_a_model_trains(name: str) -> None:
    """Wrapped, partly frozen, in mixed precision, and where updates are made without gradients."""

    def added(scale: float, frozen: bool, **precision: Any) -> Tensor:
        model = network(0)
        model[3].requires_grad_(not frozen)
        twice: Any = [model[1].weight] * 2
        push = TopologyPush(twice if frozen else nn.ModuleDict({"wrapped": model}), name, share=0.5)
        loss = torch.nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5).flip(0))
        (scale * loss).backward()  # type: ignore[no-untyped-call]
        before = gradient_of(model[1].weight).clone()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            push()
        found: Tensor = (gradient_of(model[1].weight) - before) / scale
        return found

    torch.testing.assert_close(added(2.0**16, frozen=False), added(1.0, frozen=False))
    alone = added(1.0, frozen=True)  # a matrix given twice is pushed once
    assert torch.cosine_similarity(alone.flatten(), added(1.0, frozen=False).flatten(), dim=0) > 0.999


@pytest.mark.slow
def test_the_callback_of_the_documentation_pushes_in_a_trainer(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    page = (Path(__file__).parents[1] / "docs" / "interventions.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(from transformers import TrainerCallback\n.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    rows = [{"input_ids": (torch.arange(8) + k) % 32, "labels": (torch.arange(8) + k) % 32} for k in range(32)]
    callback = names["Push"]()
    transformers.set_seed(0)
    transformers.Trainer(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        ),
        transformers.TrainingArguments(
            str(tmp_path), max_steps=8, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=0.01, use_cpu=True, bf16=True, report_to=[], disable_tqdm=True, save_strategy="no",
        ),
        train_dataset=rows,
        callbacks=[callback],
    ).train()  # fmt: skip
    table = callback.push.table()
    assert len(table) == 8  # once an update, not once a micro-batch
    assert table["value"].is_not_null().to_list() == [k % 5 == 0 for k in range(8)]
    assert (table["norm"] / table["loss_norm"]).to_list() == pytest.approx([0.02] * 8, rel=1e-4)
    assert sorted(callback.push.parameters) == [
        f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
