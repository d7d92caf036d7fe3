"""Training curves that are no language models': small networks trained here, and made-up power laws.

Needs scikit-learn for its digits, and a few minutes on two cores. ``benchmarks/forecast.py --small`` reads the curves.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import click
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from toposcope.engine.pool import TaskFailure, Workers
from toposcope.seeds import derive_seed

Vector = NDArray[np.float64]
Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]

SCHEDULES = ("cosine", "linear", "wsd", "constant", "inverse_sqrt", "step", "no_warm_up")
N_LOGGED = 250
"""Rows of a log; the loss of each is the mean since the row before, or of one batch."""
BATCH = 64


@dataclass(frozen=True)
class Task:
    """What the networks of a family learn.

    Attributes
    ----------
    make : callable
        Width -> the network.
    batch : callable
        Random generator -> inputs and targets.
    loss : callable
        Outputs, targets -> the mean loss.
    widths, lengths : tuple of int
        Of the networks, and steps of the trainings.
    rate : float
        Peak learning rate.
    sgd : bool
        Nesterov's momentum in place of Adam.
    averaged : bool
        Whether the losses logged are means over the steps since the row before.
    """

    make: Callable[[int], nn.Module]
    batch: Batch
    loss: Callable[[Tensor, Tensor], Tensor]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    rate: float
    sgd: bool = False
    averaged: bool = True


def learning_rates(kind: str, n: int) -> Vector:
    """Return the rate of steps 0 to n, as a share of the peak."""
    t = np.arange(n + 1.0)
    warm = 0.0 if kind == "no_warm_up" else round(0.05 * n)
    x = np.clip((t - warm) / (n - warm), 0, 1)
    shape = {
        "cosine": 0.05 + 0.475 * (1 + np.cos(np.pi * x)),
        "linear": 1 - 0.98 * x,
        "wsd": np.minimum(1, (1 - t / n) / 0.2 + 0.01),
        "constant": np.ones(n + 1),
        "inverse_sqrt": np.sqrt(max(warm, 1) / np.maximum(t, max(warm, 1))),
        "step": np.where(t < 0.6 * n, 1, np.where(t < 0.85 * n, 0.2, 0.04)),
        "no_warm_up": 0.05 + 0.475 * (1 + np.cos(np.pi * x)),
    }[kind]
    return np.asarray(np.where(t < warm, (t + 1) / (warm + 1), shape))


def mlp(n_in: int, n_out: int, depth: int = 2) -> Callable[[int], nn.Module]:
    """Return how to make a perceptron of a width."""

    def make(width: int) -> nn.Module:
        sizes = [n_in, *[width] * depth]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(width, n_out))

    return make


def cnn(width: int) -> nn.Module:
    """Return a small convolutional network for 8 x 8 digits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * width, 10),
    )  # fmt: skip


class NextSymbol(nn.Module):
    """A perceptron over embeddings of the last symbols."""

    def __init__(self, symbols: int, context: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, 16)
        self.rest = mlp(16 * context, symbols)(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.rest(self.embedding(x).flatten(1))  # type: ignore[no-any-return]


def digits(noise: float, wrong_labels: float = 0.0) -> Batch:
    """Return batches of digits, moved by up to a pixel, with noise and some wrong labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16
    truth = torch.tensor(labels)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(truth), (BATCH,), generator=generator)
        move = torch.randint(-1, 2, (2,), generator=generator).tolist()
        x = torch.roll(pictures[chosen], move, (1, 2)).reshape(BATCH, 64)
        y = truth[chosen].clone()
        wrong = torch.rand(BATCH, generator=generator) < wrong_labels
        y[wrong] = torch.randint(10, (int(wrong.sum()),), generator=generator)
        return x + noise * torch.randn(x.shape, generator=generator), y

    return batch


def denoising(noise: float) -> Batch:
    """Return noisy digits and clean ones."""
    clean = digits(0.0)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, _ = clean(generator)
        return x + noise * torch.randn(x.shape, generator=generator), x

    return batch


def teacher(noise: float, seed: int) -> Batch:
    """Return inputs and the values of a random network, with noise."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    for parameter in network.parameters():
        parameter.requires_grad_(False).mul_(3)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(BATCH, 16, generator=generator)
        y = network(x)
        return x, y + noise * torch.randn(y.shape, generator=generator)

    return batch


def grammar(symbols: int, context: int) -> Batch:
    """Return the last symbols of a random source and the next one: most depend on two earlier ones, some on five."""
    generator = torch.Generator().manual_seed(7)
    logits = 2.5 * torch.randn(symbols, symbols, symbols, generator=generator)
    weights = torch.randn(context, symbols, symbols, generator=generator)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(symbols, (BATCH, context), generator=generator)
        scores = logits[x[:, -1], x[:, -2]] + sum(weights[k, x[:, k]] for k in range(context))
        return x, torch.multinomial(F.softmax(scores, dim=1), 1, generator=generator)[:, 0]

    return batch


def error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of wrong answers."""
    return (outputs.argmax(1) != targets).float().mean()


def task(family: str) -> Task:
    """Return the task of a family."""
    if family == "digits, perceptron":
        return Task(mlp(64, 10), digits(0.35), F.cross_entropy, (16, 64, 256), (1500, 4000), 3e-3)
    if family == "digits, convolutions":
        return Task(cnn, digits(0.4), F.cross_entropy, (4, 8, 16), (1000, 2500), 0.1, sgd=True, averaged=False)
    if family == "digits, wrong labels":
        return Task(mlp(64, 10), digits(0.2, 0.3), F.cross_entropy, (16, 64, 256), (1500, 4000), 0.1, sgd=True)
    if family == "digits, denoised":
        return Task(mlp(64, 64), denoising(0.5), F.mse_loss, (16, 64, 256), (1500, 4000), 2e-3)
    if family == "regression, noisy":
        return Task(mlp(16, 1), teacher(0.5, 1), F.mse_loss, (16, 64, 256), (2000, 6000), 3e-3)
    if family == "regression, exact":
        return Task(mlp(16, 1), teacher(0.0, 2), F.mse_loss, (16, 64, 256), (2000, 6000), 0.03, sgd=True)
    if family == "symbols":
        return Task(
            lambda width: NextSymbol(24, 5, width), grammar(24, 5), F.cross_entropy, (32, 128, 384), (2000, 6000), 3e-3
        )
    raise ValueError(family)


TRAINED = (
    "digits, perceptron", "digits, convolutions", "digits, wrong labels", "digits, denoised", "regression, noisy",
    "regression, exact", "symbols",
)  # fmt: skip


def train(job: tuple[str, int, int, str]) -> pl.DataFrame:
    """Train one network and return its log."""
    family, width, length, kind = job
    torch.set_num_threads(1)
    its = task(family)
    seed = derive_seed(42, *map(str, job))
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = its.make(width)
    rates = learning_rates(kind, length)
    if its.sgd:
        optimiser: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), its.rate, momentum=0.9, nesterov=True)
    else:
        optimiser = torch.optim.AdamW(model.parameters(), its.rate, weight_decay=0.01)
    losses = []
    for step in range(1, length + 1):
        optimiser.param_groups[0]["lr"] = its.rate * rates[step]
        x, y = its.batch(generator)
        loss = its.loss(model(x), y)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    every = length // N_LOGGED
    steps = np.arange(every, length + 1, every)
    rows = np.array(losses).reshape(-1, every)
    size = sum(parameter.numel() for parameter in model.parameters())
    return curve(family, f"{width} {length} {kind}", steps, rows.mean(axis=1) if its.averaged else rows[:, -1],
                 its.rate * rates[steps], size, length, kind)  # fmt: skip


def curve(
    family: str, name: str, steps: NDArray[np.int64], loss: Vector, rate: Vector, size: float, length: int, kind: str
) -> pl.DataFrame:
    """Return a log in the columns of the published curves."""
    return pl.DataFrame({
        "step": steps.astype(np.float64), "loss": loss, "lr": rate, "family": family, "run": f"{family} {name}",
        "N": float(size), "T": float(length), "sched": kind,
    })  # fmt: skip


POWER_LAWS = {
    # L0, A, a, c over the slope at the end, of steps or of progress, noise
    "power law, shallow, no gain": (2.2, 0.02, 0.4, 0.0, "steps", 0.0005),
    "power law, shallow, a slope": (3.0, 0.02, 0.5, 1.0, "progress", 0.0005),
    "power law to zero, a slope": (0.0, 0.03, 0.6, 1.0, "progress", 0.01),
    "power law, steep, no gain": (1.8, 0.6, 0.4, 0.0, "steps", 0.002),
    "power law, steep, half a slope": (2.8, 0.5, 0.5, 0.5, "progress", 0.003),
    "power law, steep, two slopes": (1.2, 0.8, 0.45, 2.0, "progress", 0.005),
}


def power_laws(family: str) -> Iterator[pl.DataFrame]:
    """Make the runs of a family that follows a power law; the gain of annealing is delayed by 3% of the run."""
    from toposcope.forecasting.forecasters.cooldown_laws import delayed_decay
    from toposcope.logs.schedules.schedule import Schedule

    L0, A, a, ratio, clock, noise = POWER_LAWS[family]
    for size, (length, kind) in product(
        (1e6, 4e6, 16e6), zip((2000, 3000, 4000, 5000, 6000, 8000, 10000), SCHEDULES, strict=True)
    ):
        rng = np.random.default_rng(derive_seed(42, family, f"{size:g}", kind))
        schedule = Schedule(learning_rates(kind, length))
        steps = np.arange(length // N_LOGGED, length + 1, length // N_LOGGED)
        x = steps.astype(np.float64) if clock == "steps" else schedule.progress(steps)
        exponent = a * np.exp(0.1 * rng.normal())
        amplitude = A * (size / 1e6) ** -0.1
        fall = amplitude * (x / x[-1]) ** -exponent
        gain = ratio * exponent * amplitude * delayed_decay(schedule, steps)
        loss = np.maximum(L0 * (size / 1e6) ** -0.05 + fall - gain, 0.05 * fall)
        loss = loss * np.exp(noise * rng.normal(size=len(loss)))
        rate = learning_rates(kind, length)[steps] * 1e-3
        yield curve(family, f"{size:g} {kind}", steps, loss, rate, size, length, kind)


def jobs() -> list[tuple[str, int, int, str]]:
    """Return the trainings: each schedule at every other combination of width and length."""
    chosen = []
    for family in TRAINED:
        its = task(family)
        for i, (width, length) in enumerate(product(its.widths, its.lengths)):
            chosen += [(family, width, length, kind) for j, kind in enumerate(SCHEDULES) if (i + j) % 3 == 0]
    return chosen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
def main(out: Path, workers: int) -> None:
    """Train the networks, make the power laws, and write their curves to OUT, a Parquet file."""
    began = time.perf_counter()
    todo = jobs()
    parts: dict[tuple[str, int, int, str], pl.DataFrame] = {}
    with Workers(workers) as engine:
        for job, log in engine.run(train, todo):
            if isinstance(log, TaskFailure):
                raise click.ClickException(log.message)
            parts[job] = log
    made = [log for family in POWER_LAWS for log in power_laws(family)]
    pl.concat([*(parts[job] for job in todo), *made]).write_parquet(out)
    print(f"{len(todo)} trainings and {len(made)} made-up runs in {time.perf_counter() - began:.0f} s: {out}")


if __name__ == "__main__":
    main()
