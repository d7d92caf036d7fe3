"""Real trainings of small models, with all that happens to trainings: for `benchmarks/doctor.py`."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from doctor_models import Convolutions, Recurrent, ShiftedNorm, Task, Transformer, draw_digits, draw_text, mlp

Weights = dict[str, Tensor]
Series = dict[int, Weights]
Schedule = Callable[[float], float]
"""From the share of the training that is done to the learning rate in units of its peak."""
KICK, KICK_STEPS = 50.0, 10
"""By how much, and for how many steps, a kick raises the learning rate."""


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update once."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(torch.sign(0.9 * momentum + 0.1 * weight.grad), alpha=-group["lr"])
                momentum.mul_(0.99).add_(weight.grad, alpha=0.01)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "lion": Lion,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def cosine(t: float) -> float:
    """Warm-up of 5 %, then a cosine to a tenth."""
    return min(1.0, 20 * t) * (0.1 + 0.45 * (1 + math.cos(math.pi * t)))


def to_zero(t: float) -> float:
    """Linear, to zero."""
    return 1 - t


def steady(t: float) -> float:
    """Return 1."""
    return 1.0


def stable_then_decay(t: float) -> float:
    """Warm-up, stable, decay over the last fifth."""
    return min(1.0, 20 * t, 5 * (1 - t) + 0.01)


def stairs(t: float) -> float:
    """Ten times lower after a half, and again after three quarters."""
    return 1.0 if t < 0.5 else 0.1 if t < 0.75 else 0.01


def restarts(t: float) -> float:
    """Four cosines to zero."""
    return 0.01 + 0.495 * (1 + math.cos(math.pi * (4 * t % 1)))


def resumed(t: float) -> float:
    """Finish after 60 %, then begin again with a warm-up."""
    return cosine(t / 0.6) if t < 0.6 else min(1.0, 20 * (t - 0.6)) * (1.01 - t) / 0.4


@dataclass(frozen=True)
class Kind:
    """One kind of training; events are named by the share of the steps after which they happen, 0 for never."""

    name: str
    task: Task
    optimizer: str
    learning_rate: float
    steps: int
    checkpoints: int
    logarithmic: bool = False
    schedule: Schedule = cosine
    weight_decay: float = 0.0
    batch: int = 32
    clip: float = 0.0
    reset: float = 0.0
    kick: float = 0.0
    shift: float = 0.0
    spike: float = 0.0
    larger_batch: float = 0.0
    freeze: float = 0.0
    thaw: float = 0.0
    frozen: tuple[str, ...] = ()
    average: float = 0.0
    dtype: torch.dtype = torch.float32

    @property
    def saved(self) -> list[int]:
        """Steps of the checkpoints."""
        if not self.logarithmic:
            return sorted({round(s) for s in np.linspace(0, self.steps, self.checkpoints)})
        return sorted({0, *(round(s) for s in np.geomspace(1, self.steps, self.checkpoints - 1))})

    def train(self, seed: int, forked: float = 0.0) -> Series:
        """Train; the data come in another order after the share `forked`."""
        torch.manual_seed(seed)
        model = self.task.build()
        optimizer = self._optimizer(model)
        averaged = copy.deepcopy(model) if self.average else model
        generator = torch.Generator().manual_seed(seed + 1)
        series: Series = {0: self._stored(averaged)}
        for step in range(1, self.steps + 1):
            done = step / self.steps
            if forked and step == round(forked * self.steps):
                generator.manual_seed(seed + 77)
            if self._now(self.reset, step):
                optimizer = self._optimizer(model)
            kicked = 0 < self.kick <= done < self.kick + KICK_STEPS / self.steps
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * self.schedule(done) * (KICK if kicked else 1)
            batch = self.batch * (8 if 0 < self.larger_batch <= done else 1)
            inputs, targets = self.task.draw(generator, batch, 0 < self.shift <= done)
            if self.spike and self.spike <= done < self.spike + 5 / self.steps:
                targets = targets[torch.randperm(len(targets), generator=generator)]
            optimizer.zero_grad()
            self.task.loss(model, (inputs, targets)).backward()  # type: ignore[no-untyped-call]
            still = (self.freeze and done >= self.freeze) or done < self.thaw
            for name, weight in model.named_parameters():
                if still and name.startswith(self.frozen):
                    weight.grad = None
            if self.clip:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()
            if self.average:
                with torch.no_grad():
                    for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - self.average)
            if step in self.saved:
                series[step] = self._stored(averaged)
        return series

    def _now(self, share: float, step: int) -> bool:
        return share > 0 and step == round(share * self.steps)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        options = {"weight_decay": self.weight_decay} if self.weight_decay else {}
        return OPTIMIZERS[self.optimizer](model.parameters(), lr=self.learning_rate, **options)

    def _stored(self, model: nn.Module) -> Weights:
        state = model.state_dict()
        return {n: t.detach().to(self.dtype).clone() for n, t in state.items() if t.is_floating_point()}


def _digits(build: Callable[[], nn.Module]) -> Task:
    return Task(build, draw_digits)


def _text(**options: object) -> Task:
    return Task(partial(Transformer, **options), draw_text)  # type: ignore[arg-type]


MLP, CNN, LSTM, GRU = (_digits(b) for b in (mlp, Convolutions, Recurrent, partial(Recurrent, nn.GRU)))
GPT = _text(tied=True)
LLAMA = _text(norm=nn.RMSNorm, bias=False)

KINDS = [
    Kind("MLP, Adam", MLP, "adam", 1e-3, 1500, 26),
    Kind("MLP, SGD, logarithmic grid", MLP, "sgd", 0.05, 1500, 20, logarithmic=True, schedule=steady),
    Kind("MLP, AdamW, rate x50 for 10 steps", MLP, "adamw", 1e-3, 1600, 41, weight_decay=0.1, kick=0.52),
    Kind("MLP, SGD with decay, stairs", MLP, "sgd", 0.1, 1200, 13, schedule=stairs, weight_decay=5e-4),
    Kind("MLP, Lion", MLP, "lion", 3e-4, 1200, 25, weight_decay=0.3),
    Kind("CNN, Adam", CNN, "adam", 2e-3, 600, 31),
    Kind("CNN, Nesterov, restarts, reset", CNN, "nesterov", 0.05, 600, 31, schedule=restarts, reset=0.5),
    Kind("CNN, AdamW, other data, logarithmic", CNN, "adamw", 2e-3, 600, 22, logarithmic=True, shift=0.5),
    Kind("LSTM, Adam, bad batches", LSTM, "adam", 3e-3, 800, 41, spike=0.6),
    Kind("LSTM, SGD, larger batch", LSTM, "sgd", 0.2, 800, 25, clip=1.0, larger_batch=0.5),
    Kind("GRU, RMSprop", GRU, "rmsprop", 1e-3, 800, 21, schedule=to_zero),
    Kind("GPT, AdamW", GPT, "adamw", 3e-3, 500, 51, weight_decay=0.01, clip=1.0),
    Kind("GPT, AdamW, WSD, logarithmic", GPT, "adamw", 2e-3, 500, 25, True, stable_then_decay, weight_decay=0.1),
    Kind("GPT, Adam, rate x50 for 10 steps", GPT, "adam", 1e-3, 500, 31, kick=0.55, clip=1.0),
    Kind("Llama, AdamW, restarts", LLAMA, "adamw", 3e-3, 500, 33, schedule=restarts, weight_decay=0.1),
    Kind("GPT, AdamW, bfloat16", GPT, "adamw", 2e-3, 500, 33, weight_decay=0.01, dtype=torch.bfloat16),
    Kind("GPT, Adam, layers frozen", _text(), "adam", 2e-3, 500, 33, freeze=0.5, frozen=("blocks.0", "wpe", "wte")),
    Kind("GPT, AdamW, averaged weights", GPT, "adamw", 3e-3, 500, 25, average=0.98),
    Kind("GPT, AdamW, other data, reset", GPT, "adamw", 2e-3, 500, 41, shift=0.5, reset=0.5, weight_decay=0.05),
    Kind("GPT, Adam, high rate", _text(), "adam", 1.5e-2, 500, 25, schedule=steady),
    Kind(
        "MLP with norms, layer frozen",
        _digits(partial(mlp, norms=True)),
        "adam",
        1e-3,
        1200,
        21,
        freeze=0.6,
        frozen=("1.", "2."),
    ),
    Kind("MLP, Adam, low rate", MLP, "adam", 2e-5, 1000, 17, schedule=steady),
    Kind(
        "GPT, zero projections, shifted norms",
        _text(norm=ShiftedNorm, zero_projections=True),
        "adamw",
        2e-3,
        500,
        25,
        weight_decay=0.1,
    ),
    Kind("Llama, layers thawed", LLAMA, "adamw", 2e-3, 500, 29, thaw=0.4, frozen=("blocks.0",), weight_decay=0.1),
    Kind("MLP, float16, zero head", _digits(partial(mlp, zero_head=True)), "adam", 1e-3, 1000, 21, dtype=torch.float16),
    Kind("GRU, Adagrad, bad batches", GRU, "adagrad", 0.02, 800, 29, schedule=steady, spike=0.4),
    Kind("Llama, resumed with a warm-up", LLAMA, "adamw", 3e-3, 500, 31, schedule=resumed, weight_decay=0.1),
    Kind("GPT, SGD, unit embeddings", _text(unit_embeddings=True), "sgd", 0.05, 500, 21, clip=1.0),
    Kind("CNN, SGD, rate x50 for 10 steps", CNN, "sgd", 0.01, 600, 25, kick=0.45, clip=1.0),
    Kind("LSTM, AdamW, reset, logarithmic", LSTM, "adamw", 3e-3, 800, 25, True, steady, weight_decay=0.1, reset=0.4),
]
