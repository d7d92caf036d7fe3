"""Made-up loss curves of many shapes, sound and broken at a known step."""

from collections.abc import Mapping
from itertools import product

import numpy as np

from toposcope.logs import Run
from toposcope.logs.table import LogTable
from toposcope.typing import Vector

N, EVERY = 400, 10  # rows, and rows between two evaluations
SHAPES = ("power", "exponential", "late", "two scales", "wsd", "cosine", "warm-up")
NOISES = ("small", "large", "smoothed", "heavy", "growing")
ROUGH = "rough"  # so noisy that a break may hide
SUDDEN = ("spike", "long spike", "step", "wrong labels", "restart", "optimizer", "rate x10", "rate back", "rate lost")
SLOW = ("flat", "falls, then flat", "repeated data", "creeping")
BREAKS = (*SUDDEN, *SLOW)
MADE = tuple(product(SHAPES, NOISES))
RISEN_KINDS = {
    **dict.fromkeys(("rises", "half back", "training alone", "overfits"), True),
    **dict.fromkeys(("falls", "back below", "five evaluations", "bump", "double descent"), False),
}
"""Of `risen`: whether something is wrong at the end."""


def sound(seed: int, shape: str, noise: str) -> dict[str, Vector]:
    """The columns of a sound run of `N` rows, 10 steps each."""
    rng = np.random.default_rng(seed)
    x = np.arange(1, N + 1) / N
    rates = {"wsd": np.minimum(1, (1 - x) / 0.2 + 1e-3), "warm-up": np.minimum(1, x / 0.1)}.get(shape, np.ones(N))
    if shape == "cosine":
        rates = 0.1 + 0.45 * (1 + np.cos(np.pi * x))
    level = 2.0 + 2.5 * (40 * x) ** -0.6
    if shape == "exponential":
        level = 0.8 + 2.0 * np.exp(-x / 0.4)
    elif shape == "late":
        level = 1.2 + 3.0 / (1 + np.exp((x - 0.45) / 0.2))
    elif shape == "two scales":
        level = 0.9 + 1.5 * np.exp(-x / 0.05) + 1.2 * np.exp(-x / 0.7)
    elif shape in ("wsd", "cosine"):
        level = level - 0.25 * (1 - rates)
    raw = rng.standard_t(3, N) / 1.7 if noise == "heavy" else rng.normal(size=N)
    if noise == "smoothed":
        for i in range(1, N):
            raw[i] = 0.8 * raw[i - 1] + 0.6 * raw[i]
    sizes: dict[str, Vector | float] = {
        "small": 0.002,
        "heavy": 0.02,
        "smoothed": 0.005,
        "growing": 0.005 + 0.03 * x,
        ROUGH: 0.15,
    }
    scatter = np.exp(sizes.get(noise, 0.03) * raw)
    held_out = level * 1.02 * np.exp({"large": 0.02, ROUGH: 0.05}.get(noise, 0.003) * rng.normal(size=N))
    steps = 10.0 * np.arange(1, N + 1)
    return {"step": steps, "level": level, "scatter": scatter, "rate": 3e-4 * rates, "val": held_out}


def broken(columns: dict[str, Vector], kind: str, row: int) -> dict[str, Vector]:
    """The same run with a break from a row on."""
    found = {name: values.copy() for name, values in columns.items()}
    level, rate, val = found["level"], found["rate"], found["val"]
    t, rest = np.arange(N - row, dtype=float), slice(row, None)
    if kind == "spike":
        level[row] *= 4
    elif kind == "long spike":
        level[rest] *= 1 + 2 * np.exp(-t / 8)
    elif kind in ("step", "wrong labels"):
        level[rest] *= {"step": 1.25, "wrong labels": 1.15}[kind]
    elif kind == "restart":
        level[rest] = columns["level"][: N - row]
    elif kind == "optimizer":
        level[rest] *= 1 + 0.4 * np.exp(-t / 15)
    elif kind == "rate x10":
        rate[row : row + 20] *= 10
    elif kind == "rate back":
        rate[:] = 3e-4 * (1 - 0.8 * np.arange(N) / N)
        rate[rest] = 3e-4 * (1 - 0.5 * t / N)
    elif kind == "rate lost":
        rate[rest] = 0
    elif kind == "flat":
        level[:] = 6.9
    elif kind == "falls, then flat":
        level[rest] = level[row]
    elif kind == "repeated data":
        val[rest] = val[row] * (1 + 0.8 * t / N)
        level[rest] *= 1 - 0.9 * t / N
    elif kind == "creeping":
        level[rest] = level[row] * (1 + 1.2 * t / N)
    return found


def as_run(columns: Mapping[str, Vector], n: int, *, validated: bool = False) -> Run:
    """What is known of the run after n rows."""
    steps = columns["step"][:n].astype(np.int64)
    loss = (columns["level"] * columns["scatter"])[:n]
    rates = columns["rate"][:n]
    table = None
    if validated:
        logged = (np.arange(n) + 1) % EVERY == 0
        held_out = np.where(logged, columns["val"][:n], np.nan)
        table = LogTable(steps, {"loss": loss, "validation_loss": held_out, "learning_rate": rates})
    return Run("run", steps, loss, rates, 10 * N, table=table)


def risen(seed: int, kind: str, noise: float, n: int = 100) -> Run:
    """A run in training whose loss rose for many of its steps, or a sound one that looks like it."""
    rng, x, low = np.random.default_rng(seed), np.arange(1, n + 1) / n, 0.15
    fall = 2 + 2.5 * (40 * x) ** -0.6
    bottom = 2 + 2.5 * (40 * low) ** -0.6
    back = {"half back": 0.5, "back below": 1.8}.get(kind, 0.0)
    height = 0.2 if kind == "back below" else 0.4
    up = bottom * (1 + height * np.minimum((x - low) / 0.45, 1) * (1 - back * np.clip((x - 0.6) / 0.4, 0, 1)))
    held_out = np.full(n, np.nan)
    every = n // (5 if kind in ("overfits", "five evaluations") else 10)
    held_out[every - 1 :: every] = (1.02 * fall)[every - 1 :: every]
    level = np.where(x < low, fall, up) if kind in ("rises", "half back", "back below", "training alone") else fall
    if kind == "overfits":
        level, held_out = level * (1 - 0.5 * x), held_out * (1 + 0.8 * np.maximum(x - 0.3, 0))
    elif kind == "bump":
        level = level * (1 + 0.3 * np.exp(-(((x - 0.06) / 0.02) ** 2)))
    elif kind == "double descent":
        held_out *= (1 + 0.25 * np.exp(-(((x - 0.45) / 0.12) ** 2))) * (1 - 0.3 * x)
    steps, loss = 10 * np.arange(1, n + 1), level * np.exp(noise * rng.normal(size=n))
    rate = np.minimum(1, x / 0.08) * (1e-3 if kind == "bump" else np.nan)
    held_out *= np.exp(min(noise, 0.003) * rng.normal(size=n))
    logged = {"loss": loss, "validation_loss": held_out, "learning_rate": rate}
    has_evaluations = kind in ("overfits", "five evaluations", "training alone", "double descent")
    table = LogTable(steps, logged) if has_evaluations else None
    return Run("run", steps, loss, rate, 200 * n, table=table)
