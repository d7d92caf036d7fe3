"""Training many runs as one; killed at any moment, it goes on from its last state and ends at the same numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from toposcope.extend import Progress, ToposcopeError, silent, write_bytes

EPSILON = 1e-8


class AdamW:
    """Decoupled weight decay (Loshchilov & Hutter 2019); without any it is Adam."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        learning_rate: float,
        weight_decay: Tensor,
        betas: tuple[float, float],
        warmup_steps: int = 0,
    ) -> None:
        self.parameters, self.learning_rate, self.weight_decay = parameters, learning_rate, weight_decay
        self.betas, self.warmup_steps = betas, warmup_steps
        self.mean = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and means by name; each of these tensors is changed in place."""
        parts = {"weight": self.parameters, "mean": self.mean, "square": self.square}
        return {f"{part}.{name}": value.detach() for part, values in parts.items() for name, value in values.items()}

    @torch.no_grad()
    def step(self, number: int) -> None:
        """Make one update from the gradients, which are then cleared; `number` counts from 1."""
        rate = self.learning_rate * (min(1.0, number / self.warmup_steps) if self.warmup_steps else 1.0)
        corrections = [1 - beta**number for beta in self.betas]
        for name, parameter in self.parameters.items():
            gradient, mean, square = parameter.grad, self.mean[name], self.square[name]
            assert gradient is not None
            mean.lerp_(gradient, 1 - self.betas[0])
            square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            parameter.mul_(1 - rate * self.weight_decay.view(-1, *[1] * (parameter.dim() - 1)))
            size = (square / corrections[1]).sqrt_().add_(EPSILON)
            parameter.addcdiv_(mean, size, value=-rate / corrections[0])
            parameter.grad = None


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters: dict[str, Tensor], learning_rate: float, momentum: float) -> None:
        self.parameters, self.learning_rate, self.momentum = parameters, learning_rate, momentum
        self.velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and velocities by name; each of these tensors is changed in place."""
        parts = {"weight": self.parameters, "velocity": self.velocity}
        return {f"{part}.{name}": value.detach() for part, values in parts.items() for name, value in values.items()}

    @torch.no_grad()
    def step(self, _: int) -> None:
        """Make one update from the gradients, which are then cleared."""
        for name, parameter in self.parameters.items():
            gradient, velocity = parameter.grad, self.velocity[name]
            assert gradient is not None
            velocity.mul_(self.momentum).add_(gradient)
            parameter.add_(velocity, alpha=-self.learning_rate)
            parameter.grad = None


SAVE_EVERY = 5  # measurements between two states on disk


class Trainer(ABC):
    """Runs that are trained together and measured at some of their steps."""

    def __init__(self, name: str, folder: Path, steps: Sequence[int], declaration: str) -> None:
        self.name, self.path, self.steps, self.declaration = name, folder / f"{name}.safetensors", steps, declaration
        self.n_measured = 0

    @abstractmethod
    def changing(self) -> Mapping[str, Tensor]:
        """Return all that changes in training, by name; each of these tensors is changed in place."""

    @abstractmethod
    def measured(self) -> Mapping[str, Tensor]:
        """Return what was measured, shape (measurements, ...), by name; filled in place."""

    @abstractmethod
    def update(self, step: int) -> None:
        """Make one update; `step` counts from 1."""

    @abstractmethod
    def measure(self, place: int) -> None:
        """Measure the runs as they are, at ``steps[place]``."""

    def train(self, progress: Progress = silent) -> None:
        """Train from the last state, if there is one, to the end."""
        self._resume()
        progress(self.name, self.steps[max(self.n_measured - 1, 0)], self.steps[-1])
        for place in range(self.n_measured, len(self.steps)):
            for step in range(self.steps[place - 1] + 1 if place else 1, self.steps[place] + 1):
                self.update(step)
            self.measure(place)
            self.n_measured = place + 1
            if self.n_measured % SAVE_EVERY == 0 or self.n_measured == len(self.steps):
                self._save()
            progress(self.name, self.steps[place], self.steps[-1])

    def _save(self) -> None:
        state = {name: tensor[: self.n_measured] for name, tensor in self.measured().items()}
        if self.n_measured < len(self.steps):  # what has ended is only read
            state |= self.changing()
        write_bytes(self.path, safetensors.torch.save(state, metadata={"declaration": self.declaration}))

    def _resume(self) -> None:
        if not self.path.exists():
            return
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                declaration = (file.metadata() or {}).get("declaration")
            state = safetensors.torch.load_file(self.path)
        except (OSError, safetensors.SafetensorError) as error:
            raise ToposcopeError(f"{self.path}: cannot be read ({error}); remove it to train again") from error
        if declaration != self.declaration:
            raise ToposcopeError(f"{self.path}: belongs to another design; choose another folder, or remove it")
        for name, tensor in self.measured().items():
            self.n_measured = len(state[name])
            tensor[: self.n_measured] = state[name]
        if self.n_measured < len(self.steps):
            for name, tensor in self.changing().items():
                tensor.copy_(state[name])
