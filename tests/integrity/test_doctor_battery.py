"""Healthy series of many kinds, of which nothing may be said, and sabotaged ones, of which all must be."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from property_examples import repeated
from sick_series import (
    SABOTAGES,
    SCHEDULES,
    Harm,
    Sabotage,
    Series,
    Training,
    checkpoint,
    faults,
    final_weights_early,
    nearly_final_weights_early,
    seen,
)

from toposcope.integrity import CheckpointSummary, Finding, summarise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def training(seed: int, of_another: bool = False) -> Training:
    """A run of some kind; another of the same kind begins elsewhere."""
    rng = np.random.default_rng(seed)
    return Training(
        seed=seed + 1000 * of_another,
        # A spike hides which of two neighbours came first: see docs/doctor.md.
        schedule=[s for name, s in SCHEDULES.items() if "ten times" not in name][seed % 8],
        dtype=DTYPES[seed % 3],
        drift=float(rng.choice([0.2, 1.0, 3.0])),
        noise=float(rng.choice([0.1, 0.5, 1.0])),
        decay=float(rng.choice([0.0, 0.5, 2.0])),
        returning=float(rng.choice([0.0, 5.0])),
        zero_projections=bool(rng.integers(2)),
    )


@cache
def healthy(seed: int) -> tuple[Series, Series, dict[int, CheckpointSummary]]:
    series, other = training(seed).weights(), training(seed, of_another=True).weights()
    return series, other, {item.step: item for item in seen(series)}


def judged(series: Series, seed: int) -> list[Finding]:
    known, _, evidence = healthy(seed)
    return faults(
        [
            evidence[step] if known.get(step) is weights else summarise(checkpoint(step, weights), deep=True)
            for step, weights in series.items()
        ]
    )


def check(found: list[Finding], harms: list[Harm]) -> None:
    """All that was done is found, under its name, and nothing else is."""
    done = {step for harm in harms for step in harm.steps}
    assert not [finding for finding in found if not done.issuperset(finding.steps)]
    for harm in harms:
        named = {step for finding in found if finding.check in harm.checks for step in finding.steps}
        assert named >= set(harm.steps), harm
        if len(harm.layers) == 1:
            assert harm.layers[0] in [finding.layer for finding in found if finding.check in harm.checks]


@pytest.mark.slow
@pytest.mark.parametrize("seed", repeated(range(8), 3))
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda s: s.__name__)
def test_one_harm(sabotage: Sabotage, seed: int) -> None:
    series, other, _ = healthy(seed)
    series = dict(series)
    harm = sabotage(series, other, np.random.default_rng(seed))
    check(judged(series, seed), [harm])


def mixed(seed: int) -> None:
    """Several harms at once, none at the steps or beside the steps of another."""
    series, other, _ = healthy(seed % 2)
    series = dict(series)
    rng = np.random.default_rng(seed)
    singles = [s for s in SABOTAGES if s not in (final_weights_early, nearly_final_weights_early)]
    harms: list[Harm] = []
    order = list(series)
    touched: set[int] = {0, order[1], order[-1]}
    for k in rng.permutation(len(singles)):
        attempt = dict(series)
        harm = singles[k](attempt, other, rng)
        near = {order[j] for step in harm.steps if step in order for j in _around(order.index(step), len(order))}
        lasting = harm.checks == ("break",)
        if len(harms) < 4 and not lasting and near.isdisjoint(touched) and set(harm.steps) <= set(order):
            series, harms, touched = attempt, [*harms, harm], touched | near
    assert len(harms) >= 3
    check(judged(series, seed % 2), harms)


def _around(k: int, n: int) -> range:
    return range(max(0, k - 5), min(n, k + 6))


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in repeated(range(1, 24), 4))])
def test_several_harms_at_once(seed: int) -> None:
    mixed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_healthy_series_of_many_kinds(name: str) -> None:
    for seed in repeated(range(8), 3):
        rng = np.random.default_rng([seed, *name.encode()])
        run = Training(
            seed=seed,
            schedule=SCHEDULES[name],
            dtype=DTYPES[int(rng.integers(3))],
            drift=float(rng.choice([0, 0.2, 1, 3])),
            noise=float(rng.choice([0.02, 0.1, 0.5, 1, 3])),
            decay=float(rng.choice([0, 0.5, 2])),
            returning=float(rng.choice([0, 5, 50])),
            zero_projections=bool(rng.integers(2)),
            idle_first_step=bool(rng.integers(2)),
        )
        assert not faults(seen(run.weights())), run


Initial = NDArray[np.float64]
Shape = tuple[int, ...]


def _uniform(rng: np.random.Generator, shape: Shape) -> Initial:
    return np.asarray(rng.uniform(-1, 1, shape) / np.sqrt(shape[-1]))


def _truncated(rng: np.random.Generator, shape: Shape) -> Initial:
    return np.asarray(0.02 * np.clip(rng.standard_normal(shape), -2, 2))


def _orthogonal(rng: np.random.Generator, shape: Shape) -> Initial:
    tall = rng.standard_normal((max(shape), min(shape)))
    q = np.linalg.qr(tall)[0]
    return np.asarray(q if q.shape == shape else q.T)


def _xavier(rng: np.random.Generator, shape: Shape) -> Initial:
    return np.asarray(rng.standard_normal(shape) * np.sqrt(2 / sum(shape)))


def _stacked(rng: np.random.Generator, shape: Shape) -> Initial:
    scales = np.repeat([0.02, 0.1, 0.01], -(-shape[0] // 3))[: shape[0]]
    return np.asarray(rng.standard_normal(shape) * scales[:, None])


def _padded(rng: np.random.Generator, shape: Shape) -> Initial:
    drawn: Initial = 0.02 * rng.standard_normal(shape)
    drawn[0] = 0
    return drawn


def _identity(rng: np.random.Generator, shape: Shape) -> Initial:
    return np.eye(shape[0], shape[1])


@pytest.mark.parametrize("initial", [_uniform, _truncated, _orthogonal, _xavier, _stacked, _padded, _identity])
@pytest.mark.parametrize("zero_projections", [False, True])
def test_initialisations(initial: Callable[[np.random.Generator, Shape], Initial], zero_projections: bool) -> None:
    steps = (0, 100, 200, 300, 400, 500, 600)
    for seed in range(2):
        run = Training(seed=seed, steps=steps, initial=initial, zero_projections=zero_projections)
        assert not faults(seen(run.weights()))
