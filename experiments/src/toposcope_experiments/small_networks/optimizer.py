"""AdamW of many runs at once, each with a weight decay of its own."""

import torch
from torch import Tensor

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
