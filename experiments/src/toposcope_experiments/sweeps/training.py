"""The networks of the sweeps, all runs of a sweep trained as one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from toposcope.engine import one_thread
from toposcope.extend import Matrix, Progress, Steps, derive_seed, silent
from toposcope_experiments.small_networks.training import EPSILON, Trainer
from toposcope_experiments.sweeps.design import DIVERGENCE, EVERY, LATE, LSTM, MIXER, VISION, Settings, Sweep, settings

CHARACTERS, LENGTH, HIDDEN, DELAY, TOKENS, PARITY = 128, 16, 24, 4, 8, 3
BATCH, HELD_OUT = 16, 256
BETA1, INTERPOLATED, MOMENTUM = 0.9, 0.9, 0.9  # the second of schedule-free runs (Defazio et al. 2024)


class Curves(NamedTuple):
    """What a sweep logged."""

    steps: Steps  # of the evaluations
    losses: Matrix  # shape (runs, evaluations); NaN after the end of a run, and where it diverged
    settings: Settings


class SweepTrainer(Trainer):
    """Trains the runs of one sweep."""

    def __init__(self, sweep: Sweep, text: Tensor, folder: Path) -> None:
        super().__init__(
            sweep.name,
            folder,
            range(0, sweep.steps + 1, EVERY),
            json.dumps([*sweep[:3], sweep.steps, sweep.design.runs]),
        )
        self.sweep, self.settings, self.text = sweep, settings(sweep), text
        n = sweep.design.runs
        generator = torch.Generator().manual_seed(derive_seed(sweep.repeat, sweep.name, "weights"))
        scale = torch.tensor(self.settings.initial_scale, dtype=torch.float32)
        self.x = {
            name: scale.view(-1, *[1] * len(shape)) * torch.randn(n, *shape, generator=generator) / shape[0] ** 0.5
            for name, shape in shapes(sweep).items()
        }
        self.z = {name: value.clone() for name, value in self.x.items()}
        self.mean = {name: torch.zeros_like(value) for name, value in self.x.items()}
        self.square = {name: torch.zeros_like(value) for name, value in self.x.items()}
        self.averaged = torch.zeros(n)  # the sum of squared rates
        self.mask = (torch.arange(HIDDEN) < HIDDEN * torch.tensor(self.settings.width)[:, None]).float()
        self.held_out = self._batch(HELD_OUT, torch.Generator().manual_seed(1), held_out=True)
        self.losses = torch.full((len(self.steps), n), torch.nan)

    def changing(self) -> Mapping[str, Tensor]:
        """Return weights and means."""
        parts = {"x": self.x, "z": self.z, "mean": self.mean, "square": self.square}
        found = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return {**found, "averaged": self.averaged}

    def measured(self) -> Mapping[str, Tensor]:
        """Return the losses on held-out data."""
        return {"losses": self.losses}

    def measure(self, place: int) -> None:
        """Evaluate every run that has not ended."""
        with torch.no_grad():
            losses = run_losses(self.sweep, self.x, self.mask, *self.held_out)
        losses[torch.tensor(self.settings.last_step < self.steps[place])] = torch.nan
        self.losses[place] = losses

    def update(self, step: int) -> None:
        """Make one update of every run, each at its own rate: AdamW, its schedule-free form, or SGD with momentum."""
        n = self.sweep.design.runs
        of = [self.settings.rates[:, step - 1], self.settings.weight_decay, self.settings.beta2]
        rate, decay, beta2 = (torch.tensor(each, dtype=torch.float32) for each in of)
        free = torch.tensor(self.settings.schedule_free, dtype=torch.float32)
        self.averaged += rate**2
        weight = torch.where(free > 0, rate**2 / self.averaged.clamp_min(1e-30), torch.ones(n))
        inside, beta1 = free * INTERPOLATED, (1 - free) * BETA1

        def by_run(values: Tensor, like: Tensor) -> Tensor:
            return values.view(-1, *[1] * (like.dim() - 1))

        at = {k: self.z[k].lerp(self.x[k], by_run(inside, self.z[k])).requires_grad_() for k in self.z}
        batch = torch.Generator().manual_seed(derive_seed(step, self.name))
        torch.autograd.backward(run_losses(self.sweep, at, self.mask, *self._batch(BATCH, batch)).sum())
        with torch.no_grad():
            for k, z in self.z.items():
                gradient, mean, square = at[k].grad, self.mean[k], self.square[k]
                assert gradient is not None
                eta = by_run(rate, z)
                if self.sweep.kind == DIVERGENCE:
                    mean.mul_(MOMENTUM).add_(gradient)
                    z.sub_(eta * mean)
                else:
                    b1, b2 = by_run(beta1, z), by_run(beta2, z)
                    mean.mul_(b1).add_((1 - b1) * gradient)
                    square.mul_(b2).add_((1 - b2) * gradient**2)
                    size = (square / (1 - b2**step)).sqrt_() + EPSILON
                    z.mul_(1 - eta * by_run(decay, z)).sub_(eta * mean / (1 - b1**step) / size)
                self.x[k].lerp_(z, by_run(weight, z))

    def _batch(self, n: int, generator: torch.Generator, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Draw inputs and targets, the same for every run."""
        if self.sweep.network == VISION:
            images, labels = digits()
            n_held = len(images) // 5
            pool = torch.arange(n_held) if held_out else torch.arange(n_held, len(images))
            rows = pool[torch.randint(len(pool), (n,), generator=generator)]
            return images[rows], labels[rows]
        if self.sweep.kind == LATE:
            return late_batch(self.sweep.network, n, generator)
        n_held = len(self.text) // 10
        low, high = (0, n_held - LENGTH - 1) if held_out else (n_held, len(self.text) - LENGTH - 1)
        rows = torch.randint(low, high, (n, 1), generator=generator) + torch.arange(LENGTH + 1)
        tokens = self.text[rows]
        return tokens[:, :-1], tokens[:, 1:] if self.sweep.network == LSTM else tokens[:, -1]


def late_batch(network: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw what is learnt after a plateau: of the lstm what came some tokens before, of the mixer a parity."""
    if network == LSTM:
        tokens = torch.randint(TOKENS, (n, LENGTH), generator=generator)
        return tokens, torch.where(torch.arange(LENGTH) < DELAY, tokens, tokens.roll(DELAY, 1))
    bits = torch.randint(2, (n, LENGTH), generator=generator)
    return bits, bits[:, :PARITY].sum(1) % 2


def digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 images of digits, shape (n, 8, 8), and what they show."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(labels)


def shapes(sweep: Sweep) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's parameters, inputs first."""
    h = HIDDEN
    if sweep.network == VISION:
        return {"filters": (9, h), "inside": (h * 9, h), "out": (h, 10)}
    if sweep.network == LSTM:
        return {"embedding": (CHARACTERS, h), "gates": (2 * h, 4 * h), "out": (h, CHARACTERS)}
    mixing = {"tokens_1": (LENGTH, LENGTH), "tokens_2": (LENGTH, LENGTH), "channels_1": (h, 2 * h)}
    return {"embedding": (CHARACTERS, h), **mixing, "channels_2": (2 * h, h), "out": (h * LENGTH, CHARACTERS)}


def run_losses(sweep: Sweep, w: Mapping[str, Tensor], mask: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of each run, shape (runs,)."""
    network = {VISION: _vision, LSTM: _lstm, MIXER: _mixer}[sweep.network]
    scores = network(w, mask[:, None], inputs)  # shape (runs, batch, classes) or (runs, batch, time, classes)
    logs = functional.log_softmax(scores, dim=-1)
    chosen = logs.gather(-1, targets.expand(len(scores), *targets.shape)[..., None])
    return -chosen.flatten(1).mean(1)


def _vision(w: Mapping[str, Tensor], mask: Tensor, images: Tensor) -> Tensor:
    patches = functional.unfold(images[:, None], 3, padding=1).transpose(1, 2).flatten(0, 1)
    found = torch.relu(patches @ w["filters"]) * mask
    pooled = functional.max_pool2d(found.view(-1, 8, 8, HIDDEN).permute(0, 3, 1, 2), 2, padding=1)[:, :, :3, :3]
    inside = torch.relu(pooled.reshape(len(found), len(images), -1) @ w["inside"]) * mask
    scores: Tensor = inside @ w["out"]
    return scores


def _lstm(w: Mapping[str, Tensor], mask: Tensor, tokens: Tensor) -> Tensor:
    embedded = w["embedding"][:, tokens] * CHARACTERS**0.5
    h = c = torch.zeros_like(embedded[:, :, 0])
    states = []
    for t in range(tokens.shape[1]):
        i, f, o, g = (torch.cat([embedded[:, :, t], h], -1) @ w["gates"]).chunk(4, -1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c) * mask
        states.append(h)
    return torch.stack(states, 2) @ w["out"][:, None]


def _mixer(w: Mapping[str, Tensor], mask: Tensor, tokens: Tensor) -> Tensor:
    x = w["embedding"][:, tokens] * CHARACTERS**0.5 * mask[:, None]
    inside = functional.gelu(x.transpose(2, 3) @ w["tokens_1"][:, None]) @ w["tokens_2"][:, None]
    x = x + inside.transpose(2, 3)
    x = x + functional.gelu(x @ w["channels_1"][:, None]) @ w["channels_2"][:, None] * mask[:, None]
    return torch.matmul(x.flatten(2), w["out"])


def train_sweep(sweep: Sweep, text: Tensor, folder: Path, progress: Progress = silent) -> Curves:
    """Train a sweep, or go on where it was interrupted, or read what it logged."""
    with one_thread():
        trainer = SweepTrainer(sweep, text, folder)
        trainer.train(progress)
    return Curves(np.array(trainer.steps), trainer.losses.T.double().numpy(), trainer.settings)
