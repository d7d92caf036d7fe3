"""Logs of runs that are no language models' first epoch: fine-tunes, data stages, toys, and what no law describes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from toposcope.logs import Run

Vector = NDArray[np.float64]


def _shapes(x: Vector) -> tuple[Vector, ...]:
    """Return linear, cosine and constant rates, and those of a short cool-down, over their peak."""
    return 1 - 0.98 * x, 0.05 + 0.475 * (1 + np.cos(np.pi * x)), np.ones(len(x)), np.minimum(1, (1 - x) / 0.2 + 0.01)


def _log(
    rng: np.random.Generator,
    name: str,
    n: int,
    loss: Callable[[Vector, Vector], Vector],
    noise: float,
    target: str = "loss",
    shape: Vector | None = None,
    averaged: float = 0.0,
) -> Run:
    """Return a log of n rows; `loss` is of the share of the run and of the rate over its highest so far.

    The rate is of a random shape and warm-up, or of the shape given; `averaged` is the weight of the rows before in a
    moving average.
    """
    every = int(rng.choice([1, 5, 10, 50]))
    steps = np.arange(every, n * every + 1, every)
    warm = rng.choice([0.0, 0.03, 0.1]) * n * every
    shapes = _shapes(np.clip((steps - warm) / (n * every - warm), 0, 1))
    rate = 3e-4 * np.where(steps < warm, (steps + 1) / (warm + 1), shapes[rng.integers(len(shapes))])
    rate = rate if shape is None else 3e-4 * shape
    values = loss(steps / steps[-1], rate / np.maximum.accumulate(rate))
    normal = rng.random() < 0.7
    values = values * np.exp(noise * (rng.normal(size=n) if normal else rng.standard_t(4, size=n) / 1.4))
    for i in range(1, n if averaged else 0):
        values[i] = averaged * values[i - 1] + (1 - averaged) * values[i]
    return Run(name, steps, np.maximum(values, 1e-6), rate, n * every, target=target)


def fine_tune(rng: np.random.Generator) -> Run:
    """Training loss over several epochs: it falls in steps where an epoch begins."""
    epochs, drop = int(rng.integers(2, 7)), rng.uniform(0.05, 0.35)
    first, floor, a = rng.uniform(0.7, 2.5), rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.5)

    def loss(x: Vector, rate: Vector) -> Vector:
        epoch = np.minimum(np.floor(x * epochs - 1e-9), epochs - 1)
        fall = (1 + 200 * x) ** -a
        return first * ((1 - floor) * fall + floor) * (1 - drop) ** np.maximum(epoch, 0) * (1 - 0.03 * (1 - rate))

    return _log(rng, "fine-tune", int(rng.integers(40, 500)), loss, rng.uniform(0.01, 0.12))


def overfitting(rng: np.random.Generator) -> Run:
    """Validation loss of a fine-tune: it falls, turns and rises slowly."""
    turn, rise = rng.uniform(0.2, 1.2), rng.uniform(0.05, 0.6)
    first, fall = rng.uniform(0.8, 3), rng.uniform(0.1, 0.6)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (1 - fall * (1 - np.exp(-3 * x / turn)) + rise * np.maximum(x - turn, 0))

    return _log(rng, "overfitting", int(rng.integers(8, 60)), loss, rng.uniform(0.002, 0.02), "eval_loss")


def stages(rng: np.random.Generator) -> Run:
    """Training loss that jumps where the data change, and falls on from there."""
    at, jump = rng.uniform(0.08, 0.6), rng.choice([-1, 1]) * rng.uniform(0.08, 0.4)
    floor, height, a = rng.uniform(1, 3), rng.uniform(0.5, 3), rng.uniform(0.2, 0.6)
    regained, speed = rng.uniform(0, 0.5), rng.uniform(5, 40)

    def loss(x: Vector, rate: Vector) -> Vector:
        level = floor + height * (1 + 300 * x) ** -a - 0.05 * floor * (1 - rate)
        since = np.maximum(x - at, 0)
        return np.where(x < at, level, level * (1 + jump * (1 - regained * (1 - np.exp(-speed * since)))))

    return _log(rng, "stages", int(rng.integers(80, 800)), loss, rng.uniform(0.003, 0.03))


def slopes(rng: np.random.Generator) -> Run:
    """Training loss that falls faster for good, or hardly any more, where the data change."""
    at, faster = rng.uniform(0.1, 0.6), rng.choice([0.1, 2.5, 4.0])
    floor, a = rng.uniform(1, 3), rng.uniform(0.05, 0.15)

    def loss(x: Vector, rate: Vector) -> Vector:
        slow = np.log(1 + 50 * x)
        there = np.log(1 + 50 * at)
        return floor * np.exp(-a * np.where(x < at, slow, there + faster * (slow - there)))

    return _log(rng, "slopes", int(rng.integers(100, 800)), loss, rng.uniform(0.003, 0.02))


def toy(rng: np.random.Generator) -> Run:
    """A small network that learns all there is: an exponential towards a small loss."""
    first, last, rate_ = rng.uniform(0.5, 5), 10 ** rng.uniform(-3.5, -0.5), rng.uniform(3, 40)
    bend = rng.uniform(0.3, 1.0)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * np.exp(-((rate_ * x) ** bend)) + last * (0.4 + 0.6 * rate)

    return _log(rng, "toy", int(rng.integers(50, 500)), loss, rng.uniform(0.02, 0.25))


def small_language(rng: np.random.Generator) -> Run:
    """A small character-level model: a power law with a plateau before it."""
    floor, height, a = rng.uniform(0.6, 1.6), rng.uniform(1.5, 3), rng.uniform(0.5, 1.3)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor + height / (1 + (rng_c * x) ** a) - 0.06 * floor * (1 - rate)

    rng_c = rng.uniform(10, 60)
    return _log(rng, "small language", int(rng.integers(60, 600)), loss, rng.uniform(0.005, 0.04))


def grokking(rng: np.random.Generator) -> Run:
    """A plateau, then a sudden fall to nearly nothing."""
    at, width = rng.uniform(0.3, 0.8), rng.uniform(0.005, 0.04)
    first, last = rng.uniform(2, 5), 10 ** rng.uniform(-3, -1)

    def loss(x: Vector, rate: Vector) -> Vector:
        return np.asarray(last + first * (1 - 0.05 * x) / (1 + np.exp((x - at) / width)))

    return _log(rng, "grokking", int(rng.integers(80, 500)), loss, rng.uniform(0.005, 0.05))


def reinforcement(rng: np.random.Generator) -> Run:
    """A policy's loss: noise about a level that wanders and rises."""
    walk = np.cumsum(rng.normal(size=1000)) * rng.uniform(0.02, 0.08)
    rise = rng.uniform(0, 1.5)

    def loss(x: Vector, rate: Vector) -> Vector:
        return np.exp(np.interp(x, np.linspace(0, 1, 1000), walk) + rise * x)

    return _log(rng, "reinforcement", int(rng.integers(80, 600)), loss, rng.uniform(0.05, 0.3))


def adversarial(rng: np.random.Generator) -> Run:
    """A generator's loss: it goes up and down all the time."""
    cycles, height, drift = rng.uniform(6, 25), rng.uniform(0.15, 0.6), rng.uniform(-0.3, 0.3)
    phase = rng.uniform(0, 6, 3)

    def loss(x: Vector, rate: Vector) -> Vector:
        waves = sum(np.sin(2 * np.pi * cycles * k * x + p) / k for k, p in zip((1, 1.7, 0.45), phase, strict=True))
        return np.asarray(np.exp(height * waves / 1.5 + drift * x))

    return _log(rng, "adversarial", int(rng.integers(100, 600)), loss, rng.uniform(0.02, 0.15))


def language(rng: np.random.Generator) -> Run:
    """A language model's pretraining: what a law describes."""
    floor, height, a = rng.uniform(1.8, 3), rng.uniform(2, 8), rng.uniform(0.3, 0.6)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor + height * (1 + 400 * x) ** -a - 0.2 * (1 - rate)

    return _log(rng, "language", int(rng.integers(80, 800)), loss, rng.uniform(0.003, 0.02))


def two_exponentials(rng: np.random.Generator) -> Run:
    """A fast and a slow mode over a floor."""
    floor, fast, slow = rng.uniform(0.3, 2), rng.uniform(30, 200), rng.uniform(1, 6)
    a, b = rng.uniform(0.5, 3), rng.uniform(0.2, 1.5)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor * (0.95 + 0.05 * rate) + a * np.exp(-fast * x) + b * np.exp(-slow * x)

    return _log(rng, "two exponentials", int(rng.integers(40, 500)), loss, rng.uniform(0.005, 0.05))


def stretched(rng: np.random.Generator) -> Run:
    """A stretched exponential of a regression, towards a small loss."""
    speed, bend, floor = rng.uniform(2, 60), rng.uniform(0.2, 0.7), 10 ** rng.uniform(-3, -0.7)
    first = rng.uniform(0.5, 2)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * np.exp(-((speed * x) ** bend)) + floor * (0.7 + 0.3 * rate)

    return _log(rng, "stretched", int(rng.integers(40, 400)), loss, rng.uniform(0.02, 0.2))


def late_drop(rng: np.random.Generator) -> Run:
    """A smooth drop in the middle of a power law, as where a circuit forms."""
    at, width, depth = rng.uniform(0.15, 0.7), rng.uniform(0.01, 0.08), rng.uniform(0.08, 0.4)
    floor, height, a = rng.uniform(1, 2.5), rng.uniform(0.5, 3), rng.uniform(0.3, 0.8)

    def loss(x: Vector, rate: Vector) -> Vector:
        return (floor + height * (1 + 100 * x) ** -a) * (1 - depth / (1 + np.exp((at - x) / width)))

    return _log(rng, "late drop", int(rng.integers(60, 600)), loss, rng.uniform(0.005, 0.03))


def restarts(rng: np.random.Generator) -> Run:
    """Warm restarts of the learning rate, each with a rise of the loss."""
    n, cycles, gain = int(rng.integers(100, 600)), int(rng.integers(2, 5)), rng.uniform(0.03, 0.12)
    floor, height, a = rng.uniform(0.8, 2.5), rng.uniform(0.5, 3), rng.uniform(0.3, 0.8)
    shape = 0.02 + 0.49 * (1 + np.cos(np.pi * (np.arange(n) * cycles / n % 1)))

    def loss(x: Vector, rate: Vector) -> Vector:
        return (floor + height * (1 + 100 * x) ** -a) * (1 - gain * (1 - rate))

    return _log(rng, "restarts", n, loss, rng.uniform(0.005, 0.03), shape=shape)


def distillation(rng: np.random.Generator) -> Run:
    """A divergence from a teacher: it falls fast and far, and then slowly."""
    first, a, floor = rng.uniform(1, 4), rng.uniform(0.4, 1.0), rng.uniform(0.02, 0.3)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (floor + (1 - floor) * (1 + 150 * x) ** -a) * (0.9 + 0.1 * rate)

    return _log(rng, "distillation", int(rng.integers(50, 500)), loss, rng.uniform(0.02, 0.1))


def masked_fine_tune(rng: np.random.Generator) -> Run:
    """A masked language model on new text: noise, a small fall, and some epochs."""
    first, fall, epochs = rng.uniform(1.2, 3), rng.uniform(0.08, 0.3), int(rng.integers(1, 6))
    drop, speed = rng.uniform(0, 0.1), rng.uniform(3, 40)

    def loss(x: Vector, rate: Vector) -> Vector:
        epoch = np.minimum(np.floor(x * epochs - 1e-9), epochs - 1).clip(0)
        return np.asarray(first * (1 - fall * np.log1p(speed * x) / np.log1p(speed)) * (1 - drop) ** epoch)

    return _log(rng, "masked fine-tune", int(rng.integers(30, 300)), loss, rng.uniform(0.03, 0.15))


def curriculum(rng: np.random.Generator) -> Run:
    """Harder data from time to time."""
    at = np.sort(rng.uniform(0.1, 0.9, int(rng.integers(2, 5))))
    harder = rng.uniform(0.02, 0.15, len(at))
    floor, height, a = rng.uniform(0.8, 2.5), rng.uniform(1, 3), rng.uniform(0.3, 0.8)

    def loss(x: Vector, rate: Vector) -> Vector:
        level = floor + height * (1 + 100 * x) ** -a
        return np.asarray(level * np.exp((harder * (x[:, None] >= at)).sum(axis=1)))

    return _log(rng, "curriculum", int(rng.integers(80, 600)), loss, rng.uniform(0.005, 0.04))


def rate_steps(rng: np.random.Generator) -> Run:
    """A classifier whose learning rate falls in steps, and the loss with it."""
    n = int(rng.integers(60, 400))
    x = np.arange(1, n + 1) / n
    shape = np.where(x < 0.5, 1, np.where(x < 0.75, 0.1, 0.01))
    first, floor, a, gain = rng.uniform(1, 5), rng.uniform(0.1, 0.6), rng.uniform(0.3, 0.7), rng.uniform(0.05, 0.25)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (floor + (1 - floor) * (1 + 60 * x) ** -a) * np.exp(gain * np.log10(np.maximum(rate, 1e-3)))

    return _log(rng, "rate steps", n, loss, rng.uniform(0.01, 0.06), shape=shape)


def averaged(rng: np.random.Generator) -> Run:
    """A small language model whose tool logs a moving average."""
    floor, height, a, speed = rng.uniform(0.8, 2), rng.uniform(1, 3), rng.uniform(0.4, 1), rng.uniform(10, 100)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor + height / (1 + speed * x) ** a - 0.04 * floor * (1 - rate)

    return _log(
        rng, "averaged", int(rng.integers(60, 500)), loss, rng.uniform(0.01, 0.1), averaged=rng.uniform(0.8, 0.97)
    )


def adapter(rng: np.random.Generator) -> Run:
    """Validation loss of an adapter: a fast fall, then flat or a slow rise."""
    first, fall, turn = rng.uniform(0.8, 2.5), rng.uniform(0.05, 0.4), rng.uniform(0.3, 1.5)
    rise, speed = rng.uniform(0, 0.4), rng.uniform(5, 40)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (1 - fall * (1 - np.exp(-speed * x)) + rise * np.maximum(x - turn, 0) ** 2)

    return _log(rng, "adapter", int(rng.integers(10, 50)), loss, rng.uniform(0.002, 0.02), "eval_loss")


def memorisation(rng: np.random.Generator) -> Run:
    """Validation loss that rises above its first value, stays there, and may fall late: grokking."""
    at, width, height = rng.uniform(0.5, 1.3), rng.uniform(0.01, 0.05), rng.uniform(0.3, 2)
    first, speed = rng.uniform(2, 5), rng.uniform(20, 80)

    def loss(x: Vector, rate: Vector) -> Vector:
        return np.asarray(0.01 + first * (1 + height * (1 - np.exp(-speed * x))) / (1 + np.exp((x - at) / width)))

    return _log(rng, "memorisation", int(rng.integers(40, 300)), loss, rng.uniform(0.005, 0.05), "val_loss")


def returns(rng: np.random.Generator) -> Run:
    """Returns of a policy: they rise, in noise."""
    first, rise, speed = rng.uniform(5, 50), rng.uniform(1, 10), rng.uniform(2, 15)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (1 + rise * (1 - np.exp(-speed * x)))

    return _log(rng, "returns", int(rng.integers(80, 500)), loss, rng.uniform(0.05, 0.3), "episode_return")


LAWFUL = (fine_tune, overfitting, stages, slopes, toy, small_language, language)
LAWLESS = (grokking, reinforcement, adversarial)
"""Families that intervals were made with, and that refusals were made for."""
HELD_OUT = (
    *(two_exponentials, stretched, late_drop, restarts, distillation, masked_fine_tune, curriculum, rate_steps),
    *(averaged, adapter),
)
HELD_OUT_LAWLESS = (memorisation, returns)
"""Families that were written when the method was finished, and are only measured."""


def logs(kind: Callable[[np.random.Generator], Run], n: int, seed: int = 0) -> list[Run]:
    """Return n logs of a kind."""
    return [kind(np.random.default_rng([seed, i, *kind.__name__.encode()])) for i in range(n)]
