"""Populations of scaling decisions in which the margin depends on what is planted."""

import numpy as np
import polars as pl

from toposcope_experiments.scaling_decision.design import FURTHER, Design
from toposcope_experiments.scaling_decision.features import FEATURES

BASE_SLOPE = 0.15  # nats per e-fold of compute
NOISE = 0.02  # nats, of a run's margin
STRANGE = 0.03  # nats, of what a condition does that nothing tells
WHOLE = Design()


def planted(seed: int, depends_on: str = "", size: float = 0.0, design: Design = WHOLE) -> pl.DataFrame:
    """Return decisions whose margin falls by so many nats for a deviation of one quantity among runs in a cell.

    Every quantity differs between conditions, between their seeds and smoothly along a run; H0 follows the norm at a
    correlation of .8.
    """
    rng = np.random.default_rng(seed)
    names = [each.name for each in design.conditions]
    n, m = len(names), design.seeds
    rows = []
    for pair in design.pairs:
        points = pair.n_points
        quantities = {name: _quantity(rng, n, m, points) for name in FEATURES}
        quantities["h0"] = 0.8 * quantities["norm"] + 0.6 * quantities["h0"]
        strange = _quantity(rng, n, m, points) * STRANGE
        for further, more in enumerate(FURTHER):
            noise = rng.normal(0, NOISE, (n, m, points))
            along = np.log(pair.computes) - np.log(pair.computes).mean()
            margin = -BASE_SLOPE * along + strange + noise
            if depends_on:
                margin = margin - size * quantities[depends_on]
            for i, name in enumerate(names):
                for seed_number in range(m):
                    for point, compute in enumerate(pair.computes):
                        at = (i, seed_number, point)
                        rows.append({
                            "condition": name, "seed": seed_number, "pair": pair.name, "further": further,
                            "point": point, "log_compute": np.log(compute), "more": more,
                            "log_small": np.log(100 * pair.small), "log_large": np.log(100 * pair.large),
                            "continued": 2.5, "fresh": 2.5 + margin[at], "margin": margin[at],
                            "published_rule": bool(point > 4),
                            **{each: values[at] + 0.3 * point for each, values in quantities.items()},
                        })  # fmt: skip
    return pl.DataFrame(rows)


def _quantity(rng: np.random.Generator, conditions: int, seeds: int, points: int) -> np.ndarray:
    """Of deviation 1: half of the variance between conditions, a quarter between seeds, a quarter along a run."""
    along = rng.normal(size=(conditions, seeds, points)).cumsum(axis=2)
    along = (along - along.mean(axis=2, keepdims=True)) / along.std()
    own = rng.normal(size=(conditions, seeds, 1))
    return np.asarray(np.sqrt(0.5) * rng.normal(size=(conditions, 1, 1)) + np.sqrt(0.25) * own + np.sqrt(0.25) * along)
