"""Runs whose truth is known: what a feature holds of the covariates, and of what the loss does beside them."""

from typing import Literal, get_args

import numpy as np
from named_features import by_feature
from numpy.typing import NDArray
from scipy.signal import lfilter

from toposcope.analysis.trajectory import Trajectory

Truth = Literal[
    "clock", "nothing", "shared cause", "random walk", "rate", "clock and rate", "cumulative rate", "weight norm",
    "delayed rate", "clock and information", "rate and information", "information",
]  # fmt: skip
Schedule = Literal[
    "shared cosine", "shared restarts", "restarts", "dips", "bursts", "cuts", "trapezoid", "cycles", "constant"
]
INFORMED: tuple[Truth, ...] = ("clock and information", "rate and information", "information")
UNINFORMED: tuple[Truth, ...] = tuple(truth for truth in get_args(Truth) if truth not in INFORMED)
N = 51
SPACING = 100
ANNEALING_GAIN = 0.19
"""Nats by which the loss is lower at a learning rate of 0 than at the peak rate; under schedules of a run's own."""
FEATURE_NOISE = 0.03

Series = NDArray[np.float64]


def drifting(rng: np.random.Generator, phi: float, n: int = N) -> Series:
    """A stationary AR(1) process of variance 1."""
    noise = np.sqrt(1 - phi**2) * rng.normal(size=n)
    noise[0] = rng.normal()
    return np.asarray(lfilter([1], [1, -phi], noise))


def delayed(series: Series, checkpoints: float) -> Series:
    """An exponential moving average that forgets over so many checkpoints."""
    if not checkpoints:
        return series
    share = 1 - np.exp(-1 / checkpoints)
    return np.asarray(lfilter([share], [1, share - 1], series, zi=[(1 - share) * series[0]])[0])


def learning_rate(schedule: Schedule, rng: np.random.Generator, n: int = N) -> Series:
    """Learning rates at n checkpoints, as shares of the peak."""
    rate = np.ones(n)

    def cosine(m: int) -> Series:
        return np.asarray(0.05 + 0.95 * 0.5 * (1 + np.cos(np.linspace(0, np.pi, m))))

    if schedule in ("shared cosine", "dips", "bursts"):
        rate = cosine(n)
    if schedule in ("restarts", "shared restarts"):
        places = np.sort(rng.choice(np.arange(6, n - 5), rng.integers(1, 4), replace=False))
        rate = np.concatenate([cosine(m) for m in np.diff(np.concatenate([[0], places, [n]]))])
    elif schedule in ("dips", "bursts"):
        rate *= 1 if schedule == "dips" else 0.4
        for place in rng.choice(np.arange(4, n - 4), 4, replace=False):
            rate[place : place + rng.integers(1, 5)] *= 0.1 if schedule == "dips" else 2.5
    elif schedule == "cuts":
        for place in rng.choice(np.arange(5, n - 3), 3, replace=False):
            rate[place:] *= 0.3
    elif schedule == "trapezoid":
        begin = rng.integers(n // 3, n - 5)
        rate[begin:] = np.linspace(1, 0.02, n - begin)
    elif schedule == "cycles":
        phase = (np.arange(n) / rng.uniform(6, 25) + rng.uniform()) % 1
        rate = 0.1 + 0.9 * np.abs(2 * phase - 1)
    rate[:2] *= np.array([0.3, 0.7])  # warm-up
    return rate


def synthetic_study(
    truth: Truth,
    n_runs: int,
    n_features: int,
    phi: float,
    noise: float,
    seed: int,
    schedule: Schedule = "shared cosine",
    *,
    n: int = N,
    feature_noise: float = FEATURE_NOISE,
    loss_delay: float = 0,
    correlation: float = 2 / 5**0.5,
    n_informed: int | None = None,
) -> list[Trajectory]:
    """Runs with a falling loss, whose deviation from its trend (`noise` nats, AR(1) with `phi`) is the information.

    Features span about 1, with noise of `feature_noise`; the first `n_informed`, or all, have a `correlation` with the
    information, given the trend. Under a shared cause features hold what deviates in all runs alike: it belongs to the
    step, and tells no run from another. Under all schedules but the shared cosine the loss follows the learning rate,
    `loss_delay` checkpoints late.
    """
    rng = np.random.default_rng(seed)
    found = []
    common, steps, t = drifting(rng, phi, n), np.arange(n) * SPACING, np.arange(n, dtype=np.float64)
    step_clocks = (np.sqrt(t / (n - 1)), t / (n - 1), 1 - np.exp(-5 * t / (n - 1)), np.log1p(t) / np.log(n))
    for run in range(n_runs):
        rate = learning_rate(schedule, np.random.default_rng(seed) if "shared" in schedule else rng, n)
        total = np.cumsum(rate)
        norm = np.sqrt(100 + 1900 * total / total[-1]) * (1 + 0.0005 * rng.normal(size=n))
        deviation = common + 0.5 * drifting(rng, phi, n) if truth == "shared cause" else drifting(rng, phi, n)
        features = {}
        for feature in range(n_features):
            own = drifting(rng, phi, n)
            clock = step_clocks[rng.integers(len(step_clocks))]
            power, delay, walk = rng.choice([0.25, 0.5, 1]), rng.choice([2, 5]), np.cumsum(rng.normal(size=n))
            trend, information = {
                "clock": (clock, None),
                "nothing": (0 * t, None),
                "shared cause": (clock, common),
                "random walk": (walk / np.sqrt(n), None),
                "rate": (rate, None),
                "clock and rate": (clock + 0.3 * rate, None),
                "cumulative rate": ((total / total[-1]) ** power, None),
                "weight norm": (norm / norm[-1], None),
                "delayed rate": (delayed(rate, delay), None),
                "clock and information": (clock, deviation),
                "rate and information": (clock + 0.3 * rate, deviation),
                "information": (0 * t, deviation),
            }[truth]
            informed = own
            if information is not None and (n_informed is None or feature < n_informed):
                informed = 5**0.5 * (correlation * information + (1 - correlation**2) ** 0.5 * own)
            features[f"rips f{feature}"] = trend - feature_noise * informed
        covariates = {
            "step": steps.astype(np.float64),
            "learning_rate": 1e-3 * rate,
            "cumulative_learning_rate": 1e-3 * SPACING * total,
            "weight_norm": norm,
        }
        progress = t if schedule == "shared cosine" else total - total[0]
        loss = 1.6 + 3.2 / (1 + 50 * progress / (n - 1)) ** 0.9 + noise * deviation
        if schedule != "shared cosine":
            loss -= ANNEALING_GAIN * (1 - delayed(rate, loss_delay))
        found.append(Trajectory(f"run{run}", steps, by_feature(features), {"validation_loss": loss}, covariates))
    return found
