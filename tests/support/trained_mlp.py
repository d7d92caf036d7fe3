"""A small network that is really trained, with what may happen to a training."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

Series = dict[int, dict[str, Tensor]]
STEPS, EVERY = 600, 30


def _nothing(step: int, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    pass


def trained(before: Callable[[int, torch.optim.Optimizer, nn.Module], None] = _nothing, *, seed: int = 0) -> Series:
    """Weights by step of a network that learns to imitate a fixed one.

    Parameters
    ----------
    before : callable
        Called before each step.
    seed : int
    """
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 8)).requires_grad_(requires_grad=False)
    model = nn.Sequential(
        *(nn.Linear(24, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.ReLU()),
        *(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    series = {0: _copied(model)}
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 24, generator=generator)
        labels = teacher(3 * inputs).argmax(1)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        before(step, optimizer, model)
        optimizer.step()
        if step % EVERY == 0:
            series[step] = _copied(model)
    return series


@cache
def plain() -> Series:
    """A training without events."""
    return trained()


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
