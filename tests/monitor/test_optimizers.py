"""The optimizer inside those that frameworks wrap around it."""

import pytest
import torch

from toposcope.monitor.adapters import innermost


def test_a_plain_optimizer_is_itself() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert innermost(optimizer) is optimizer


def test_that_of_accelerate_steps_once_an_update() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    weight = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(weight.parameters())
    model, optimizer = accelerator.prepare(weight, inner)
    assert innermost(optimizer) is inner
    steps: list[int] = []
    batch = -1
    innermost(optimizer).register_step_post_hook(lambda *_: steps.append(batch))
    while batch < 8:
        batch += 1
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
    assert steps == [2, 5, 8]


def test_that_of_lightning() -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch.core.optimizer import LightningOptimizer

    inner = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert innermost(LightningOptimizer(inner)) is inner
