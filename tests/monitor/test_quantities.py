"""Norms, updates and counts of a step against plain arithmetic in float64, and of sharded models against whole ones."""

import math
import random
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from torch import nn

from toposcope.monitor.norms import BLOCK_SIZE, distances, has_nonzero, nonfinite, norms
from toposcope.monitor.parameters import layout, watched
from toposcope.monitor.quantities import Quantities
from toposcope.probes.feature import NETWORK

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def quantities_of(model: nn.Module) -> Quantities:
    return Quantities(watched(model), layout(model))


# Norms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (BLOCK_SIZE,), (BLOCK_SIZE + 1,), (37, 1000), (3_000_001,), (0, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_norms_are_right_to_a_millionth(dtype: torch.dtype, shape: tuple[int, ...], scale: float) -> None:
    for tensor in (torch.randn(shape) * scale, torch.full(shape, 0.37 * scale)):
        stored = tensor.to(dtype)
        expected = float(np.linalg.norm(stored.double().numpy().ravel()))
        assert float(norms([stored])[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e25, 1e38])
def test_norms_of_extreme_numbers(scale: float) -> None:
    tensor = torch.tensor([3.0, 4.0] * BLOCK_SIZE) * scale / 4
    assert float(norms([tensor])[0]) == pytest.approx(float(tensor.double().norm()), rel=1e-6)


def test_norm_of_a_matrix_that_is_not_contiguous() -> None:
    matrix = torch.randn(300, 200)
    assert float(norms([matrix.T])[0]) == pytest.approx(float(matrix.double().norm()), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_updates_are_not_rounded(dtype: torch.dtype) -> None:
    before = torch.randn(200, 300).to(dtype)
    after = (before.double() * (1 + 0.02 * torch.randn(200, 300).double())).to(dtype)
    expected = float((after.double() - before.double()).norm())
    assert float(distances([before.clone()], [after])[0]) == pytest.approx(expected, rel=1e-5)


@examples(100)
@given(st.lists(st.sampled_from([0.0, -0.0, 1e-45, 1e-30, 1.0, math.inf, math.nan]), min_size=12, max_size=12))
def test_counts(numbers: list[float]) -> None:
    matrix = torch.tensor(numbers).reshape(3, 4)
    assert int(nonfinite(matrix)) == sum(not math.isfinite(x) for x in numbers)
    for units in (0, 1):
        assert has_nonzero(matrix, units).tolist() == (matrix != 0).any(dim=1 - units).tolist()


# A step


def trained_step(model: nn.Module, x: torch.Tensor, lr: float = 0.1) -> dict[str, dict[str, float]]:
    """The quantities of one step, in float64 and without taking turns."""
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().mean().backward()
    gradients = {name: p.grad.double().clone() for name, p in model.named_parameters() if p.grad is not None}
    torch.optim.SGD(model.parameters(), lr=lr).step()
    rows = {}
    for name, p in model.named_parameters():
        after = p.detach().double()
        rows[name] = {
            "weight_norm": float(after.norm()),
            "nonfinite": 0.0,
            "update_norm": float((after - before[name]).norm()),
            "update_ratio": float((after - before[name]).norm() / before[name].norm()),
        }
        if name in gradients:
            rows[name] |= {"gradient_norm": float(gradients[name].norm()), "nonfinite_gradients": 0.0}
            if p.ndim == 2:
                rows[name]["dead_units"] = float((gradients[name] == 0).all(dim=1).double().mean())
    return rows


def test_quantities_of_steps_against_plain_arithmetic() -> None:
    model, reference = ranks.model_of(), ranks.model_of()
    rows = ranks.six_steps(model, ranks.data())
    seen = set()
    for row in rows:
        expected = trained_step(reference, ranks.data())
        for name, values in expected.items():
            measured = {key: value for key, value in values.items() if key in row[name]}
            ranks.check_close({name: row[name]}, {name: measured})
            seen |= {(name, key) for key in measured}
        for quantity in ("weight_norm", "gradient_norm"):
            total = math.hypot(*(values[quantity] for values in expected.values()))
            assert row[NETWORK][quantity] == pytest.approx(total, rel=1e-6)
    assert {(name, "update_ratio") for name in expected} <= seen
    assert rows[0]["0.up.weight"]["dead_units"] == pytest.approx(1 / 10)
    assert rows[0]["0.down.weight"]["dead_units"] == 0


def test_updates_are_copied_a_quarter_of_the_model_at_a_time() -> None:
    model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(12)))
    quantities = quantities_of(model)
    total = sum(p.numel() for p in model.parameters())
    seen: set[str] = set()
    for _ in range(5):
        quantities.before()
        rows = quantities.after(gradients=False).rows()
        measured = {name for name, row in rows.items() if "update_norm" in row}
        assert sum(model.get_parameter(name).numel() for name in measured) <= total / 4
        seen |= measured
    assert seen == {name for name, _ in model.named_parameters()}


def test_units_of_a_transposed_matrix_are_its_columns() -> None:
    pytest.importorskip("transformers")
    from tiny_models import made

    model = made("gpt2")
    model(torch.arange(12)[None]).logits.square().mean().backward()
    weight = model.transformer.h[0].mlp.c_fc.weight
    weight.grad[:, :7] = 0
    rows = quantities_of(model).after().rows()
    assert rows["transformer.h.0.mlp.c_fc.weight"]["dead_units"] == pytest.approx(7 / weight.shape[1])


def test_parameters_without_a_gradient() -> None:
    model: Any = ranks.model_of()
    model[0].requires_grad_(False)
    rows = ranks.six_steps(model, ranks.data())
    assert all("gradient_norm" not in row["0.up.weight"] for row in rows)
    assert all("update_norm" not in row["0.up.weight"] for row in rows)
    assert "gradient_norm" in rows[0]["1.up.weight"]
    assert "gradient_norm" not in quantities_of(model).after(gradients=False).rows()[NETWORK]


def test_numbers_that_are_not_finite_are_counted() -> None:
    model: Any = ranks.model_of()
    model(ranks.data()).sum().backward()
    with torch.no_grad():
        model[0].up.weight[0, :3] = math.nan
        model[1].down.weight.grad[2, 2] = -math.inf
    rows = quantities_of(model).after().rows()
    assert rows["0.up.weight"]["nonfinite"] == 3
    assert math.isnan(rows["0.up.weight"]["weight_norm"])
    assert rows["1.down.weight"]["nonfinite_gradients"] == 1
    assert rows["1.down.weight"]["gradient_norm"] == math.inf
    assert (rows[NETWORK]["nonfinite"], rows[NETWORK]["nonfinite_gradients"]) == (3, 1)


def test_nothing_depends_on_autocast_and_nothing_random_is_touched() -> None:
    model = ranks.model_of().bfloat16()
    model(ranks.data().bfloat16()).sum().backward()
    states = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002
    quantities = quantities_of(model)
    expected = quantities.after().rows()
    with torch.autocast("cpu", torch.bfloat16):
        quantities.before()
        found = quantities.after().rows()
    ranks.check_close({n: {q: found[n][q] for q in row} for n, row in expected.items()}, expected, 0)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == repr(np.random.get_state())  # noqa: NPY002
    assert states[2] == random.getstate()


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_scaled_loss_are_not_scaled(cls: Any, fused: bool) -> None:
    rows = []
    for scale in (1.0, 1024.0):
        model = ranks.model_of()
        optimizer = cls(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        quantities = quantities_of(model)
        optimizer.register_step_post_hook(lambda *_, q=quantities: rows.append(q.after().rows()))
        scaler.scale(model(ranks.data()).square().mean()).backward()
        scaler.step(optimizer)
    ranks.check_close(rows[1], rows[0])
