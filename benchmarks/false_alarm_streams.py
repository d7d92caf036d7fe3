"""Synthetic runs in which nothing changes but noise, by family, and faults that are planted in them.

Thresholds of the alerts were chosen on `DEVELOPMENT`. `HELD_OUT` were written afterwards; their first run informed one
correction, the longer median of layers.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

Noise = Callable[[Generator, int, int], np.ndarray]
"""Of n values for each of m streams, about 0, with a scale of about 1."""


def _ar(phi: float, innovations: np.ndarray) -> np.ndarray:
    return np.asarray(lfilter([math.sqrt(1 - phi * phi)], [1, -phi], innovations, axis=0))


def _volatile(r: Generator, n: int, m: int) -> np.ndarray:
    """Make a GARCH(1, 1): loud and quiet times."""
    shocks, found, variance = r.normal(size=(n, m)), np.empty((n, m)), np.ones(m)
    for k in range(n):
        found[k] = np.sqrt(variance) * shocks[k]
        variance = 0.05 + 0.1 * found[k] ** 2 + 0.85 * variance
    return found


def _pink(r: Generator, n: int, m: int) -> np.ndarray:
    """Make 1/f noise."""
    spectrum = np.fft.rfft(r.normal(size=(n, m)), axis=0)
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))[:, None]
    values = np.fft.irfft(spectrum, n, axis=0)
    return np.asarray(values / values.std(axis=0))


def _bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64)


class Family(NamedTuple):
    """Of runs: the course of the loss without noise, by (generator, steps); its noise; how values are rounded."""

    course: Callable[[Generator, np.ndarray], np.ndarray]
    noise: Noise
    rounded: Callable[[np.ndarray], np.ndarray] = lambda values: values
    positive: bool = False
    """The noise multiplies, as a power of e."""


def _flat(_: Generator, t: np.ndarray) -> np.ndarray:
    return np.full(len(t), 3.0)


def _power(r: Generator, t: np.ndarray) -> np.ndarray:
    return 1.7 + r.uniform(4, 9) * (t + 1) ** -r.uniform(0.2, 0.5)


def _cool_down(r: Generator, t: np.ndarray) -> np.ndarray:
    return np.asarray(_power(r, t) - 0.3 * np.clip((t / t[-1] - 0.8) / 0.2, 0, 1))


def _cosine(_: Generator, t: np.ndarray) -> np.ndarray:
    return np.asarray(2.5 + np.cos(np.pi * t / t[-1]))


def _warm_up(r: Generator, t: np.ndarray) -> np.ndarray:
    return 3 + 8 * np.exp(-t / r.uniform(50, 500))


def _falling_epochs(r: Generator, t: np.ndarray) -> np.ndarray:
    period = r.uniform(100, 3000)
    return 3 + r.uniform(0.05, 0.6) * (1 - t % period / period)


def _rising_epochs(r: Generator, t: np.ndarray) -> np.ndarray:
    period = r.uniform(100, 3000)
    return 3 + r.uniform(0.05, 0.6) * (t % period / period)


def _waves(r: Generator, t: np.ndarray) -> np.ndarray:
    return 3 + 0.3 * np.sin(2 * np.pi * t / r.uniform(20, 3000))


def _stairs(r: Generator, t: np.ndarray) -> np.ndarray:
    """Let the loss fall at each epoch, as where texts are repeated."""
    return 2 + np.maximum(0.2, 2 - 0.15 * (t // r.uniform(300, 2000)))


def _restarts(r: Generator, t: np.ndarray) -> np.ndarray:
    """Let the loss rise within a tenth of a period, as where the learning rate restarts, then fall again."""
    period = r.uniform(1000, 4000)
    phase = t % period / period
    return _power(r, t) + 0.3 * np.where(phase < 0.1, phase / 0.1, np.cos(np.pi / 2 * (phase - 0.1) / 0.9))


def _normal(r: Generator, n: int, m: int) -> np.ndarray:
    return r.normal(size=(n, m))


def _student(degrees: float) -> Noise:
    return lambda r, n, m: r.standard_t(degrees, size=(n, m))


def _slow_loudness(r: Generator, n: int, m: int) -> np.ndarray:
    return np.exp(np.cumsum(0.01 * r.normal(size=(n, m)), axis=0)) * r.normal(size=(n, m))


def _louder_by_epoch(r: Generator, n: int, m: int) -> np.ndarray:
    t = np.arange(n)[:, None]
    return np.asarray(np.exp(1.2 * np.sin(2 * np.pi * t / r.uniform(200, 5000))) * r.normal(size=(n, m)))


def _outliers(r: Generator, n: int, m: int) -> np.ndarray:
    """Make one in 200 batches ten times as loud."""
    return r.normal(size=(n, m)) * np.where(r.random((n, m)) < 0.005, 10, 1)


DEVELOPMENT = {
    "Gaussian": Family(_flat, _normal),
    "Student t, 3": Family(_flat, _student(3)),
    "Student t, 2": Family(_flat, _student(2)),
    "Laplace": Family(_flat, lambda r, n, m: r.laplace(size=(n, m))),
    "exponential": Family(_flat, lambda r, n, m: r.exponential(size=(n, m))),
    "Pareto, 2": Family(_flat, lambda r, n, m: r.pareto(2, size=(n, m))),
    "log-normal": Family(_flat, _normal, positive=True),
    "AR(1), 0.99": Family(_flat, lambda r, n, m: _ar(0.99, r.normal(size=(n, m)))),
    "AR(1), 0.99, of t 3": Family(_flat, lambda r, n, m: _ar(0.99, r.standard_t(3, size=(n, m)))),
    "power law": Family(_power, _normal),
    "cosine": Family(_cosine, _normal),
    "warm-up": Family(_warm_up, _normal),
    "sawtooth, falling": Family(_falling_epochs, _normal),
    "sawtooth, rising": Family(_rising_epochs, _normal),
    "waves": Family(_waves, _normal),
    "slowly louder": Family(_flat, _slow_loudness),
    "louder by epoch": Family(_flat, _louder_by_epoch),
    "GARCH": Family(_flat, _volatile),
    "rare outliers": Family(_flat, _outliers),
    "two decimals": Family(_power, _normal, lambda values: np.round(values, 2)),
    "constant": Family(_flat, lambda _, n, m: np.zeros((n, m))),
}
HELD_OUT = {
    "Gumbel": Family(_flat, lambda r, n, m: r.gumbel(size=(n, m))),
    "Student t, 2.5": Family(_cool_down, _student(2.5)),
    "Weibull, 0.6": Family(_flat, lambda r, n, m: r.weibull(0.6, size=(n, m))),
    "gamma, 0.5": Family(_power, lambda r, n, m: r.gamma(0.5, size=(n, m))),
    "uniform": Family(_power, lambda r, n, m: r.uniform(-1.7, 1.7, size=(n, m))),
    "log-logistic": Family(_flat, lambda r, n, m: 0.4 * r.logistic(size=(n, m)), positive=True),
    "AR(2), a wave of 30": Family(
        _power, lambda r, n, m: lfilter([0.1], [1, -2 * 0.98 * math.cos(2 * math.pi / 30), 0.98**2],
                                        r.normal(size=(n, m)), axis=0)
    ),
    "AR(1), 0.9, of t 2.5": Family(_flat, lambda r, n, m: _ar(0.9, r.standard_t(2.5, size=(n, m)))),
    "smoothed over 20": Family(_cool_down, lambda r, n, m: lfilter([0.05], [1, -0.95], r.normal(size=(n, m)), axis=0)),
    "1/f": Family(_flat, _pink),
    "bfloat16": Family(_power, _normal, _bf16),
    "repeated texts": Family(_stairs, _normal),
    "restarts": Family(_restarts, _student(4)),
    "quieter": Family(_power, lambda r, n, m: r.normal(size=(n, m)) * (1 + 9 * np.linspace(1, 0, n) ** 2)[:, None]),
    "rounded to halves of its noise": Family(_flat, lambda r, n, m: np.round(2 * r.normal(size=(n, m))) / 2),
}  # fmt: skip
STATISTICS = ("gradient_norm", "update_ratio", "weight_norm", "dead_units", "stable_rank")


class Run(NamedTuple):
    """A synthetic run: values by column at `steps`; statistics of each layer at every so many steps."""

    steps: np.ndarray
    columns: dict[str, np.ndarray]
    measured: np.ndarray
    layers: dict[str, np.ndarray]


def made(family: Family, r: Generator, n_steps: int, log_every: int, every: int, n_layers: int) -> Run:
    """Make a run of a family."""
    steps = np.arange(1, n_steps + 1, log_every)
    scale = r.uniform(0.005, 0.1)
    course = family.course(r, steps.astype(np.float64))
    noise = family.noise(r, len(steps), 2)
    if family.positive:
        loss = course * np.exp(scale * noise[:, 0])
        norms = 0.5 * np.exp(r.uniform(0.1, 1) * noise[:, 1])
    else:
        loss = family.rounded(course + scale * noise[:, 0])
        norms = family.rounded(np.abs(0.3 + course / 10 + scale * noise[:, 1]))
    rate = 3e-4 * np.minimum(1, steps / (0.02 * n_steps)) * (0.55 + 0.45 * np.cos(np.pi * steps / n_steps))
    measured = np.arange(every, n_steps + 1, every)
    spread = r.uniform(0.01, 0.3)
    layers = {}
    for name in STATISTICS:
        values = family.noise(r, len(measured), n_layers) if len(measured) else np.empty((0, n_layers))
        values = np.exp(spread * values) if family.positive else np.maximum(np.abs(1 + spread * values), 1e-6)
        layers[name] = 0.05 * np.minimum(values, 20) if name == "dead_units" else values
    return Run(steps, {"loss": loss, "grad_norm": norms, "lr": rate}, measured, layers)


class Fault(NamedTuple):
    """A fault of one layer: what its alert is called, and factors or values of its statistics from then on."""

    kind: str
    factors: Mapping[str, float]
    values: Mapping[str, float]


FAULTS = {
    "non-finite weights": Fault("non-finite", {}, {"nonfinite": 1.0}),
    "no gradient": Fault("dead layer", {}, {"gradient_norm": 0.0}),
    "gradient a 10,000th": Fault("dead layer", {"gradient_norm": 1e-4}, {}),
    "no update": Fault("frozen layer", {}, {"update_ratio": 0.0}),
    "update a 10,000th": Fault("frozen layer", {"update_ratio": 1e-4}, {}),
    "80% of units dead": Fault("dead units", {}, {"dead_units": 0.8}),
    "stable rank a 20th": Fault("rank collapse", {"stable_rank": 0.05}, {}),
    "weight norm x 10": Fault("norm running away", {"weight_norm": 10.0}, {}),
    "gradient norm x 100": Fault("gradient spike", {"gradient_norm": 100.0}, {}),
}
