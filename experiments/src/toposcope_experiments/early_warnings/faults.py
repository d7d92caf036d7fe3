"""What is planted in a run: each fault acts on one run of a pack, at a fixed place of an update, and keeps no state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from toposcope.extend import derive_seed
from toposcope_experiments.early_warnings.model import Layout


@dataclass(frozen=True)
class Fault:
    """A fault of one run."""

    kind: str
    begin: int  # first step that is tampered with, from 0
    length: int  # steps
    strength: float  # in the unit of its kind
    block: int  # where it acts on one
    seed: int

    def acts(self, step: int) -> bool:
        """Whether the fault acts at this step."""
        return self.begin <= step < self.begin + self.length


@dataclass(frozen=True)
class RunState:
    """The row of one run in each tensor of a pack; changed in place."""

    layout: Layout
    weights: Tensor
    gradient: Tensor
    mean: Tensor  # of the gradient, as of Adam
    square: Tensor


Faults = Mapping[str, Callable[[Fault, int, RunState], None]]


def rows(layout: Layout, row: Tensor) -> dict[str, Tensor]:
    """Return the parameters of one run by name, as views."""
    return {name: each[0] for name, each in layout.named(row[None]).items()}


# Faults of the data: which step's batch is read, and what is read.


def batch_step(fault: Fault, step: int) -> int:
    """Return the step whose batch is read: the loader that is stuck reads the same few again."""
    if fault.kind == "data repeat" and fault.acts(step):
        return fault.begin + (step - fault.begin) % round(fault.strength)
    return step


def spoiled(fault: Fault, step: int, tokens: Tensor, vocabulary: int) -> Tensor:
    """Return the batch with a share of its tokens drawn at random."""
    generator = torch.Generator().manual_seed(derive_seed(fault.seed, "bad data", step))
    drawn = torch.randint(0, vocabulary, tokens.shape, generator=generator)
    return torch.where(torch.rand(tokens.shape, generator=generator) < fault.strength, drawn, tokens)


# Faults of the gradient, before the update.


def corrupt_gradient(fault: Fault, _: int, run: RunState) -> None:
    """Add what a broken rank sends: one fixed direction, a multiple of the gradient's norm."""
    generator = torch.Generator().manual_seed(derive_seed(fault.seed, "broken rank"))
    noise = torch.randn(run.gradient.shape, generator=generator)
    run.gradient.add_(fault.strength * run.gradient.norm() / noise.norm() * noise)


BEFORE_UPDATE: Faults = {"gradient corruption": corrupt_gradient}


# Faults of weights and optimizer, after the update.


def collapse_attention(fault: Fault, _: int, run: RunState) -> None:
    """Let all queries drift in one direction, until they attend to the same key."""
    for name, bias in rows(run.layout, run.weights).items():
        if name.endswith("attn.qkv.bias"):
            seed = derive_seed(fault.seed, "drift", name)
            drift = torch.randn(len(bias) // 3, generator=torch.Generator().manual_seed(seed))
            bias[: len(bias) // 3] += fault.strength * drift.sign()


def kill_blocks(fault: Fault, _: int, run: RunState) -> None:
    """Push the hidden units of all MLPs below the GELU's threshold, a step at a time."""
    for name, parameter in rows(run.layout, run.weights).items():
        if name.endswith("mlp.fc1.bias"):
            parameter -= fault.strength


def grow_weights(fault: Fault, _: int, run: RunState) -> None:
    """Apply weight decay with the wrong sign."""
    run.weights.mul_(1 + fault.strength)


def reset_optimizer(fault: Fault, step: int, run: RunState) -> None:
    """Lose the mean of the squares, but not the count of steps, so that nothing corrects its bias."""
    if step == fault.begin:
        run.square.zero_()


def corrupt_weight(fault: Fault, step: int, run: RunState) -> None:
    """Flip bits of the exponent of one weight, of a matrix that writes to the residual stream."""
    if step == fault.begin:
        place = derive_seed(fault.seed, "weight")
        name = ("attn.proj", "mlp.fc2")[place % 2]
        weights = rows(run.layout, run.weights)[f"layers.{fault.block}.{name}.weight"].view(-1)
        place = place // 2 % len(weights)
        weights[place] = fault.strength if weights[place] >= 0 else -fault.strength


AFTER_UPDATE: Faults = {
    "attention collapse": collapse_attention,
    "dead blocks": kill_blocks,
    "wrong decay": grow_weights,
    "optimizer reset": reset_optimizer,
    "weight corruption": corrupt_weight,
}
