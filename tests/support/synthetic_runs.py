"""Runs whose truth is known: what a feature holds of the clock, and of what the loss does beside it."""

from typing import Literal

import numpy as np
from named_features import by_feature
from numpy.typing import NDArray
from scipy.signal import lfilter

from toposcope.analysis.trajectories import Trajectory

Truth = Literal["clock", "clock and information", "information", "nothing", "shared cause"]
N = 51
STEPS = np.arange(N) * 100
T = np.arange(N, dtype=np.float64)
CLOCKS = (np.sqrt(T / 50), T / 50, 1 - np.exp(-T / 10), np.log1p(T) / np.log(51))
RATE = np.concatenate([np.linspace(0, 1, 3), 0.5 * (1 + np.cos(np.linspace(0, np.pi, N - 3)))])


def drifting(rng: np.random.Generator, phi: float) -> NDArray[np.float64]:
    """A stationary AR(1) process of variance 1."""
    noise = np.sqrt(1 - phi**2) * rng.normal(size=N)
    noise[0] = rng.normal()
    return np.asarray(lfilter([1], [1, -phi], noise))


def synthetic_study(
    truth: Truth, n_runs: int, n_features: int, phi: float, noise: float, seed: int
) -> list[Trajectory]:
    """Runs with a falling loss, whose deviation from its trend (`noise` nats, AR(1) with `phi`) is the information.

    A feature's own noise has half the size of its share of that information. Under a shared cause features hold what
    deviates in all runs alike: it belongs to the step, and tells no run from another.
    """
    rng = np.random.default_rng(seed)
    found = []
    common = drifting(rng, phi)
    for run in range(n_runs):
        deviation = common + 0.5 * drifting(rng, phi) if truth == "shared cause" else drifting(rng, phi)
        features = {}
        for feature in range(n_features):
            own = drifting(rng, phi)
            clock = CLOCKS[rng.integers(len(CLOCKS))]
            features[f"rips f{feature}"] = {
                "clock": clock + 0.03 * own,
                "clock and information": clock - 0.03 * (2 * deviation + own),
                "information": -(2 * deviation + own),
                "nothing": own,
                "shared cause": clock - 0.03 * (2 * common + own),
            }[truth]
        norm = np.sqrt(100 + 1900 * np.cumsum(RATE) / RATE.sum()) * (1 + 0.0005 * rng.normal(size=N))
        clocks = {"step": STEPS.astype(np.float64), "cumulative_learning_rate": np.cumsum(RATE), "weight_norm": norm}
        loss = 1.6 + 3.2 / (1 + T) ** 0.9 + noise * deviation
        found.append(Trajectory(f"run{run}", STEPS, by_feature(features), {"validation_loss": loss}, clocks))
    return found
