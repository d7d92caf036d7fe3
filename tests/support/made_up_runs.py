"""Runs whose law is known: a power law of progress less what annealing gains, with noise, spikes and gaps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.forecasting.forecaster import LoggedRun
from toposcope.logs import Run
from toposcope.logs.schedules.schedule import Schedule

Vector = NDArray[np.float64]

KINDS = ("cosine", "linear", "wsd", "constant", "two-step", "restarts")
LAWS = ("power_law", "s1", "s1_anneal", "annealing", "cooldown")


def rates(kind: str, end: int = 2000, warm_up: int = 50, peak: float = 1e-3) -> Vector:
    """Learning rate of steps 0 to end."""
    t = np.arange(end + 1)
    x = np.clip((t - warm_up) / max(end - warm_up, 1), 0, 1)
    shape = {
        "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi * x)),
        "linear": 1 - x,
        "wsd": np.minimum(1, (1 - t / end) / 0.3 + 1e-3),
        "constant": np.ones(end + 1),
        "two-step": np.where(t < 0.4 * end, 1, np.where(t < 0.8 * end, 0.4, 0.1)),
        "restarts": 0.1 + 0.45 * (1 + np.cos(np.pi * (3 * x % 1))),
    }[kind]
    return np.asarray(peak * np.where(t < warm_up, (t + 1) / (warm_up + 1), shape))


def flattened(planned: Vector) -> Vector:
    """Rates over their peak, warm-up at the peak."""
    flat: Vector = planned / planned.max()
    flat[: int(np.argmax(flat >= 0.999))] = 1
    return flat


def annealed(planned: Vector, law: str) -> Vector:
    """G of every step, by the sums that define it."""
    flat = flattened(planned)
    falls = np.concatenate([[0.0], flat[:-1] - flat[1:]])
    if law == "s1_anneal":
        return 1 - flat
    if law == "annealing":
        gains, momentum, total = np.zeros(len(flat)), 0.0, 0.0
        for k, fall in enumerate(falls):
            momentum = 0.999 * momentum + fall
            total += 0.001 * momentum
            gains[k] = total
        return gains
    if law == "cooldown":
        progress = np.cumsum(flat)
        gains = np.zeros(len(flat))
        for k in map(int, np.flatnonzero(falls)):
            gains[k:] += falls[k] * (1 - 1 / (1 + (progress[k:] - progress[k]) / (0.03 * progress[-1])))
        return gains
    return np.zeros(len(flat))


@dataclass(frozen=True)
class Truth:
    """L0 + A (x / x_T)^-a - c G; x the steps for ``power_law``, else the progress."""

    L0: float = 2.4
    A: float = 0.5
    a: float = 0.45
    c: float = 0.19
    law: str = "s1_anneal"

    def losses(self, planned: Vector) -> Vector:
        """Of every step; step 0 is that of step 1."""
        x = np.cumsum(flattened(planned))
        if self.law == "power_law":
            x = np.maximum(np.arange(len(planned), dtype=np.float64), 1)
        loss: Vector = self.L0 + self.A * (x / x[-1]) ** -self.a - self.c * annealed(planned, self.law)
        return loss


def made_up_run(
    name: str = "run",
    kind: str = "cosine",
    truth: Truth | None = None,
    *,
    end: int = 2000,
    every: int = 10,
    begin: int = 0,
    noise: float = 0.0,
    spikes: float = 0.0,
    missing: float = 0.0,
    peak: float = 1e-3,
    size: float = 1e8,
    family: str = "made up",
    unit: str = "nats",
    scale: float = 1.0,
) -> LoggedRun:
    """A complete run.

    noise is that of log loss; spikes the share of points that are three times too high, missing that of steps which
    were not logged (never the last); scale multiplies the loss.
    """
    truth = truth or Truth()
    planned = rates(kind, end, peak=peak)
    rng = np.random.default_rng([end, every, *f"{size:g} {name}".encode()])
    steps = np.arange(begin, end + 1, every)
    if missing:
        kept = rng.random(len(steps)) >= missing
        kept[-1] = True
        steps = steps[kept]
    loss = truth.losses(planned)[steps] * np.exp(noise * rng.normal(size=len(steps)))
    loss = np.where(rng.random(len(steps)) < spikes, 3 * loss, loss) * scale
    log = Run(name, steps, loss, planned[steps], end, size, 1e5, family, kind, unit)
    return LoggedRun(log, Schedule(planned))


def made_up_family(
    kind: str = "cosine", sizes: int = 4, each: int = 3, *, noise: float = 0.003, family: str = "made up", **more: Any
) -> list[LoggedRun]:
    """Runs of several sizes and lengths; larger models end lower, and gain a little less by annealing."""
    runs = []
    for i in range(sizes):
        for j in range(each):
            truth = Truth(L0=2.6 - 0.15 * i, A=0.5 - 0.03 * i, a=0.4 + 0.02 * j, c=0.19 - 0.01 * i, law="cooldown")
            size, end = 1e7 * 4.0**i, 1000 * (j + 1)
            name = f"{family} {size:g} {end}"
            runs.append(
                made_up_run(name, kind, truth, end=end, every=10, noise=noise, size=size, family=family, **more)
            )
    return runs


def seen(run: LoggedRun, fraction: float) -> Run:
    """The first part of a run's log."""
    log = run.seen(fraction)
    assert log is not None
    return log


def copied(run: LoggedRun, **changes: Any) -> LoggedRun:
    """The same run, unknown to every cache, with another log in some fields."""
    return LoggedRun(replace(run.log, **changes), Schedule(run.schedule.rates))
