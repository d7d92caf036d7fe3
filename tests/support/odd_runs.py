"""Logs of runs that are no language models' first epoch: fine-tunes, data stages, toys, and what no law describes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from toposcope.logs import Log

Vector = NDArray[np.float64]


def _rates(rng: np.random.Generator, t: Vector, end: int) -> Vector:
    warm = rng.choice([0.0, 0.03, 0.1]) * end
    x = np.clip((t - warm) / (end - warm), 0, 1)
    shapes = (
        1 - 0.98 * x,
        0.05 + 0.475 * (1 + np.cos(np.pi * x)),
        np.ones(len(t)),
        np.minimum(1, (1 - x) / 0.2 + 0.01),
    )
    shape = shapes[rng.integers(len(shapes))]
    return np.asarray(3e-4 * np.where(t < warm, (t + 1) / (warm + 1), shape))


def _log(
    rng: np.random.Generator,
    name: str,
    n: int,
    loss: Callable[[Vector, Vector], Vector],
    noise: float,
    target: str = "loss",
) -> Log:
    """Return a log of n rows; `loss` is of the share of the run and of the rate over its highest so far."""
    every = int(rng.choice([1, 5, 10, 50]))
    steps = np.arange(every, n * every + 1, every)
    rate = _rates(rng, steps.astype(np.float64), n * every)
    level = loss(steps / steps[-1], rate / np.maximum.accumulate(rate))
    scatter = (
        np.exp(noise * rng.normal(size=n)) if rng.random() < 0.7 else np.exp(noise * rng.standard_t(4, size=n) / 1.4)
    )
    return Log(name, steps, np.maximum(level * scatter, 1e-6), rate, n * every, target=target)


def fine_tune(rng: np.random.Generator) -> Log:
    """Training loss over several epochs: it falls in steps where an epoch begins."""
    epochs, drop = int(rng.integers(2, 7)), rng.uniform(0.05, 0.35)
    first, floor, a = rng.uniform(0.7, 2.5), rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.5)

    def loss(x: Vector, rate: Vector) -> Vector:
        epoch = np.minimum(np.floor(x * epochs - 1e-9), epochs - 1)
        fall = (1 + 200 * x) ** -a
        return first * ((1 - floor) * fall + floor) * (1 - drop) ** np.maximum(epoch, 0) * (1 - 0.03 * (1 - rate))

    return _log(rng, "fine-tune", int(rng.integers(40, 500)), loss, rng.uniform(0.01, 0.12))


def overfitting(rng: np.random.Generator) -> Log:
    """Validation loss of a fine-tune: it falls, turns and rises slowly."""
    turn, rise = rng.uniform(0.2, 1.2), rng.uniform(0.05, 0.6)
    first, fall = rng.uniform(0.8, 3), rng.uniform(0.1, 0.6)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * (1 - fall * (1 - np.exp(-3 * x / turn)) + rise * np.maximum(x - turn, 0))

    return _log(rng, "overfitting", int(rng.integers(8, 60)), loss, rng.uniform(0.002, 0.02), "eval_loss")


def stages(rng: np.random.Generator) -> Log:
    """Training loss that jumps where the data change, and falls on from there."""
    at, jump = rng.uniform(0.08, 0.6), rng.choice([-1, 1]) * rng.uniform(0.08, 0.4)
    floor, height, a = rng.uniform(1, 3), rng.uniform(0.5, 3), rng.uniform(0.2, 0.6)
    regained, speed = rng.uniform(0, 0.5), rng.uniform(5, 40)

    def loss(x: Vector, rate: Vector) -> Vector:
        level = floor + height * (1 + 300 * x) ** -a - 0.05 * floor * (1 - rate)
        since = np.maximum(x - at, 0)
        return np.where(x < at, level, level * (1 + jump * (1 - regained * (1 - np.exp(-speed * since)))))

    return _log(rng, "stages", int(rng.integers(80, 800)), loss, rng.uniform(0.003, 0.03))


def slopes(rng: np.random.Generator) -> Log:
    """Training loss that falls faster for good, or hardly any more, where the data change."""
    at, faster = rng.uniform(0.1, 0.6), rng.choice([0.1, 2.5, 4.0])
    floor, a = rng.uniform(1, 3), rng.uniform(0.05, 0.15)

    def loss(x: Vector, rate: Vector) -> Vector:
        slow = np.log(1 + 50 * x)
        there = np.log(1 + 50 * at)
        return floor * np.exp(-a * np.where(x < at, slow, there + faster * (slow - there)))

    return _log(rng, "slopes", int(rng.integers(100, 800)), loss, rng.uniform(0.003, 0.02))


def toy(rng: np.random.Generator) -> Log:
    """A small network that learns all there is: an exponential towards a small loss."""
    first, last, rate_ = rng.uniform(0.5, 5), 10 ** rng.uniform(-3.5, -0.5), rng.uniform(3, 40)
    bend = rng.uniform(0.3, 1.0)

    def loss(x: Vector, rate: Vector) -> Vector:
        return first * np.exp(-((rate_ * x) ** bend)) + last * (0.4 + 0.6 * rate)

    return _log(rng, "toy", int(rng.integers(50, 500)), loss, rng.uniform(0.02, 0.25))


def small_language(rng: np.random.Generator) -> Log:
    """A small character-level model: a power law with a plateau before it."""
    floor, height, a = rng.uniform(0.6, 1.6), rng.uniform(1.5, 3), rng.uniform(0.5, 1.3)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor + height / (1 + (rng_c * x) ** a) - 0.06 * floor * (1 - rate)

    rng_c = rng.uniform(10, 60)
    return _log(rng, "small language", int(rng.integers(60, 600)), loss, rng.uniform(0.005, 0.04))


def grokking(rng: np.random.Generator) -> Log:
    """A plateau, then a sudden fall to nearly nothing."""
    at, width = rng.uniform(0.3, 0.8), rng.uniform(0.005, 0.04)
    first, last = rng.uniform(2, 5), 10 ** rng.uniform(-3, -1)

    def loss(x: Vector, rate: Vector) -> Vector:
        return last + first * (1 - 0.05 * x) / (1 + np.exp((x - at) / width))

    return _log(rng, "grokking", int(rng.integers(80, 500)), loss, rng.uniform(0.005, 0.05))


def reinforcement(rng: np.random.Generator) -> Log:
    """A policy's loss: noise about a level that wanders and rises."""
    walk = np.cumsum(rng.normal(size=1000)) * rng.uniform(0.02, 0.08)
    rise = rng.uniform(0, 1.5)

    def loss(x: Vector, rate: Vector) -> Vector:
        return np.exp(np.interp(x, np.linspace(0, 1, 1000), walk) + rise * x)

    return _log(rng, "reinforcement", int(rng.integers(80, 600)), loss, rng.uniform(0.05, 0.3))


def adversarial(rng: np.random.Generator) -> Log:
    """A generator's loss: it goes up and down all the time."""
    cycles, height, drift = rng.uniform(6, 25), rng.uniform(0.15, 0.6), rng.uniform(-0.3, 0.3)
    phase = rng.uniform(0, 6, 3)

    def loss(x: Vector, rate: Vector) -> Vector:
        waves = sum(np.sin(2 * np.pi * cycles * k * x + p) / k for k, p in zip((1, 1.7, 0.45), phase, strict=True))
        return np.exp(height * waves / 1.5 + drift * x)

    return _log(rng, "adversarial", int(rng.integers(100, 600)), loss, rng.uniform(0.02, 0.15))


def language(rng: np.random.Generator) -> Log:
    """A language model's pretraining: what a law describes."""
    floor, height, a = rng.uniform(1.8, 3), rng.uniform(2, 8), rng.uniform(0.3, 0.6)

    def loss(x: Vector, rate: Vector) -> Vector:
        return floor + height * (1 + 400 * x) ** -a - 0.2 * (1 - rate)

    return _log(rng, "language", int(rng.integers(80, 800)), loss, rng.uniform(0.003, 0.02))


LAWFUL = (fine_tune, overfitting, stages, slopes, toy, small_language, language)
LAWLESS = (grokking, reinforcement, adversarial)


def logs(kind: Callable[[np.random.Generator], Log], n: int, seed: int = 0) -> list[Log]:
    """Return n logs of a kind."""
    return [kind(np.random.default_rng([seed, i, *kind.__name__.encode()])) for i in range(n)]
