"""Tensors that are wrong from some step on, and real trainings in which nothing is."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from sick_series import faults, seen
from torch import Tensor, nn
from trained_mlp import EVERY, STEPS, Series, plain, trained

from toposcope.integrity import diagnose

MATRIX, BIAS, NORM = "3.weight", "3.bias", "4.weight"
BEGIN = STEPS // 2

CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sign": (lambda w: -w, "opposite sign"),
    "rows": (
        lambda w: w[torch.randperm(len(w), generator=torch.Generator().manual_seed(0))],
        "rows are in another order",
    ),
    "columns": (
        lambda w: w[:, torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(0))],
        "columns are in another order",
    ),
    "transposed": (lambda w: w.T.contiguous(), "transposed"),
    "fresh": (lambda w: w.std() * torch.randn(w.shape, generator=torch.Generator().manual_seed(0)), "other values"),
}


def changed(series: Series, name: str, change: Callable[[Tensor], Tensor], steps: range) -> Series:
    return {s: w | {name: change(w[name]) if s in steps else w[name]} for s, w in series.items()}


def _decayed(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / STEPS)


@cache
def decaying(forked: int = 0) -> Series:
    return trained(_decayed, forked=forked)


def told(series: Series) -> list[tuple[str, tuple[int, ...], str]]:
    return [(finding.check, finding.steps, finding.layer) for finding in faults(seen(series))]


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("begin", [BEGIN, STEPS - 2 * EVERY])
def test_a_matrix_replaced_for_good(kind: str, begin: int) -> None:
    change, words = CHANGES[kind]
    (finding,) = faults(seen(changed(plain(), MATRIX, change, range(begin, STEPS + 1))))
    assert (finding.check, finding.steps, finding.layer) == ("break", (begin,), MATRIX)
    assert words in finding.message
    assert "fetch or save it again" in finding.message


@pytest.mark.parametrize("kind", CHANGES)
def test_a_matrix_replaced_at_the_last_step(kind: str) -> None:
    series = changed(plain(), MATRIX, CHANGES[kind][0], range(STEPS, STEPS + 1))
    assert told(series) == [("off path", (STEPS,), MATRIX)]


def test_a_matrix_that_soon_loses_its_first_values() -> None:
    """Small matrices do at high learning rates: half of them in one interval, all in the next, then little."""
    series = dict(plain())
    steps = list(series)
    later = series[steps[2]][MATRIX]
    generator = torch.Generator().manual_seed(0)
    first, other = (later.std() * torch.randn(later.shape, generator=generator) for _ in range(2))
    for step, value in ((steps[0], first), (steps[1], 0.5 * first + 0.87 * other)):
        series[step] = series[step] | {MATRIX: value}
    assert [finding for finding in told(series) if finding[2] == MATRIX] == []


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_matrix_scaled_a_little_for_good(factor: float) -> None:
    begin = STEPS - 3 * EVERY
    (finding,) = faults(seen(changed(decaying(), MATRIX, lambda w: factor * w, range(begin, STEPS + 1))))
    assert (finding.check, finding.steps, finding.layer) == ("break", (begin,), MATRIX)
    assert f"{factor:.2g}" in finding.message or f"{factor - 0.001:.3g}" in finding.message


@pytest.mark.slow
def test_another_branch_of_the_run() -> None:
    begin = STEPS - 5 * EVERY
    main, fork = decaying(), decaying(forked=200)
    (finding,) = faults(seen({s: fork[s] if s >= begin else w for s, w in main.items()}))
    assert (finding.check, finding.steps, finding.layer) == ("break", (begin,), "")
    assert "another branch" in finding.message


@pytest.mark.parametrize("name", [BIAS, NORM])
@pytest.mark.parametrize("steps", [range(BEGIN, BEGIN + 1), range(BEGIN, STEPS + 1), range(STEPS, STEPS + 1)])
def test_a_stale_vector(name: str, steps: range) -> None:
    old = plain()[BEGIN - 5 * EVERY][name]
    found = told(changed(plain(), name, lambda _: old, steps))
    assert found == [("still", tuple(s for s in plain() if s in steps), name)]


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_a_first_checkpoint_of_fewer_digits(narrow: torch.dtype) -> None:
    series = dict(plain())
    series[0] = {name: tensor.to(narrow).float() for name, tensor in series[0].items()}
    assert told(series) == [("rounded", (0,), "")] or [c for c, s, _ in told(series) if s == (0,)] == ["rounded"]


def test_a_run_in_half_precision_is_not_rounded() -> None:
    """Neither stored as it was trained, nor in single precision."""
    for wide in (torch.bfloat16, torch.float32):
        series = {s: {n: t.to(torch.bfloat16).to(wide) for n, t in w.items()} for s, w in plain().items()}
        assert told(series) == []


def _kicked(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (50 if BEGIN < step <= BEGIN + 10 else 1)


def _reset(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if step == BEGIN:
        optimizer.state.clear()


def _frozen(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if step > BEGIN and name.startswith(("0.", "1.")):
            weight.grad = None


def _thawed(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if step <= BEGIN and name.startswith(("0.", "1.")):
            weight.grad = None


def _restarted(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step % 200 / 200)


def _wrong_data(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    for weight in model.parameters():
        if BEGIN < step <= BEGIN + 5 and weight.grad is not None:
            weight.grad.neg_()


@pytest.mark.slow
@pytest.mark.parametrize("event", [_kicked, _reset, _frozen, _thawed, _restarted, _wrong_data])
@pytest.mark.parametrize("seed", range(2))
def test_events_of_a_training_are_no_fault(event: Callable[..., None], seed: int) -> None:
    assert told(trained(event, seed=seed)) == []


def test_frozen_layers_are_a_note() -> None:
    found = [finding for finding in diagnose(seen(trained(_frozen))) if finding.check == "frozen"]
    assert [(finding.severity, finding.steps[0]) for finding in found] == [("note", BEGIN)]


def test_one_matrix_of_a_layer_alone_does_not_freeze() -> None:
    old = plain()[BEGIN][MATRIX]
    found = told(changed(plain(), MATRIX, lambda _: old, range(BEGIN, STEPS + 1)))
    assert [(check, layer) for check, _, layer in found] == [("still", MATRIX)]
